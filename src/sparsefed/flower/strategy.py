"""`Strategy`: any rule of this project, with its memory, as a strategy of Flower.

    strategy = Strategy("sparsefed", k=1000, clip_norm=5.0, lr=0.1, folder="runs/live")
    strategy.start(grid=grid, initial_arrays=ArrayRecord(model.state_dict()), num_rounds=100)

Rounds give the same numbers, bit for bit, as a simulation of the same updates. A reply that is wrong, hostile, late or
missing is refused by name, and the round goes on with the rest. With a folder, a run that was ended at any moment is
continued by the next one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result
from flwr.serverapp.strategy import Strategy as FlowerStrategy
from torch import Tensor

from sparsefed.core.errors import ConfigError, quoted, unknown
from sparsefed.core.federation import SAMPLING, Sampling
from sparsefed.core.round import RoundReport
from sparsefed.core.schedule import Schedule
from sparsefed.core.types import Defense
from sparsefed.defenses import DEFENSES, Rule, as_rule, rule_info
from sparsefed.defenses.modes import Mode, PresetName
from sparsefed.flower.evaluation import medians
from sparsefed.flower.leader import Secure
from sparsefed.flower.records import metric_record
from sparsefed.flower.session import Session
from sparsefed.trackers import Tracker

Sends = Literal["update", "model"]
Root = Callable[[Tensor, int], Tensor]  # the model [d] and the round -> the server's own update [d]


@dataclass(frozen=True)
class Options:
    """The settings of a deployment, apart from the rule."""

    lr: float | Schedule = 1.0
    sends: Sends = "update"
    mode: Mode | None = None
    preset: PresetName = "paper"
    local_steps: float = 1
    seed: int | None = None
    cohort: int | None = None
    spare: int = 0
    quorum: int | None = None
    nodes: int | None = None
    deadline: float | None = None
    patience: float = 600.0
    retries: int = 2
    sampling: str = "uniform"
    weight_cap: float | None = None
    root: Root | None = None
    evaluate_share: float = 0.0
    block_mb: int | None = None
    folder: str | Path | None = None
    checkpoint_every: int = 1
    trackers: tuple[Tracker, ...] = ()
    on_round: Callable[[RoundReport], None] = lambda report: None  # noqa: ARG005
    table: Mapping[str, Any] | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    red_team: bool = False
    secure: Secure | None = None
    poll: float = 0.5

    def __post_init__(self) -> None:
        if self.sends not in ("update", "model"):
            raise ConfigError(unknown("value of sends", str(self.sends), ("update", "model")))
        if self.sampling not in SAMPLING:
            raise ConfigError(unknown("sampling", self.sampling, SAMPLING))
        for name, least in (("cohort", 1), ("spare", 0), ("quorum", 1), ("nodes", 1), ("retries", 0)):
            _check_whole(name, getattr(self, name), least)
        for name in ("deadline", "patience"):
            seconds = getattr(self, name)
            if seconds is not None and not (math.isfinite(seconds) and seconds > 0):
                raise ConfigError(f"{name} is {quoted(seconds)}, but must be a number of seconds above 0")
        if not 0 <= self.evaluate_share <= 1:
            raise ConfigError(f"evaluate_share is {self.evaluate_share}, but is a share of the nodes: 0 to 1")
        if self.cohort and self.quorum and self.quorum > self.cohort:
            raise ConfigError(f"quorum is {self.quorum}, but a round has a cohort of {self.cohort}; ask for no more")

    @property
    def usual_mode(self) -> Mode:
        """The mode: the given one; else models include the learning rate, and updates are gradients."""
        return self.mode or ("fedavg" if self.sends == "model" else "uncompressed")

    @property
    def sample(self) -> Sampling:
        return SAMPLING[self.sampling]

    def rate(self, round: int) -> float:
        """Return the learning rate of a round."""
        return self.lr(round) if callable(self.lr) else self.lr


def _check_whole(name: str, value: object, least: int) -> None:
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < least):
        raise ConfigError(f"{name} is {quoted(value)}, but must be a whole number from {least} on")


class Strategy(FlowerStrategy):
    """A strategy of Flower that aggregates with a rule of this project and refuses what it cannot use.

    Args:
        rule: a rule such as `sparsefed.defenses.krum(f=2)`, the name of one, or a function that builds one.
        lr: the learning rate, or a function from the round to it.
        sends: what clients reply with: "update" (`before - after`, exact) or "model" (as FedAvg's clients do).
        mode: whether updates are gradients, which the server multiplies by lr ("uncompressed"), or include the learning
            rate already ("fedavg"); by default the latter if clients send models.
        preset: which interpretation of the paper to follow.
        local_steps: steps that a device takes in a round, for rules whose clip norm grows with it.
        seed: of cohorts and randomised rules; by default drawn by the operating system, so that no client knows it.
        cohort: nodes whose updates a round uses; by default all that are connected.
        spare: nodes that are asked beyond the cohort; the round uses the first to reply.
        quorum: the fewest usable replies with which a round counts; by default more than half of the cohort.
        nodes: the fewest connected nodes with which a round begins; by default the cohort (2 if there is none).
        deadline: seconds that a round waits for replies; by default the `timeout` of `start`.
        patience: seconds that a round waits for nodes to connect before the run ends, with a checkpoint.
        retries: how often a round without a quorum is repeated before the run ends.
        sampling: how cohorts are drawn: "uniform", or "epoch" (everybody once before anybody twice).
        weight_cap: weigh updates by `num-examples`, but by no more than this; by default all count the same.
        root: computes the server's own update from (model, round), for rules that compare with one.
        evaluate_share: the share of the connected nodes that evaluate the model after each round.
        block_mb: add updates in blocks of this size, as a simulation with this `train.memory_mb` does, which gives the
            same bits as it; by default one at a time, in the memory of one.
        folder: the run folder; a run in it is continued. Without one nothing is saved.
        checkpoint_every: rounds between checkpoints.
        trackers: further destinations of the metrics.
        on_round: called with the report of every round.
        secure: add up updates that the server does not see, with a helper: `sparsefed.flower.Secure`.
        red_team: announce to the clients that this is a rehearsal, in which `red_team` mods may attack.
        settings: further fields of `Options`, and the parameters of a rule given by name.

    Raises:
        ConfigError: if something does not fit; the message says what is allowed.
    """

    def __init__(
        self,
        rule: Rule | str | Callable[..., Any] | Defense,
        *,
        lr: float | Schedule = 1.0,
        sends: Sends = "update",
        mode: Mode | None = None,
        seed: int | None = None,
        cohort: int | None = None,
        spare: int = 0,
        quorum: int | None = None,
        nodes: int | None = None,
        deadline: float | None = None,
        weight_cap: float | None = None,
        root: Root | None = None,
        folder: str | Path | None = None,
        trackers: Iterable[Tracker] = (),
        **settings: Any,
    ) -> None:
        known = {name: settings.pop(name) for name in Options.__dataclass_fields__ if name in settings}
        self.rule = as_rule(rule, **settings)
        given = (lr, sends, mode, seed, cohort, spare, quorum, nodes, deadline, weight_cap, root, folder)
        names = ("lr", "sends", "mode", "seed", "cohort", "spare", "quorum", "nodes", "deadline", "weight_cap")
        named: dict[str, Any] = dict(zip((*names, "root", "folder"), given, strict=True))
        self.options = Options(**named, trackers=tuple(trackers), **known)
        _check_rule(self.rule, self.options)
        self._session: Session | None = None

    # --- Flower's own interface --------------------------------------------------------------------------------------

    def summary(self) -> None:
        """Log the rule and the settings."""
        Session.announce(self.rule, self.options)

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Train for rounds up to `num_rounds`; a run in the folder is continued from its last checkpoint.

        Args:
            grid: the connection to the nodes.
            initial_arrays: the model to begin with, for instance `ArrayRecord(model.state_dict())`.
            num_rounds: the number of the last round.
            timeout: seconds that a round waits for replies, unless `deadline` is set.
            train_config: sent to clients with every request to train.
            evaluate_config: sent to clients with every request to evaluate.
            evaluate_fn: evaluates the model on the server, after every round.

        Returns:
            The final model and the metrics of the rounds, as Flower's strategies return them.

        Raises:
            RunError: too few nodes or replies, after all waiting; the folder holds a checkpoint of the last round.
        """
        self.summary()
        session = self._open(initial_arrays, timeout)
        session.configure(train_config, evaluate_config, evaluate_fn)
        return session.run(grid, num_rounds)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the requests of a round, for a loop that is not `start`."""
        session = self._session or self._open(arrays, 3600.0)
        session.configure(config, None, None)
        return session.requests(grid, server_round)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Return the new model and the metrics of a round; without a quorum the model stays as it is."""
        if self._session is None:
            raise ConfigError("aggregate_train came before configure_train, so the model is not known; call that first")
        metrics = self._session.aggregate(server_round, replies)
        return self._session.arrays(), metric_record(metrics)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the requests to evaluate the model, to a share of the nodes."""
        session = self._session or self._open(arrays, 3600.0)
        return session.evaluations(grid, server_round, config)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:  # noqa: ARG002
        """Return the median of each metric over the nodes, so that a minority cannot move it far."""
        metrics = medians(replies)
        return metric_record(metrics) if metrics else None

    # --- state -------------------------------------------------------------------------------------------------------

    @property
    def session(self) -> Session:
        """The training session: the server with its state, the roster and the account of refusals."""
        if self._session is None:
            raise ConfigError("the strategy has not started yet")
        return self._session

    def _open(self, arrays: ArrayRecord, timeout: float) -> Session:
        self._session = Session(self.rule, self.options, arrays, self.options.deadline or timeout)
        return self._session


def _check_rule(rule: Rule, options: Options) -> None:
    info = rule_info(rule.function)
    if options.weight_cap is not None and (not info.weights or rule.parameters.get("pre")):
        raise ConfigError(f"{rule} weighs updates by its own rule, so weight_cap cannot be given; leave it out")
    if options.secure is not None:
        _check_secure(rule, options)
    if "root" in info.needs and options.root is None:
        raise ConfigError(f"{rule} compares with an update of the server's own: give root, (model, round) -> update")


def _check_secure(rule: Rule, options: Options) -> None:
    """Refuse what needs more than the sum of updates whose norms are proven."""
    info = rule_info(rule.function)
    if not info.weights or rule.parameters.get("pre"):
        sums = ", ".join(name for name, other in DEFENSES.items() if rule_info(other).weights)
        raise ConfigError(f"{rule} needs single updates, but secure aggregation has sums alone; rules for it: {sums}")
    if rule.parameters.get("clip") == "quantile":
        raise ConfigError("clip = 'quantile' needs the norms of updates, which secure aggregation hides; use 'fixed'")
    if options.sends != "update" or options.weight_cap is not None or options.spare:
        raise ConfigError(
            "secure aggregation adds up whole updates of the same weight: leave out sends, weight_cap, spare"
        )
