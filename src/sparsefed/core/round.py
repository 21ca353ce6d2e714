"""One round, and the loop: cohort -> updates -> one direction -> new model.

Knows no TOML, no command line, no paper. All state goes in and comes out as a value: a checkpoint is a copy of a
`ServerState`, and going on from one is the same run.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sparsefed.core.engine import ONE_STEP, Cohort, Engine, LocalPlan, LocalStep, one_step, turns
from sparsefed.core.federation import Federation
from sparsefed.core.metrics import reach
from sparsefed.core.rng import integer_seed
from sparsefed.core.schedule import Schedule
from sparsefed.core.threat import Attack, Knowledge
from sparsefed.core.types import Batch, Block, Context, Defense, IntArray, State, Step
from sparsefed.kernels.blocks import RowsBlock

Metrics = Mapping[str, Any]

UNREPORTED = ("received", "median_norm")  # a defense's numbers that the round reports in words of its own


@dataclass(frozen=True)
class ServerState:
    """Everything that changes from round to round."""

    round: int  # rounds done
    theta: Tensor  # float32 [d]
    defense: State


@dataclass(frozen=True)
class RoundSetup:
    """Everything that does not."""

    federation: Federation
    engine: Engine
    defense: Defense
    schedule: Schedule
    device_lr: bool  # FedAvg mode: the update a device sends holds the learning rate already
    weight_decay: float
    seed: int
    attack: Attack | None = None
    gradient: Callable[[Tensor, Tensor, Tensor], Tensor] | None = None  # what attackers differentiate with
    layers: tuple[int, ...] = ()  # coordinates of each parameter tensor
    root: Batch | None = None  # examples that the server holds, where the defense asks for an update on them
    plan: LocalPlan = ONE_STEP  # how many local steps a device takes; several need `device_lr`
    local_lr: float | None = None  # the rate of a device's own steps; None: lambda(t)


@dataclass(frozen=True)
class RoundReport:
    """What one round did. `metrics` is what a run writes down; `seconds` is the only part that is not reproducible."""

    state: ServerState
    metrics: Metrics
    seconds: float


def start(setup: RoundSetup, theta: Tensor) -> ServerState:
    """The state before round 1."""
    return ServerState(0, theta, setup.defense.init(len(theta)))


def run_round(setup: RoundSetup, state: ServerState) -> RoundReport:
    """One round: gather the cohort's updates, honest and not, let the defense combine them, subtract."""
    began = time.perf_counter()
    round, federation = state.round + 1, setup.federation
    context = _context(setup, state.theta, round)
    ids = federation.cohort(round)
    hostile = federation.attackers(ids, round) if setup.attack else np.zeros(len(ids), bool)
    watch = _Watch()
    step = setup.defense.step(
        state.defense, _blocks(setup, state, ids[~hostile], ids[hostile], context, watch), context
    )
    after = ServerState(round, state.theta - step.delta, step.state)
    budget = setup.defense.budget(state.defense, context)
    metrics = {
        "round": round,
        "lr": context.lr,
        "cohort": len(ids),
        "attackers": int(hostile.sum()),
        "honest_norm": watch.honest,
        "honest_longest": watch.longest,
        "attacker_norm": watch.hostile,
        "budget": budget if math.isfinite(budget) else None,
        "update_norm": float(torch.linalg.vector_norm(step.delta, dtype=torch.float64)),
        **_reach(setup, watch, step, context),
        **{name: value for name, value in step.stats.items() if name not in UNREPORTED},
    }
    return RoundReport(after, metrics, time.perf_counter() - began)


def simulate(
    setup: RoundSetup,
    state: ServerState,
    rounds: int,
    evaluate: Callable[[Tensor], Metrics] | None = None,
    every: int = 1,
) -> Iterator[RoundReport]:
    """Rounds `state.round + 1` to `rounds`, a report each; every so often, and after the last, with an evaluation."""
    while state.round < rounds:
        report = run_round(setup, state)
        state = report.state
        if evaluate is not None and (state.round % every == 0 or state.round == rounds):
            report = RoundReport(state, {**report.metrics, **evaluate(state.theta)}, report.seconds)
        yield report


# --- the updates of a round ------------------------------------------------------------------------------------------


@dataclass
class _Watch:
    """The norms that went by, as sent, and what the attackers' updates add up to, each cut to the enforced norm."""

    honest: float | None = None  # median
    longest: float | None = None  # of the honest: above the enforced norm, clipping cut somebody honest
    hostile: float | None = None
    theirs: Tensor | None = None  # [d]


def _reach(setup: RoundSetup, watch: _Watch, step: Step, context: Context) -> Metrics:
    """What the attackers of the round got into the model; nothing where nobody attacked."""
    kept = step.stats.get("received", 0) - step.stats.get("dropped", 0)
    if watch.theirs is None or kept <= 0:
        return {}
    found = reach(step.delta, watch.theirs * ((1.0 if setup.device_lr else context.lr) / kept))
    return {} if found is None else {"attack_landed": found.landed, "attack_share": found.share}


class _Watched:
    """A block whose norms are computed once, for the defense and for the report."""

    def __init__(self, block: Block) -> None:
        self._block, self._norms = block, block.norms()
        self.size, self.senders = block.size, block.senders
        self.weighted_sum, self.rows = block.weighted_sum, block.rows

    def norms(self) -> Tensor:
        return self._norms


def _context(setup: RoundSetup, theta: Tensor, round: int) -> Context:
    """The public facts of a round, with the server's own update where there are examples for it."""
    context = Context(round, setup.schedule(round), setup.seed, theta, setup.layers)
    root = setup.root
    if root is None:
        return context
    cohort = Cohort(np.zeros(1, np.int64), root.sizes, lambda ids: root)  # noqa: ARG005
    (block,) = setup.engine(theta, cohort, _local_step(setup, context))
    return context._replace(root=block.rows()[0])


def _local_step(setup: RoundSetup, context: Context) -> LocalStep:
    seed = integer_seed(setup.seed, "layers", context.round)
    return LocalStep(_rate(setup, context), setup.weight_decay, seed, setup.plan)


def _rate(setup: RoundSetup, context: Context) -> float:
    """Of a device's first step; 1 where the server owns the rate."""
    if not setup.device_lr:
        return 1.0
    return context.lr if setup.local_lr is None else setup.local_lr


def _blocks(
    setup: RoundSetup, state: ServerState, honest: IntArray, hostile: IntArray, context: Context, watch: _Watch
) -> Iterator[Block]:
    federation, theta = setup.federation, state.theta
    norms: list[float] = []
    seen: list[Tensor] = []  # what the attackers see of the others, where they do
    attack = setup.attack if len(hostile) else None
    if len(honest):
        cohort = Cohort(honest, federation.sizes(honest), partial(federation.training, round=context.round))
        for block in setup.engine(theta, cohort, _local_step(setup, context)):
            watched = _Watched(block)
            norms += watched.norms().tolist()
            if attack is not None and "honest updates" in attack.needs:
                seen.append(watched.rows())
            yield watched
            del block, watched  # its memory must be free while the next one is computed
        watch.honest, watch.longest = median(norms), float(np.max(norms))  # NaN if one is
    if attack is not None and setup.gradient is not None:
        update = attack(_knowledge(setup, attack, state, context, len(honest), hostile, seen))
        sent = _Watched(RowsBlock(update.expand(len(hostile), -1), hostile))
        watch.hostile = float(sent.norms().median())
        watch.theirs = _summed(sent, setup.defense.budget(state.defense, context))
        yield sent


def _summed(sent: _Watched, budget: float) -> Tensor | None:
    norms = sent.norms()
    usable = torch.isfinite(norms)
    factors = torch.where(usable, torch.where(norms > budget, budget / norms, 1.0), 0.0)
    return sent.weighted_sum(factors) if bool(usable.any()) else None


def _knowledge(
    setup: RoundSetup,
    attack: Attack,
    state: ServerState,
    context: Context,
    honest: int,
    hostile: IntArray,
    seen: list[Tensor],
) -> Knowledge:
    """The public facts, and of the rest what the attack said it needs: whether it may is settled before a run."""
    defense, needs = setup.defense, attack.needs
    assert setup.gradient is not None
    remembered = state.defense if "server state" in needs else defense.init(len(state.theta))

    def serve(rows: Tensor) -> Tensor:
        return defense.step(remembered, [RowsBlock(rows)], context).delta

    return Knowledge(
        context.round,
        state.theta,
        defense.budget(state.defense, context),
        setup.gradient,
        setup.seed,
        attackers=len(hostile),
        scale=_total_rate(setup, context, hostile),
        cohort=honest + len(hostile),
        own=setup.federation.gather(hostile) if "own data" in needs else None,
        honest=torch.cat(seen) if "honest updates" in needs and seen else None,
        serve=serve if "defense" in needs else None,
        server=state.defense if "server state" in needs else None,
        train=_trainer(setup, state.theta, context, hostile),
    )


def _total_rate(setup: RoundSetup, context: Context, hostile: IntArray) -> float:
    """The rates of a device's steps added up, on average over the attackers: what multiplies a gradient that stays."""
    step, sizes = _local_step(setup, context), setup.federation.sizes(hostile)
    if one_step(step.plan, sizes):
        return step.scale
    return float(np.mean([sum(turn.rate for turn in turns(step, 0, size)) for size in sizes.tolist()]))


def _trainer(setup: RoundSetup, theta: Tensor, context: Context, hostile: IntArray) -> Callable[[Batch], Tensor] | None:
    """What the attackers would send, had they these examples and were they honest; None where that is one gradient."""
    step = _local_step(setup, context)
    if one_step(step.plan, setup.federation.sizes(hostile)):
        return None

    def train(batch: Batch) -> Tensor:
        rows = torch.empty(len(batch.sizes), len(theta))
        place = {int(device): row for row, device in enumerate(hostile)}
        stops = np.cumsum(batch.sizes)

        def gather(ids: IntArray) -> Batch:
            members = np.array([place[int(device)] for device in ids])
            index = torch.from_numpy(np.concatenate([np.arange(stops[i] - batch.sizes[i], stops[i]) for i in members]))
            return Batch(batch.x[index], batch.y[index], batch.sizes[members])

        for block in setup.engine(theta, Cohort(hostile, batch.sizes, gather), step):
            rows[[place[int(device)] for device in block.senders]] = block.rows()
        return rows

    return train
