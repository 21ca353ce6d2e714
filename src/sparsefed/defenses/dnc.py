"""Divide-and-conquer: the updates that stick out along the cohort's main direction are left out.

Manipulating the Byzantine: Optimizing Model Poisoning Attacks and Defenses for Federated Learning (Shejwalkar,
Houmansadr 2021, Algorithm 2). In each iteration, on b coordinates drawn at random,

    C      =  the rows minus their mean                        [n, b]
    v      =  the top right singular vector of C
    s_i    =  <C_i, v>^2                                       the outlier score of row i
    good   =  all but the c f rows of the highest scores

and the result is the mean of the rows that were good in every iteration.

The singular vector comes from the n x n Gram matrix of C in float64: C v = sigma u, so s_i = sigma^2 u_i^2 with u its
top eigenvector, whatever its sign.

*Departures.* None of substance; what the paper leaves open: of equal scores (to 1e-9 of the largest) the lower sender
number stays, so that the order of the rows never decides; c f is rounded up; where the iterations have no row in
common, the result is zero. If b is at least d, every iteration is the same, and there is one. The defaults of b, c and
the number of iterations are those of public re-implementations.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Annotated, Unpack

import numpy as np
import torch
from torch import Tensor

from sparsefed.core.rng import rng
from sparsefed.core.types import Block, Context, IntArray, State
from sparsefed.defenses.combine import Tolerance, accepted, stack
from sparsefed.defenses.options import CommonKeywords
from sparsefed.defenses.parameter_types import Attackers, require_iterations
from sparsefed.defenses.pipeline import Combine, Flow, no_state, require
from sparsefed.defenses.rule import rule
from sparsefed.kernels.rows import weighted_sum

EQUAL = 1e-9  # relative to the largest score


@rule(
    paper="Shejwalkar and Houmansadr 2021, Manipulating the Byzantine: Optimizing Model Poisoning Attacks and Defenses",
    needs=("all rows",),
    largest_f=lambda n: n - 1,
)
def dnc(
    f: Attackers,
    iterations: Annotated[int, "how often coordinates are drawn; who is good in each is kept"] = 1,
    subsample: Annotated[int, "b, the coordinates that an iteration looks at"] = 10_000,
    filter_fraction: Annotated[float, "c, how many rows an iteration leaves out, as a multiple of f"] = 1.0,
    **_: Unpack[CommonKeywords],
) -> Combine:
    """The mean of the updates that are outliers along the main direction of no random sample of the coordinates."""
    require_iterations(iterations, "DnC must look at least once")
    require(subsample >= 1, f"subsample is {subsample}, but DnC must see a coordinate: choose subsample >= 1")
    require(
        0 < filter_fraction < math.inf,
        f"filter_fraction is {filter_fraction}, but some rows must go: choose filter_fraction > 0 (1: as many as f)",
    )

    def filtered(attackers: int) -> int:
        return math.ceil(filter_fraction * attackers - 1e-9)  # 1.1 * 10 is a little more than 11

    def most(n: int) -> int:
        highest = n - 1 if filter_fraction <= 1 else min(n - 1, int((n - 1) / filter_fraction) + 1)
        return next(a for a in range(highest, -2, -1) if filtered(a) < n)

    tolerance = Tolerance("dnc", f, most)

    def step(state: State, blocks: Iterable[Block], context: Context) -> Flow:
        updates = stack(blocks, context)
        rows, bears = updates.rows, tolerance.among(updates)
        good = torch.ones(len(rows), dtype=torch.bool, device=rows.device)
        if len(rows):
            keep = len(rows) - filtered(bears)
            for sample in samples(rows, iterations, subsample, context):
                good &= lowest(outlier_scores(sample), updates.senders, keep)
        selected = int(good.sum())
        stats = {"selected": float(selected), **tolerance.stats(bears)}
        vector = weighted_sum(rows, good.double() / max(1, selected))
        return Flow(state, vector, stats, accepted(updates.senders, good))

    return Combine(no_state, step, tolerance.check)


def samples(rows: Tensor, iterations: int, subsample: int, context: Context) -> Iterator[Tensor]:
    """Yield the sampled coordinates that each iteration sees, float64 [n, b]."""
    d = rows.shape[1]
    if subsample >= d:
        yield rows.double()
        return
    draw = rng(context.seed, "dnc", context.round)
    for _ in range(iterations):
        chosen = np.sort(draw.choice(d, subsample, replace=False, shuffle=False))
        yield rows[:, torch.from_numpy(chosen).to(rows.device)].double()


def outlier_scores(sample: Tensor) -> Tensor:
    """Return the squared projection of each centred row on the top right singular vector, float64 [n]."""
    centred = sample - sample.mean(0)
    values, vectors = torch.linalg.eigh(centred @ centred.T)
    scores: Tensor = values[-1].clamp_min(0) * vectors[:, -1].square()
    return scores


def lowest(scores: Tensor, senders: IntArray, keep: int) -> Tensor:
    """Return which rows have one of the `keep` lowest scores, bool [n]; among equal scores the lowest senders."""
    largest = float(scores.max())
    steps = (scores / (EQUAL * largest)).round() if largest > 0 else scores
    order = np.lexsort((senders, steps.cpu().numpy()))
    kept = torch.zeros(len(scores), dtype=torch.bool, device=scores.device)
    kept[torch.from_numpy(order[:keep]).to(scores.device)] = True
    return kept
