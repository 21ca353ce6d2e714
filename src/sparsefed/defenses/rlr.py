"""Robust learning rate: coordinates on whose sign too few clients agree are moved the other way.

Defending against Backdoors in Federated Learning with Robust Learning Rate (Ozdayi, Kantarcioglu, Gel 2021), on top of
the mean, where the learning rate of each coordinate is turned by a vote:

    u_j  =  s_j (1/n) sum_i u_ij,      s_j = +1 where |sum_i sgn(u_ij)| >= threshold, else -1

A backdoor pulls some coordinates its own way against the honest majority; there the vote is close, and the server goes
back instead of following the larger pull.

*Departures.* Every client counts the same, unless the server is given weights for the mean; the paper's are numbers of
examples. Votes always count the same, as in the paper. A threshold that no vote could reach is refused, where the
authors' code would turn every coordinate. Where unusable updates leave fewer than `threshold` votes, those who are left
must agree: who sends NaN must not be able to turn the training round.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Annotated, Unpack

import torch
from torch import Tensor

from sparsefed.core.errors import ConfigError
from sparsefed.core.types import Block, Context, State
from sparsefed.defenses.combine import received_in, weights_in
from sparsefed.defenses.options import CommonKeywords
from sparsefed.defenses.pipeline import Combine, Flow, no_updates, require
from sparsefed.defenses.rule import rule
from sparsefed.kernels.columns import rehearse, sign_votes
from sparsefed.kernels.compilation import warm_up
from sparsefed.kernels.rows import weighted_sum

Threshold = Annotated[int, "votes by which a coordinate's sign must win, or else the server moves it the other way"]


@rule(
    paper="Ozdayi et al. 2021, Defending against Backdoors in Federated Learning with Robust Learning Rate",
    needs=("rows",),
    weights=True,
)
def rlr(threshold: Threshold, **_: Unpack[CommonKeywords]) -> Combine:
    """The mean, with the sign flipped in each coordinate where the vote of signs is closer than a threshold."""
    require(
        threshold >= 0, f"threshold is {threshold}, but it is a number of votes: choose threshold >= 0 (0 is the mean)"
    )

    def init(d: int) -> State:  # noqa: ARG001
        warm_up(rehearse)
        return {}

    def step(state: State, blocks: Iterable[Block], context: Context) -> Flow:
        total, votes, kept, weight = _poll(blocks, threshold, context)
        turned = votes.abs() < min(threshold, kept)
        mean = (total / (weight or 1.0)).to(torch.float32)
        return Flow(state, torch.where(turned, -mean, mean), {"turned": float(turned.sum()) / max(len(turned), 1)})

    return Combine(init, step, partial(_check_votes, threshold))


def _poll(blocks: Iterable[Block], threshold: int, context: Context) -> tuple[Tensor, Tensor, int, float]:
    """Return the sum and the votes of each coordinate, and the number and weight of voters, a block at a time."""
    total: Tensor | None = None
    votes: Tensor | None = None
    kept, received, weight = 0, 0, 0.0
    for block in blocks:
        rows, weights = block.rows(), weights_in(block)
        sums, signs = sign_votes(rows)
        sums = sums if weights is None else weighted_sum(rows, weights).double()
        # In place, on tensors of this call: a new vector for each block would fragment the heap.
        total = sums if total is None else total.add_(sums)
        votes = signs if votes is None else votes.add_(signs)
        kept += block.size
        weight += block.size if weights is None else float(weights.sum())
        received += received_in(block)
        del block, rows, sums, signs  # free before the next block is computed
    if total is None or votes is None:
        raise no_updates(context)
    _check_votes(threshold, received)
    return total, votes, kept, weight


def _check_votes(threshold: int, n: int) -> None:
    if threshold > n:
        raise ConfigError(
            f"rlr with threshold = {threshold} needs at least n = {threshold} updates a round, "
            f"but there are {n}: no vote could be won, and every coordinate would be turned"
        )
