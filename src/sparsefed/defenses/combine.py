"""Combining many updates into one: the streaming mean, and adapters for rules that must see all rows at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import count
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from sparsefed.core.errors import ConfigError
from sparsefed.core.types import Block, Context, IntArray, State
from sparsefed.defenses.pipeline import Combine, Flow, no_state, no_updates
from sparsefed.kernels.blocks import RowsBlock, ScaledBlock


class Stack(NamedTuple):
    """All usable updates of a round, in memory at once."""

    rows: Tensor  # float32 [n, d]; shared with the sender's tensor: never write to it
    senders: IntArray  # [n]
    received: int  # at least n: counts the unusable ones too


Pre = Callable[[Stack, Context], Stack]  # transforms the rows before a rule sees them
RowRule = Callable[[Tensor], Tensor]  # [n, d] -> [d]
RobustRule = Callable[[Tensor, int], Tensor]  # [n, d], f -> [d]


def mean() -> Combine:
    """Return the mean u = (1/n) sum_i u_i, streamed in the memory of one block at any cohort (McMahan et al. 2017)."""
    return Combine(no_state, lambda state, blocks, context: Flow(state, _mean(blocks, context)))


def stacked(rule: RowRule) -> Combine:
    """Return the `Combine` of a rule that needs every row at once; with no row left it gives zero."""

    def step(state: State, blocks: Iterable[Block], context: Context) -> Flow:
        rows = stack(blocks, context).rows
        return Flow(state, rule(rows) if len(rows) else rows.new_zeros(rows.shape[1]))

    return Combine(no_state, step)


def robust(name: str, rule: RobustRule, f: int, most: Callable[[int], int]) -> Combine:
    """Return the `Combine` of a rule that tolerates f attackers among n rows, at most `most(n)` by its definition.

    A cohort that is too small for f is refused. Where only dropping unusable updates made it too small, the rule goes
    on with the largest f that is left: a client that sends NaN must not be able to stop the training.
    """
    require_f(f)

    def step(state: State, blocks: Iterable[Block], context: Context) -> Flow:
        rows, _, received = stack(blocks, context)
        require_enough(name, f, received, most)
        if not len(rows):
            return Flow(state, rows.new_zeros(rows.shape[1]))
        require_enough(name, 0, len(rows), most)
        return Flow(state, rule(rows, min(f, most(len(rows)))))

    return Combine(no_state, step)


def after(pre: Sequence[Pre], combine: Combine) -> Combine:
    """Wrap a rule so that the rows pass through the pre-aggregations, in order, before it sees them."""

    def step(state: State, blocks: Iterable[Block], context: Context) -> Flow:
        rows = stack(blocks, context)
        for one in pre if len(rows.rows) else ():
            rows = one(rows, context)
        return combine.step(state, [RowsBlock(rows.rows, rows.senders)], context)

    return Combine(combine.init, step) if pre else combine


def stack(blocks: Iterable[Block], context: Context) -> Stack:
    """Return every row of a round in one `Stack`; a single block is not copied."""
    parts, senders, received = [], [], 0
    for block in blocks:
        parts.append(block.rows())
        senders.append(block.senders)
        received += block.received if isinstance(block, ScaledBlock) else block.size
        del block
    if not parts:
        raise no_updates(context)
    return Stack(parts[0] if len(parts) == 1 else torch.cat(parts), np.concatenate(senders), received)


def require_f(f: int) -> None:
    if f < 0:
        raise ConfigError(f"f is {f}, but it is a number of attackers: choose f >= 0")


def require_enough(name: str, f: int, n: int, most: Callable[[int], int]) -> None:
    """Raise ConfigError if a cohort is too small for f; the message names the sizes that would do."""
    if most(n) < f:
        least = next(m for m in count(n) if most(m) >= f)
        best = f", or f = {most(n)} at most" if most(n) >= 0 else ""
        raise ConfigError(f"{name} with f = {f} needs at least n = {least} updates a round, but there are {n}{best}")


def _mean(blocks: Iterable[Block], context: Context) -> Tensor:
    total: Tensor | None = None
    count = 0.0
    for block in blocks:
        weights = getattr(block, "weights", None)
        weights = block.norms().new_ones(block.size) if weights is None else weights
        # A block without a usable row is summed too: its zero vector has the number of coordinates.
        part = block.weighted_sum(weights)
        # In place: a new vector for each block would fragment the heap.
        total = part.clone() if total is None else total.add_(part)
        count += float(weights.sum())
        del block, part  # free before the next block is computed
    if total is None:
        raise no_updates(context)
    return total / (count or 1.0)
