"""One round, and the loop over rounds: cohort -> updates -> one direction -> new model.

Knows no TOML, no command line, no paper. State is passed in and returned as a value: a checkpoint is a copy of a
`ServerState`, and continuing from one gives the same run.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sparsefed.core.device import exactly, initial_state
from sparsefed.core.engine import ONE_STEP, Cohort, Engine, LocalPlan, LocalStep, RoundUse, one_step, turns
from sparsefed.core.errors import ConfigError
from sparsefed.core.federation import Federation
from sparsefed.core.metrics import reach, rejected, unusable_notice
from sparsefed.core.rng import integer_seed
from sparsefed.core.schedule import Schedule
from sparsefed.core.threat import Attack, BoolArray, Forgery, Knowledge
from sparsefed.core.types import Batch, Block, Context, Defense, IntArray, State, Step
from sparsefed.core.worker_momentum import averaged
from sparsefed.kernels.blocks import RowsBlock

Metrics = Mapping[str, Any]
Floats = npt.NDArray[np.float64]
Weights = Mapping[int, float]  # of updates, by device; empty: all weigh alike

log = logging.getLogger(__name__)
UNREPORTED = ("received", "median_norm")  # statistics of a defense that the round reports under its own names


@dataclass(frozen=True)
class ServerState:
    """The part of a simulation that changes from round to round."""

    round: int  # rounds done
    theta: Tensor  # float32 [d]
    defense: State
    devices: State = field(default_factory=dict)  # worker momentum by device, of those that have taken part


@dataclass(frozen=True)
class RoundSetup:
    """The fixed setup of a simulation: federation, engine, defense, schedule, attack. It never changes."""

    federation: Federation
    engine: Engine
    defense: Defense
    schedule: Schedule
    device_lr: bool  # FedAvg mode: a device's update already includes the learning rate
    weight_decay: float
    seed: int
    attack: Attack | None = None
    gradient: Callable[[Tensor, Tensor, Tensor], Tensor] | None = None  # how attackers compute gradients
    layers: tuple[int, ...] = ()  # coordinates of each parameter tensor
    root: Batch | None = None  # the server's own examples, if the defense needs an update on them
    plan: LocalPlan = ONE_STEP  # how many local steps a device takes; several need `device_lr`
    local_lr: float | None = None  # the rate of a device's own steps; None: lambda(t)
    worker_momentum: float | None = None  # beta; None: devices send the round's update
    weigh: Callable[[Floats], Floats] | None = None  # claimed numbers of examples -> weights; None: all weigh alike


@dataclass(frozen=True)
class RoundReport:
    """The result of one round: the new state and the metrics that a run records.

    `seconds` is the only part that is not reproducible.
    """

    state: ServerState
    metrics: Metrics
    seconds: float

    @property
    def notice(self) -> str:
        """A sentence if unusable updates reduced f (`f_used`) or left the model as it was (`skipped`), else ''."""
        return unusable_notice(self.state.round, self.metrics)


def start(setup: RoundSetup, theta: Tensor) -> ServerState:
    """Return the state before round 1."""
    return ServerState(0, theta, initial_state(setup.defense, len(theta), theta.device))


def run_round(setup: RoundSetup, state: ServerState) -> RoundReport:
    """Run one round: gather the cohort's updates, honest and malicious, aggregate them, subtract the result."""
    began = time.perf_counter()
    context = _context(setup, state.theta, state.round + 1)
    cohort = setup.federation.cohort(context.round)
    hostile = setup.federation.attackers(cohort, context.round) if setup.attack else np.zeros(len(cohort), bool)
    weights = _weights(setup, cohort, hostile)
    honest = _Honest(setup, state, cohort[~hostile], context, weights, keep=_sees_honest(setup, hostile))
    crafted = _Crafted(setup, state, cohort[hostile], context, weights, honest)
    updates = _Updates(chain(honest, crafted))
    with exactly(state.theta.device):
        step = setup.defense.step(state.defense, updates, context)
    updates.require_read()
    after = ServerState(context.round, state.theta - step.delta, step.state, {**state.devices, **honest.averages})
    metrics = _metrics(setup, state, context, step, honest, crafted)
    return RoundReport(after, metrics, time.perf_counter() - began)


def simulate(
    setup: RoundSetup,
    state: ServerState,
    rounds: int,
    evaluate: Callable[[Tensor], Metrics] | None = None,
    every: int = 1,
) -> Iterator[RoundReport]:
    """Run rounds `state.round + 1` to `rounds` and yield the report of each.

    Args:
        setup: the fixed setup of the simulation.
        state: the state to start from.
        rounds: the number of the last round.
        evaluate: computes metrics of a model; they are added to the report every `every` rounds and after the last.
        every: rounds between evaluations.
    """
    noticed = False
    while state.round < rounds:
        report = run_round(setup, state)
        state = report.state
        if report.notice and not noticed:
            noticed = True  # the rounds that follow say so in their metrics
            log.warning("%s", report.notice)
        if evaluate is not None and (state.round % every == 0 or state.round == rounds):
            report = RoundReport(state, {**report.metrics, **evaluate(state.theta)}, report.seconds)
        yield report


# --- the updates of a round ------------------------------------------------------------------------------------------


class _Watched:
    """A block whose norms are computed once, for the defense and for the report."""

    def __init__(self, block: Block, weights: Weights, forgeries: tuple[Forgery, ...] | None = None) -> None:
        self._block, self._norms = block, block.norms()
        self.forgeries = forgeries  # None for honest devices; secure aggregation acts on it, no rule can see it
        each = [weights[device] for device in block.senders.tolist()] if weights else []
        self.weights = torch.tensor(each, dtype=torch.float64) if weights else None
        self.size, self.senders = block.size, block.senders
        self.weighted_sum, self.rows = block.weighted_sum, block.rows
        self.remote = getattr(block, "remote", None)  # the block itself, if its rows are on other machines

    def norms(self) -> Tensor:
        return self._norms


class _Updates:
    """The stream of a round's updates; checks that the defense read all of it, as the attackers come last."""

    def __init__(self, blocks: Iterable[Block]) -> None:
        self._blocks, self._read = blocks, False

    def __iter__(self) -> Iterator[Block]:
        for block in self._blocks:
            yield block
            del block  # its memory must be free while the next one is computed
        self._read = True

    def require_read(self) -> None:
        if not self._read:
            raise ConfigError(
                "the defense did not read all updates of the round, so those at the end, the attackers' among them, "
                "had no part in it; let it go through all of `blocks`"
            )


class _Honest:
    """The honest updates of a round, computed one block at a time, with a record of their norms."""

    def __init__(
        self, setup: RoundSetup, state: ServerState, ids: IntArray, context: Context, weights: Weights, keep: bool
    ) -> None:
        self._setup, self._state, self.ids, self._context = setup, state, ids, context
        self._weights, self._keep = weights, keep
        self.norms: list[float] = []
        self.averages: dict[str, Tensor] = {}  # worker momentum of these devices, after the round
        self.rows: list[Tensor] = []  # only if the attackers may see them

    def __iter__(self) -> Iterator[Block]:
        if not len(self.ids):
            return
        federation, context = self._setup.federation, self._context
        budget = self._setup.defense.budget(self._state.defense, context)
        use = RoundUse(context.round, budget, self._weights, self._keep)
        cohort = Cohort(self.ids, federation.sizes(self.ids), partial(federation.training, round=context.round), use)
        for block in self._setup.engine(self._state.theta, cohort, local_step(self._setup, context)):
            watched = _Watched(self._sent(block), self._weights)
            self.norms += watched.norms().tolist()
            if self._keep:
                self.rows.append(watched.rows())
            yield watched
            del block, watched  # its memory must be free while the next one is computed

    def _sent(self, block: Block) -> Block:
        if self._setup.worker_momentum is None:
            return block
        sent, averages = averaged(block, self._state.devices, self._setup.worker_momentum)
        self.averages |= averages
        return sent


class _Crafted:
    """The attackers' updates of a round, crafted after the honest ones, on which they may depend."""

    def __init__(
        self, setup: RoundSetup, state: ServerState, ids: IntArray, context: Context, weights: Weights, honest: _Honest
    ) -> None:
        self._setup, self._state, self._ids, self._context = setup, state, ids, context
        self._weights, self._honest = weights, honest
        self.norm: float | None = None  # median
        self.total: Tensor | None = None  # [d], the sum of the updates, each clipped to the enforced norm

    def __iter__(self) -> Iterator[Block]:
        setup, state = self._setup, self._state
        if setup.attack is None or setup.gradient is None or not len(self._ids):
            return
        knowledge = _knowledge(setup, setup.attack, state, self._context, self._honest, self._ids)
        update = setup.attack(knowledge)
        rows = RowsBlock(update.expand(len(self._ids), -1), self._ids)
        sent = _Watched(rows, self._weights, setup.attack.forgeries)
        self.norm = float(sent.norms().median())
        self.total = _summed(sent, setup.defense.budget(state.defense, self._context))
        yield sent


def _weights(setup: RoundSetup, cohort: IntArray, hostile: BoolArray) -> Weights:
    """Return the weight of each device, relative to the mean of the cohort; attackers claim any number of examples."""
    if setup.weigh is None:
        return {}
    weights = setup.weigh(np.where(hostile, np.inf, setup.federation.sizes(cohort)))
    return dict(zip(cohort.tolist(), (weights / weights.mean()).tolist(), strict=True))


def _sees_honest(setup: RoundSetup, hostile: BoolArray) -> bool:
    return setup.attack is not None and bool(hostile.any()) and "honest updates" in setup.attack.needs


def _metrics(
    setup: RoundSetup, state: ServerState, context: Context, step: Step, honest: _Honest, crafted: _Crafted
) -> Metrics:
    """Return the metrics that a run records for a round."""
    budget, attackers = setup.defense.budget(state.defense, context), len(crafted._ids)
    return {
        "round": context.round,
        "lr": context.lr,
        "cohort": len(honest.ids) + attackers,
        "attackers": attackers,
        "honest_norm": median(honest.norms) if honest.norms else None,
        "honest_longest": float(np.max(honest.norms)) if honest.norms else None,  # NaN if one is
        "attacker_norm": crafted.norm,
        "budget": budget if math.isfinite(budget) else None,
        "update_norm": float(torch.linalg.vector_norm(step.delta, dtype=torch.float64)),
        **_reach(setup, crafted.total, step, context),
        **{name: value for name, value in step.stats.items() if name not in UNREPORTED},
        **({} if step.accepted is None else rejected(step.accepted, honest=honest.ids, attackers=crafted._ids)),
    }


def _reach(setup: RoundSetup, theirs: Tensor | None, step: Step, context: Context) -> Metrics:
    """Return how far the round's attackers reached the model; empty without an attack."""
    kept = step.stats.get("received", 0) - step.stats.get("dropped", 0)
    if theirs is None or kept <= 0:
        return {}
    reached = reach(step.delta, theirs * ((1.0 if setup.device_lr else context.lr) / kept))
    return {} if reached is None else {"attack_landed": reached.landed, "attack_share": reached.share}


def _context(setup: RoundSetup, theta: Tensor, round: int) -> Context:
    """Return the public facts of a round, with the server's own update if it has examples for one."""
    context = Context(round, setup.schedule(round), setup.seed, theta, setup.layers)
    root = setup.root
    if root is None:
        return context
    cohort = Cohort(np.zeros(1, np.int64), root.sizes, lambda ids: root)  # noqa: ARG005
    with exactly(theta.device):
        (block,) = setup.engine(theta, cohort, local_step(setup, context))
    return context._replace(root=block.rows()[0])


def local_step(setup: RoundSetup, context: Context) -> LocalStep:
    """Return the numbers that define every device's local training in a round."""
    seed = integer_seed(setup.seed, "layers", context.round)
    return LocalStep(_rate(setup, context), setup.weight_decay, seed, setup.plan)


def _rate(setup: RoundSetup, context: Context) -> float:
    """Return the rate of a device's first step; 1 if the server owns the rate."""
    if not setup.device_lr:
        return 1.0
    return context.lr if setup.local_lr is None else setup.local_lr


def _summed(sent: _Watched, budget: float) -> Tensor | None:
    norms = sent.norms()
    usable = torch.isfinite(norms)
    factors = torch.where(usable, torch.where(norms > budget, budget / norms, 1.0), 0.0)
    factors = factors if sent.weights is None else factors * sent.weights
    return sent.weighted_sum(factors) if bool(usable.any()) else None


def _knowledge(
    setup: RoundSetup, attack: Attack, state: ServerState, context: Context, honest: _Honest, hostile: IntArray
) -> Knowledge:
    """Return the public facts and what the attack declared it needs; the grant is checked before a run."""
    defense, needs = setup.defense, attack.needs
    assert setup.gradient is not None

    def serve(rows: Tensor) -> Tensor:
        remembered = state.defense if "server state" in needs else start(setup, state.theta).defense
        return defense.step(remembered, [RowsBlock(rows)], context).delta

    return Knowledge(
        context.round,
        state.theta,
        defense.budget(state.defense, context),
        setup.gradient,
        setup.seed,
        attackers=len(hostile),
        scale=_total_rate(setup, context, hostile),
        cohort=len(honest.ids) + len(hostile),
        own=setup.federation.gather(hostile) if "own data" in needs else None,
        honest=torch.cat(honest.rows) if honest.rows else None,
        serve=serve if "defense" in needs else None,
        server=state.defense if "server state" in needs else None,
        train=_trainer(setup, state.theta, context, hostile),
    )


def _total_rate(setup: RoundSetup, context: Context, hostile: IntArray) -> float:
    """Return the sum of a device's step rates, averaged over the attackers: the factor on a constant gradient.

    Momentum beta makes the t-th step 1 + beta + ... + beta^(t-1) times as long. Adam's steps have another direction:
    the sum of its rates is the scale that is left.
    """
    step, sizes = local_step(setup, context), setup.federation.sizes(hostile)
    if one_step(step.plan, sizes):
        return step.scale
    return float(np.mean([_travelled(step, size) for size in sizes.tolist()]))


def _travelled(step: LocalStep, size: int) -> float:
    total, speed = 0.0, 0.0
    for turn in turns(step, 0, size):
        speed = 1 + step.plan.momentum * speed
        total += turn.rate * speed
    return total


def _trainer(setup: RoundSetup, theta: Tensor, context: Context, hostile: IntArray) -> Callable[[Batch], Tensor] | None:
    """Return a function that trains the attackers honestly on given examples, or None if that is one gradient."""
    step = local_step(setup, context)
    if one_step(step.plan, setup.federation.sizes(hostile)):
        return None

    def train(batch: Batch) -> Tensor:
        rows = theta.new_empty(len(batch.sizes), len(theta))
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
