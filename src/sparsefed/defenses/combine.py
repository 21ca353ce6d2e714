"""Combining many updates into one: the streaming mean, and adapters for rules that must see all rows at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from sparsefed.core.errors import ConfigError
from sparsefed.core.types import Block, Context, IntArray, State
from sparsefed.defenses.pipeline import NO_STATS, SKIPPED, Combine, Flow, no_state, no_updates
from sparsefed.kernels.blocks import Join, RowsBlock, remote_join

LARGEST = 1 << 80  # far more updates than a round can have


class Stack(NamedTuple):
    """All usable updates of a round, in memory at once."""

    rows: Any  # float32 [n, d]; shared with the sender's tensor: never write to it. `SlicedRows` only where asked for
    senders: IntArray  # [n]
    received: int  # at least n: counts the unusable ones too
    stats: Mapping[str, float] = NO_STATS  # of the pre-aggregations so far
    shares: Tensor | None = None  # float64 [n], the weight of each in a mean, of all weights; None: all alike


@dataclass(frozen=True)
class Pre:
    """A pre-aggregation: a transform of the rows before a rule sees them."""

    apply: Callable[[Stack, Context], Stack]
    size: Callable[[int], int] = lambda n: n  # the rows that n updates become; raises if n is too small

    def __call__(self, stack: Stack, context: Context) -> Stack:
        return self.apply(stack, context)


RowRule = Callable[[Tensor], Tensor]  # [n, d] -> [d]
# [n, d] (a tensor, or `SlicedRows`), f -> [d]; a rule that picks rows returns these too
RobustRule = Callable[[Any, int], Tensor | tuple[Tensor, list[int]]]


def mean() -> Combine:
    """Return the mean u = (1/n) sum_i u_i, streamed in the memory of one block at any cohort (McMahan et al. 2017)."""
    return Combine(no_state, lambda state, blocks, context: Flow(state, _mean(blocks, context)))


def stacked(rule: RowRule) -> Combine:
    """Return the `Combine` of a rule that needs every row at once; with no row left it gives zero."""

    def step(state: State, blocks: Iterable[Block], context: Context) -> Flow:
        rows = stack(blocks, context).rows
        return Flow(state, rule(rows) if len(rows) else rows.new_zeros(rows.shape[1]))

    return Combine(no_state, step)


@dataclass(frozen=True)
class Tolerance:
    """The attackers that a rule tolerates: f among n updates, which its definition allows up to `most(n)`.

    A cohort that is too small for f is refused. Where unusable updates were dropped, the rule goes on with the largest
    f that the rest allows: clients that send NaN must not be able to stop the training. As no definition loses more
    than one attacker with an update, that f is at least f minus the number of dropped updates, and thus enough for
    every attacker among the rest.
    """

    name: str  # of the rule, for messages
    f: int
    most: Callable[[int], int]  # never falls, and rises by at most 1 with an update; below 0: not defined

    def __post_init__(self) -> None:
        if self.f < 0:
            raise ConfigError(f"f is {self.f}, but it is a number of attackers: choose f >= 0")

    def check(self, n: int) -> None:
        """Raise ConfigError if a cohort is too small for f; the message names the sizes that would do."""
        if self.most(n) < self.f:
            best = f", or f = {self.most(n)} at most" if self.most(n) >= 0 else ""
            least = _least(n, lambda m: self.most(m) >= self.f)
            needed = f"at least n = {least} updates" if least < LARGEST else "more updates than there can be in"
            raise ConfigError(f"{self.name} with f = {self.f} needs {needed} a round, but there are {n}{best}")

    def same_size(self, n: int) -> int:
        """Return n, the rows that a pre-aggregation makes of n updates; raise ConfigError if they are too few."""
        self.check(n)
        return n

    def among(self, stack: Stack) -> int:
        """Return the f to go on with among the usable rows; below 0 if the rule is not defined for so few."""
        self.check(stack.received)
        return min(self.f, self.most(len(stack.rows)))

    def stats(self, f: int) -> Mapping[str, float]:
        """Return what a round reports of f: the number it went on with, where that is smaller."""
        return {"f_used": float(f)} if f < self.f else NO_STATS


def robust(name: str, rule: RobustRule, f: int, most: Callable[[int], int], sliced: bool = False) -> Combine:
    """Return the `Combine` of a rule that tolerates f attackers among n rows, at most `most(n)` by its definition.

    With `sliced`, it is given `SlicedRows` where the rows are on other machines.
    """
    tolerance = Tolerance(name, f, most)

    def step(state: State, blocks: Iterable[Block], context: Context) -> Flow:
        updates = stack(blocks, context, sliced)
        bears = tolerance.among(updates)
        if bears < 0 or not len(updates.rows):
            return skipped(state, updates)
        made = rule(updates.rows, bears)
        if isinstance(made, Tensor):
            return Flow(state, made, tolerance.stats(bears))
        return Flow(state, made[0], tolerance.stats(bears), frozenset(updates.senders[made[1]].tolist()))

    return Combine(no_state, step, tolerance.check)


def accepted(senders: IntArray, weights: Tensor) -> frozenset[int]:
    """Return the senders whose updates have at least half of an equal share of the weights; a rule rejects the others.

    >>> sorted(accepted(np.array([3, 5, 9]), torch.tensor([1.0, 0.9, 0.1])))
    [3, 5]
    """
    enough = (weights > 0) & (2 * len(weights) * weights.double() >= weights.double().sum())
    return frozenset(senders[enough.cpu().numpy()].tolist())


def skipped(state: State, updates: Stack) -> Flow:
    """Return the flow of a round that dropped updates leave too small for the rule: it changes nothing."""
    return Flow(state, updates.rows.new_zeros(updates.rows.shape[1]), SKIPPED)


@dataclass(frozen=True)
class _Mixed(RowsBlock):
    """The rows after pre-aggregation, with the number there would be if every update had been usable."""

    received: int = 0


def after(pre: Sequence[Pre], combine: Combine) -> Combine:
    """Wrap a rule so that the rows pass through the pre-aggregations, in order, before it sees them."""

    def step(state: State, blocks: Iterable[Block], context: Context) -> Flow:
        updates = stack(blocks, context)
        sizes = [updates.received]
        for one in pre:
            sizes.append(one.size(sizes[-1]))
            updates = one(updates, context) if len(updates.rows) else updates
        flow = combine.step(state, [_Mixed(updates.rows, updates.senders, sizes[-1])], context)
        return flow._replace(stats={**updates.stats, **flow.stats}, accepted=None)  # mixed rows have many senders

    def check(n: int) -> None:
        for one in pre:
            n = one.size(n)
        combine.check(n)

    return Combine(combine.init, step, check) if pre else combine


def stack(blocks: Iterable[Block], context: Context, sliced: bool = False) -> Stack:
    """Return every row of a round in one `Stack`; a single block is not copied.

    With `sliced`, rows that are on other machines stay there, and the stack has `SlicedRows`.
    """
    parts: list[Any] = []
    senders, weights, received = [], [], 0
    join: Join | None = None
    for block in blocks:
        join = join or (remote_join(block) if sliced else None)
        parts.append(block.rows() if join is None else block)  # honest updates come first: all of them are there
        senders.append(block.senders)
        weights.append(weights_in(block))
        received += received_in(block)
        del block
    if not parts:
        raise no_updates(context)
    rows: Any = parts[0] if len(parts) == 1 else None
    if join is not None or rows is None:
        rows = torch.cat(parts) if join is None else join(parts)
    return _weighed(Stack(rows, np.concatenate(senders), received), [each for each in weights if each is not None])


def weights_in(block: Block) -> Tensor | None:
    """Return the weight of each update of a block in a mean, float64 [m]; None if all are alike."""
    weights: Tensor | None = getattr(block, "weights", None)
    return weights


def _weighed(stack: Stack, weights: Sequence[Tensor]) -> Stack:
    """Return a stack with its shares, without the rows of weight 0."""
    if not weights:
        return stack
    together = torch.cat(list(weights)).to(stack.rows.device)
    kept = together > 0
    rows, senders = (stack.rows, stack.senders) if bool(kept.all()) else (stack.rows[kept], stack.senders[kept.cpu()])
    return stack._replace(rows=rows, senders=senders, shares=together[kept] / together.sum())


def received_in(block: Block) -> int:
    """Return the number of updates that a block stands for, the unusable ones too."""
    received: int = getattr(block, "received", block.size)
    return received


def _least(n: int, enough: Callable[[int], bool]) -> int:
    """Return the least number above n, which is not enough, that is; by bisection, as f may be any number."""
    low, high = n, n + 1
    while not enough(high) and high < LARGEST:
        low, high = high, 2 * high
    while low + 1 < high < LARGEST:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def _mean(blocks: Iterable[Block], context: Context) -> Tensor:
    total: Tensor | None = None
    count = 0.0
    for block in blocks:
        weights = weights_in(block)
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
