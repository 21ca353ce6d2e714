"""The source of a certificate: a config or a run folder, its server as the theory sees it, the numbers of every round.

Covered is the mean of updates that the server clips, applied as it is (`clipping`) or through global top-k with an
error memory (`sparsefed`), with server momentum or without, where every honest device takes one gradient step. Other
servers are refused, each with its reason.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from sparsefed import config as configs
from sparsefed import data, runs
from sparsefed.commands.common import Subject
from sparsefed.config import BuiltSimulation, Config
from sparsefed.config.lookup import regime, rule
from sparsefed.core.engine import one_step
from sparsefed.core.errors import ConfigError, RunError
from sparsefed.core.types import Arrays, Context, RunRecord
from sparsefed.defenses import CommonOptions
from sparsefed.kernels.topk import coordinates
from sparsefed.theory.threat_schedule import ThreatSchedule

COVERED = "covered are sparsefed and clipping (a mean of clipped updates, one local step a device)"
WHY = {
    "fetchsgd": "it recovers what it applies from a sketch, which is not top-k",
    "dp_noise": "its noise is not bounded",
    "crfl": "it adds noise to the model and clips it, which the theory leaves out",
    "local_topk": "each device keeps a memory of its own, and the theory has one, at the server",
}


class CoveredServer(NamedTuple):
    """A covered server: how it applies the mean of the clipped updates."""

    k: int | None  # None: it applies every coordinate
    rho: float  # of the momentum that reaches the model
    inside: bool  # the learning rate is already in what the server receives or remembers


class Round(NamedTuple):
    """The numbers of a round that a certificate needs."""

    lr: float  # lambda(t)
    budget: float  # the l2 norm that the server enforces; inf: none
    cohort: int
    attackers: int
    omega: float | None = None  # the share of l1 mass that top-k left, where the run wrote it down
    longest: float | None = None  # the largest l2 norm of an honest update before clipping, likewise


@dataclass(frozen=True)
class CertificateSource:
    """The source of a certificate: a config or a run, with its data and rounds."""

    label: str  # its path, or the name of a config that has none
    config: Config
    server: CoveredServer
    arrays: Arrays
    experiment: BuiltSimulation
    rounds: tuple[Round, ...]
    run: RunRecord | None = None
    final: Tensor | None = None  # float32 [d], the model of the run's last round

    @property
    def name(self) -> str:
        return self.run.name if self.run else self.config.name or self.label

    @property
    def d(self) -> int:
        return len(self.experiment.theta)

    @property
    def attacked(self) -> bool:
        """Return whether the source is a run with attackers."""
        return self.run is not None and any(each.attackers for each in self.rounds)

    @property
    def finished(self) -> bool:
        return len(self.rounds) == self.config.rounds

    @property
    def longest(self) -> list[float] | None:
        """Return the longest update of each round before clipping, if a run without attackers recorded them all."""
        known = [each.longest for each in self.rounds if each.longest is not None]
        return None if self.attacked or len(known) < len(self.rounds) else known

    def exceeds(self, schedule: ThreatSchedule) -> bool:
        """Return whether this was run with more attackers, in some round, than the schedule has."""
        pairs = zip(self.rounds, schedule.lines, strict=True)
        return self.run is not None and any(each.attackers > line.share * each.cohort + 1e-9 for each, line in pairs)

    def factors(self, each: Round) -> tuple[float, float, float]:
        """Return a round's factors, one of which is its rate: of gradients, of clipped updates, of what is applied."""
        train = self.config.train
        if train.mode == "fedavg":
            return each.lr if train.local_lr is None else train.local_lr, 1.0, 1.0
        return (1.0, each.lr, 1.0) if self.server.inside else (1.0, 1.0, each.lr)


# --- from a subject to its source ------------------------------------------------------------------------------------


def read(subject: Subject, overrides: Sequence[str] = ()) -> CertificateSource:
    """Read a config, its table, its file, or a run folder for its certificate; refuse what the theory leaves out."""
    if not isinstance(subject, str | Path):
        config = configs.as_config(subject)
        return _source(config.name or "this config", config)
    path = Path(subject)
    if not path.is_dir():
        return _source(str(path), configs.read(path, overrides))
    if overrides:
        raise ConfigError(f"{path} is a run, which was what it was; --set is for configs: give {path / runs.CONFIG}")
    record = runs.load_run(path)
    if not record.rows:
        raise RunError(f"{path} has no finished round yet; certify its config: {path / runs.CONFIG}")
    state = runs.load_state(path)
    final = state.theta if state is not None and state.round == len(record.rows) else None
    return _source(str(path), configs.of_run(record.config, path), record, final)


def _source(label: str, config: Config, run: RunRecord | None = None, final: Tensor | None = None) -> CertificateSource:
    server_of(config)  # raises for unsupported servers before anything is loaded
    arrays = data.load(configs.dataset(config))
    experiment = configs.build(config, lambda _: arrays, computing="cpu")
    setup, server = experiment.setup, server_of(config, len(experiment.theta))
    # How many local steps a device takes depends on how much data it has.
    if setup.device_lr and not one_step(setup.plan, np.diff(setup.federation.partition.offsets)):
        _refuse("several local steps", "the bound on how an honest update changes with the model is for one gradient")
    if setup.weigh is not None:
        _refuse("data weights", "the bounds count attackers, each of which has the weight of any other device")
    if setup.worker_momentum is not None:
        _refuse("worker momentum", "an update then depends on earlier models, not on the last one alone")
    rounds = _dealt(experiment) if run is None else map(_recorded, run.rows)
    return CertificateSource(label, config, server, arrays, experiment, tuple(rounds), run, final)


def with_model(source: CertificateSource, trained: Path | str) -> CertificateSource:
    """Return a config's source with the model of a finished run without attackers, and the lengths of its updates."""
    state, rows = runs.load_state(Path(trained)), runs.load_run(Path(trained)).rows
    if state is None or state.round < source.config.rounds:
        raise RunError(f"{trained} is not finished; go on with `sparsefed resume {trained}`")
    pairs = zip(source.rounds, map(_recorded, rows), strict=True)
    rounds = tuple(each._replace(longest=measured.longest) for each, measured in pairs)
    return replace(source, rounds=rounds, final=state.theta)


def _recorded(row: Mapping[str, Any]) -> Round:
    budget, omega, longest = (
        None if row.get(key) is None else float(row[key]) for key in ("budget", "omega", "honest_longest")
    )
    known = math.inf if budget is None else budget
    return Round(float(row["lr"]), known, int(row["cohort"]), int(row["attackers"]), omega, longest)


def _dealt(experiment: BuiltSimulation) -> Iterator[Round]:
    """Yield the rounds as the config's seed draws them; nothing is trained."""
    setup = experiment.setup
    federation = setup.federation
    for t in range(1, experiment.config.rounds + 1):
        lr, ids = setup.schedule(t), federation.cohort(t)
        attackers = int(federation.attackers(ids, t).sum()) if setup.attack else 0
        yield Round(lr, setup.defense.budget({}, Context(t, lr)), len(ids), attackers)


# --- the servers that the theory covers ------------------------------------------------------------------------------


def server_of(config: Config, d: int = 2**62) -> CoveredServer:
    """Return the server of a config that the theory covers, or raise an error with the reason; of d, k is a share."""
    name = config.defense.name
    params = {**rule(name).usual, **regime(config), **config.defense.params}
    if name not in ("clipping", "mean", "undefended", "sparsefed"):
        _refuse(f"defense {name}", WHY.get(name, "it is not the mean of clipped updates"))
    common = CommonOptions(**{key: value for key, value in params.items() if key in CommonOptions.__dataclass_fields__})
    if common.pre:
        _refuse(f"pre-aggregation ({common.pre})", "what is averaged then is not the updates that were clipped")
    if common.clip_norm is None or not math.isfinite(common.clip_norm):
        _refuse(f"defense {name} without a clip norm", "one update can be as long as it likes, so nothing is bounded")
    if common.clip == "quantile":
        _refuse("clip = 'quantile'", "the clip norm depends on what attackers send")
    inside = config.train.mode == "fedavg" or common.reading.lr == "inside"
    if name != "sparsefed":
        return CoveredServer(None, common.rho, inside)
    feedback = params.get("feedback") or common.reading.feedback
    masking = params.get("masking") or common.reading.masking
    rho = common.rho if feedback == "momentum" else 0.0  # the update is remembered, and momentum has no effect
    if rho > 0 and masking == "subtract":
        _refuse("masking = 'subtract'", "what it leaves in the momentum is not bounded by what the proof uses")
    return CoveredServer(coordinates(params["k"], d), rho, inside)


def _refuse(what: str, why: str) -> None:
    raise ConfigError(f"{what} has no certificate: {why}; {COVERED}")
