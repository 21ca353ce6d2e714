"""How many updates become one: the mean, which streams, and the lift for rules that must see all rows at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from sparsefed.defenses.base import Combine, Flow, no_state, no_updates
from sparsefed.types import Block, Context, State


def mean() -> Combine:
    """u = (1/n) sum_i u_i, a block at a time: memory for one block, whatever the cohort (McMahan et al. 2017)."""
    return Combine(no_state, lambda state, blocks, context: Flow(state, _mean(blocks, context)))


def stacked(rule: Callable[[Tensor], Tensor]) -> Combine:
    """A rule `[n, d] -> [d]` that needs every row at once; with no row left, zero."""

    def step(state: State, blocks: Iterable[Block], context: Context) -> Flow:  # noqa: ARG001
        rows = torch.cat([block.rows() for block in blocks])
        return Flow(state, rule(rows) if len(rows) else rows.new_zeros(rows.shape[1]))

    return Combine(no_state, step)


def _mean(blocks: Iterable[Block], context: Context) -> Tensor:
    total: Tensor | None = None
    count = 0
    for block in blocks:
        # A block without a usable row is asked too: its zero vector says how many coordinates there are.
        part = block.weighted_sum(torch.ones(block.size, dtype=torch.float64))
        total = (
            part.clone() if total is None else total.add_(part)
        )  # in place: a new vector a block would split the heap
        count += block.size
        del block, part  # free before the next block is computed
    if total is None:
        raise no_updates(context)
    return total / max(count, 1)
