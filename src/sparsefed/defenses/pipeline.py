"""A defense is `pipeline(per_update, combine, server)`: every stage is a pure function, and its state is a value.

    PerUpdate  norm -> norm                the norm to which the server clips an update        e.g. clip_l2(L)
    Combine    blocks -> vector, state     many updates become one                             e.g. mean
    Transform  vector -> vector, state     what the server does with the one                   e.g. topk_memory(k, rho)

All state is one flat mapping of named tensors, so that a checkpoint is a copy of it. Returned vectors may share memory
with the state beside them: callers never write to what a rule returned, and no rule writes to its arguments.

Two rules hold for every pipeline, whatever its stages:

- An update is dropped, and counted, if its norm is not finite or exceeds `LARGEST_NORM` (sums of such numbers leave
  float32). The rest of the round goes on without it: a mean is over the kept updates.
- If every update of a round is dropped, or too few are left for the rule, the round did not happen: delta is zero, the
  state stays as it was, and the statistics hold `skipped`. Nothing was learned, so nothing decays and nothing is taken
  out of a memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor

from sparsefed.core.errors import ConfigError
from sparsefed.core.errors import require as require  # every rule's parameters are checked with it
from sparsefed.core.types import Block, Context, Defense, State, Step
from sparsefed.kernels.blocks import ScaledBlock
from sparsefed.kernels.compilation import warm_up
from sparsefed.kernels.rows import rehearse

LARGEST_NORM = 1e30
CLIPPED_BEYOND = 1 + 1e-6  # a device that clipped itself to L in float32 may be this far off, and is not "clipped"

NO_STATS: Mapping[str, float] = MappingProxyType({})
SKIPPED: Mapping[str, float] = MappingProxyType({"skipped": 1.0})  # of a round that left the model as it was


class Flow(NamedTuple):
    """The result of one stage: its new state, the vector for the next stage, and numbers worth reporting."""

    state: State
    vector: Tensor  # float32 [d]
    stats: Mapping[str, float] = NO_STATS
    accepted: frozenset[int] | None = None  # senders, of a rule that selects or weighs them


def no_state(d: int) -> State:  # noqa: ARG001
    """Return an empty state: the `init` of a stage without memory."""
    return {}


@dataclass(frozen=True)
class PerUpdate:
    """The l2 norm to which every update is clipped, and how it adapts to the norms of a round."""

    budget: Callable[[State, Context], float]  # inf if none
    init: Callable[[int], State] = no_state
    learn: Callable[[State, Sequence[float], Context], State] = lambda state, norms, context: state  # noqa: ARG005


@dataclass(frozen=True)
class Combine:
    """A stage that makes one vector of many updates; blocks arrive one at a time and must be freed before the next."""

    init: Callable[[int], State]
    step: Callable[[State, Iterable[Block], Context], Flow]
    check: Callable[[int], None] = lambda n: None  # noqa: ARG005 - raises if it is not defined for n updates


@dataclass(frozen=True)
class Transform:
    """A stage that maps one vector to another, with state."""

    init: Callable[[int], State]
    step: Callable[[State, Tensor, Context], Flow]


def identity() -> Transform:
    """Return the transform that leaves the vector as it is."""
    return Transform(no_state, lambda state, vector, context: Flow(state, vector))  # noqa: ARG005


def chain(*transforms: Transform) -> Transform:
    """Return a transform that applies several in turn; the state of the i-th is kept under `i.`."""

    def init(d: int) -> State:
        return _merged({str(i): transform.init(d) for i, transform in enumerate(transforms)})

    def step(state: State, vector: Tensor, context: Context) -> Flow:
        states: dict[str, State] = {}
        stats: dict[str, float] = {}
        for i, transform in enumerate(transforms):
            flow = transform.step(_part(state, str(i)), vector, context)
            states[str(i)], vector = flow.state, flow.vector
            stats.update(flow.stats)
        return Flow(_merged(states), vector, stats)

    return Transform(init, step)


def pipeline(per_update: PerUpdate, combine: Combine, server: Transform) -> Defense:
    """Return the defense that clips each update, combines them, and passes the result through the server."""

    def init(d: int) -> State:
        warm_up(rehearse)
        return _merged({"clip": per_update.init(d), "combine": combine.init(d), "server": server.init(d)})

    def budget(state: State, context: Context) -> float:
        return per_update.budget(_part(state, "clip"), context)

    def step(state: State, blocks: Iterable[Block], context: Context) -> Step:
        tally = _Tally()
        screened = _screened(blocks, budget(state, context), context, tally)
        combined = combine.step(_part(state, "combine"), screened, context)
        if tally.kept == 0 or "skipped" in combined.stats:
            delta = torch.zeros_like(combined.vector)
            return Step(state, delta, {**_stats(tally, delta), **SKIPPED})
        served = server.step(_part(state, "server"), combined.vector, context)
        learned = per_update.learn(_part(state, "clip"), tally.norms, context)
        new_state = _merged({"clip": learned, "combine": combined.state, "server": served.state})
        stats = {**_stats(tally, served.vector), **combined.stats, **served.stats}
        return Step(new_state, served.vector, stats, combined.accepted)

    return Defense(init, step, budget, combine.check)


@dataclass
class _Tally:
    """Counts and norms that the screening collects while the blocks stream by, one number per client."""

    received: int = 0
    clipped: int = 0
    norms: list[float] = field(default_factory=list)

    @property
    def kept(self) -> int:
        return len(self.norms)


def _screened(blocks: Iterable[Block], budget: float, context: Context, tally: _Tally) -> Iterator[ScaledBlock]:
    """Yield each block without its unusable updates, the others clipped to the norm that the server enforces."""
    for block in blocks:
        norms = block.norms()
        kept = norms <= LARGEST_NORM  # false for NaN too
        norms = norms[kept]
        tally.received += block.size
        tally.clipped += int((norms > budget * CLIPPED_BEYOND).sum())
        tally.norms += norms.tolist()  # numbers, because small tensors that outlive a block would fragment the heap
        yield ScaledBlock(block, kept, clip_factors(norms, budget), norms)
        del block  # frees its memory before the next one is computed
    if tally.received == 0:
        raise no_updates(context)


def clip_factors(norms: Tensor, budget: float) -> Tensor:
    """Return min(1, B / norm), elementwise."""
    return torch.where(norms > budget, budget / norms, 1.0)  # never 0 / 0: a norm above the budget is not 0


def _stats(tally: _Tally, delta: Tensor) -> Mapping[str, float]:
    kept, dense, applied = tally.kept, 4.0 * len(delta), float(torch.count_nonzero(delta))
    return {
        "received": float(tally.received),
        "dropped": float(tally.received - kept),
        "clipped": tally.clipped / kept if kept else 0.0,  # share of the kept updates
        "median_norm": median(tally.norms) if kept else 0.0,  # as received, before clipping
        "applied": applied,  # nonzero coordinates of delta
        "upload_bytes": dense,  # per device; a rule that compresses reports less
        "download_bytes": min(dense, 8 * applied),  # per device that had the last model: index and value, or everything
    }


def _merged(parts: Mapping[str, State]) -> State:
    return {f"{scope}.{name}": tensor for scope, part in parts.items() for name, tensor in part.items()}


def _part(state: State, scope: str) -> State:
    return {name.removeprefix(f"{scope}."): t for name, t in state.items() if name.startswith(f"{scope}.")}


def no_updates(context: Context) -> ConfigError:
    """Return the error for a round without a single update: not even the number of coordinates is known."""
    return ConfigError(f"round {context.round} brought no updates at all: a round needs at least one client")


def require_clip_norm(clip_norm: float) -> None:
    require(clip_norm > 0, f"clip_norm is {clip_norm}, but an update must be allowed some length: choose clip_norm > 0")


def require_rho(rho: float) -> None:
    require(
        0 <= rho < 1,
        f"rho is {rho}, but momentum must forget: choose 0 <= rho < 1 (0 is no momentum, the paper has 0.9)",
    )


def scaled_budget(clip_norm: float, lr: float) -> float:
    """Return L * lr; an infinite L stays infinite even at lr = 0."""
    return clip_norm if math.isinf(clip_norm) else clip_norm * lr
