"""Krum and Multi-Krum: the updates whose nearest neighbours are closest.

Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent (Blanchard et al. 2017, section 4):

    s(i)  =  sum of |u_i - u_j|^2 over the n - f - 2 updates j != i that are nearest to u_i
    krum  =  the update of lowest score;  multi_krum = the mean of the m updates of lowest score

Both need n >= 2f + 3 (the paper's 2f + 2 < n). Among equal scores the lexicographically smallest update is first, so
that the order in which clients come decides nothing.

*Departures.* Multi-Krum takes m = n - f by default, the usual choice; any m from 1 (Krum) to n (the mean) is allowed.
The paper's resilience proof is for Krum alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cmp_to_key, partial
from typing import TYPE_CHECKING, Annotated, Literal, Unpack, get_args

import numpy as np
import torch
from torch import Tensor

from sparsefed.core.errors import ConfigError, unknown
from sparsefed.core.types import Block, Context, State
from sparsefed.defenses.combine import Tolerance, skipped, stack
from sparsefed.defenses.options import CommonKeywords
from sparsefed.defenses.parameter_types import Attackers
from sparsefed.defenses.pipeline import Combine, Flow, require
from sparsefed.defenses.rule import rule
from sparsefed.kernels.compilation import warm_up
from sparsefed.kernels.distances import COLUMNS, rehearse, squared_distances
from sparsefed.kernels.rows import weighted_sum
from sparsefed.kernels.sliced import Rows, row_of

if TYPE_CHECKING:
    from sparsefed.kernels.vector_kernels import Doubles, Index

PAPER = "Blanchard et al. 2017, Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent"

Variant = Literal["blanchard", "paper-box"]


def most_attackers(n: int) -> int:
    """Return the largest f with n >= 2f + 3."""
    return (n - 3) // 2


@dataclass(frozen=True)
class Company:
    """The pairwise distances of the rows, and each row's neighbours sorted by distance."""

    rows: Rows  # float32 [n, d]
    distances: Doubles  # [n, n], squared or not
    order: Index  # [n, n - 1], the other rows, nearest first
    ordered: Doubles  # [n, n - 1], their distances


Score = Callable[[Rows, int], tuple[Company, "Doubles"]]  # rows, f -> distances and scores [n]


@rule(paper=PAPER, needs=("all rows",), largest_f=most_attackers, slices=True)
def krum(
    f: Attackers,
    variant: Annotated[Variant, "'blanchard', or 'paper-box': the algorithm as the SparseFed paper prints it"] = (
        "blanchard"
    ),
    **_: Unpack[CommonKeywords],
) -> Combine:
    """Krum: the one update that is nearest to its n - f - 2 nearest others.

    The variant 'paper-box' is Krum as SparseFed's appendix prints it (Panda et al. 2022): from all updates, u_i among
    them, the f + 2 farthest from u_i are taken away, and the score is the sum of the distances to the rest, not
    squared. As u_i itself is in the rest at distance 0, that is n - f - 3 others, one fewer than Blanchard's.
    """
    if variant not in get_args(Variant):
        raise ConfigError(unknown("variant", variant, get_args(Variant)))
    scores: Mapping[Variant, Score] = {"blanchard": blanchard_scores, "paper-box": box_scores}
    return _selecting(Tolerance("krum", f, most_attackers), scores[variant], lambda n, f: 1)  # noqa: ARG005


@rule(paper=PAPER, needs=("all rows",), largest_f=most_attackers, audit=True, slices=True)
def multi_krum(
    f: Attackers,
    m: Annotated[int | None, "how many updates of lowest score are averaged; by default n - f"] = None,
    **_: Unpack[CommonKeywords],
) -> Combine:
    """The mean of the m updates that are nearest to their n - f - 2 nearest others."""
    require(m is None or m >= 1, f"m is {m}, but a mean is of at least one update: choose m >= 1")
    tolerance = Tolerance("multi_krum", f, most_attackers)
    return _selecting(tolerance, blanchard_scores, lambda n, f: n - f if m is None else min(m, n), m or 1)


def blanchard_scores(rows: Rows, f: int) -> tuple[Company, Doubles]:
    """Return each row's distances and its score: the sum of squared distances to the n - f - 2 nearest others."""
    company = keep_company(rows, squared_distances(rows))
    return company, company.ordered[:, : len(rows) - f - 2].sum(axis=1)


def box_scores(rows: Rows, f: int) -> tuple[Company, Doubles]:
    """Return each row's distances and its score: the sum of distances to the n - f - 3 nearest others and itself."""
    company = keep_company(rows, squared_distances(rows).sqrt())
    return company, company.ordered[:, : len(rows) - f - 3].sum(axis=1)


def keep_company(rows: Rows, distances: Tensor) -> Company:
    """Sort each row's neighbours by distance, so that sums over the nearest tie exactly where distances do."""
    table = distances.cpu().numpy()
    others = table.copy()
    np.fill_diagonal(others, np.inf)  # each row itself comes last, and is then left out
    order = np.argsort(others, axis=1)[:, :-1].copy()
    return Company(rows, table, order, np.take_along_axis(others, order, axis=1))


def lowest(company: Company, score: Doubles, m: int) -> list[int]:
    """Return the m rows of lowest score; among equal scores the lexicographically smallest."""
    limit = np.partition(score, m - 1)[m - 1]
    sure, tied = np.flatnonzero(score < limit).tolist(), np.flatnonzero(score == limit).tolist()
    if len(sure) + len(tied) > m:
        tied.sort(key=cmp_to_key(partial(_compare, company)))
    return [*sure, *tied[: m - len(sure)]]


def _compare(company: Company, i: int, j: int) -> int:
    if company.distances[i, j] == 0:
        return 0  # colluders that send identical rows: no need to compare
    one, other = row_of(company.rows, i), row_of(company.rows, j)
    for a, b in zip(torch.split(one, COLUMNS), torch.split(other, COLUMNS), strict=True):
        differ = torch.nonzero(a != b)
        if len(differ):
            return -1 if bool(a[differ[0]] < b[differ[0]]) else 1
    return 0


def _selecting(tolerance: Tolerance, score: Score, size: Callable[[int, int], int], least: int = 1) -> Combine:
    """Return the mean of the `size(n, f)` rows of lowest score, of `least` updates or more."""

    def init(d: int) -> State:  # noqa: ARG001
        warm_up(rehearse)
        return {}

    def check(n: int) -> None:
        tolerance.check(n)
        require(least <= n, f"m is {least}, but the round has only {n} updates: choose a smaller m")

    def step(state: State, blocks: Iterable[Block], context: Context) -> Flow:
        updates = stack(blocks, context, sliced=True)
        check(updates.received)
        rows, bears = updates.rows, tolerance.among(updates)
        if bears < 0:
            return skipped(state, updates)
        chosen = lowest(*score(rows, bears), size(len(rows), bears))
        winner = {"winner": float(updates.senders[chosen[0]])} if len(chosen) == 1 else {}
        senders = frozenset(updates.senders[chosen].tolist())
        return Flow(state, mean_of(rows, chosen), {**winner, **tolerance.stats(bears)}, senders)

    return Combine(init, step, check)


def mean_of(rows: Rows, chosen: list[int]) -> Tensor:
    """Return the mean of the chosen rows, read without copying them."""
    weights = torch.zeros(len(rows), dtype=torch.float64, device=rows.device)
    weights[chosen] = 1 / len(chosen)
    return weighted_sum(rows, weights)
