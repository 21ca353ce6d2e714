"""A config or a run folder, read for its certificate: what was built, and the numbers of every round."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from sparsefed import config as configs
from sparsefed import data, runs
from sparsefed.commands.certify.supported import refuse_several_steps, server_of
from sparsefed.config import Config, Experiment
from sparsefed.core.errors import ConfigError, RunError
from sparsefed.core.types import Arrays, Context, RunRecord
from sparsefed.theory.threat_schedule import ThreatSchedule


class Round(NamedTuple):
    """What a round is to the certificate."""

    lr: float  # lambda(t)
    budget: float  # the l2 norm that the server enforces; inf: none
    cohort: int
    attackers: int
    omega: float | None = None  # the share of l1 mass that top-k left, where the run wrote it down
    longest: float | None = None  # the largest l2 norm of an honest update before clipping, likewise


@dataclass(frozen=True)
class Source:
    """What is certified."""

    path: Path
    config: Config
    arrays: Arrays
    experiment: Experiment
    rounds: tuple[Round, ...]
    run: RunRecord | None = None
    final: Tensor | None = None  # float32 [d], the model of the run's last round

    @property
    def name(self) -> str:
        return self.run.name if self.run else self.config.name or self.path.stem

    @property
    def d(self) -> int:
        return len(self.experiment.theta)

    @property
    def attacked(self) -> bool:
        """Whether it is a run in which somebody attacked."""
        return self.run is not None and any(each.attackers for each in self.rounds)

    def exceeds(self, protocol: ThreatSchedule) -> bool:
        """Whether this was run with more attackers, in some round, than the protocol has."""
        pairs = zip(self.rounds, protocol.lines, strict=True)
        return self.run is not None and any(each.attackers > line.share * each.cohort + 1e-9 for each, line in pairs)

    @property
    def finished(self) -> bool:
        return len(self.rounds) == self.config.rounds


def read(path: Path, overrides: Sequence[str] = (), trained: Path | None = None) -> Source:
    """The source that a path names: a folder is a run, anything else a config, which may have been `trained`, without
    attackers, into a run folder."""
    if not path.is_dir():
        return of_config(configs.read(path, overrides), path, trained)
    if overrides:
        raise ConfigError(f"{path} is a run, which was what it was; --set is for configs: give {path / runs.CONFIG}")
    return _read_run(path)


def of_config(config: Config, path: Path, trained: Path | None = None) -> Source:
    """Return the source that a config is; `path` is what messages call it."""
    arrays, experiment = _built(config)
    source = Source(path, config, arrays, experiment, tuple(_dealt(experiment)))
    return source if trained is None else _with_model(source, trained)


def _read_run(folder: Path) -> Source:
    record = runs.load_run(folder)
    if not record.rows:
        raise RunError(f"{folder} has no finished round yet; certify its config: {folder / runs.CONFIG}")
    config = configs.parse(record.config, source=str(folder / runs.CONFIG))
    arrays, experiment = _built(config)
    state = runs.load_state(folder)
    theta = state.theta if state is not None and state.round == len(record.rows) else None
    return Source(folder, config, arrays, experiment, tuple(map(_recorded, record.rows)), record, theta)


def _with_model(source: Source, trained: Path) -> Source:
    """The config with the model that its devices trained without attackers, and the lengths of their updates."""
    state, rows = runs.load_state(trained), runs.load_run(trained).rows
    if state is None or state.round < source.config.rounds:
        raise RunError(f"{trained} is not finished; go on with `sparsefed resume {trained}`")
    seen = map(_recorded, rows)
    rounds = tuple(each._replace(longest=other.longest) for each, other in zip(source.rounds, seen, strict=True))
    return replace(source, rounds=rounds, final=state.theta)


def unattacked(source: Source) -> Config:
    """A config without its attackers; the goal stays, so that it is the twin that `run --twins` makes."""
    config = source.config
    return configs.twins(config)["unattacked"] if config.is_attacked else config


def _built(config: Config) -> tuple[Arrays, Experiment]:
    server_of(config)  # what has no certificate is refused before anything is loaded
    arrays = data.load(configs.dataset(config))
    experiment = configs.build(config, lambda _: arrays)
    refuse_several_steps(experiment.protocol)
    return arrays, experiment


def _recorded(row: Mapping[str, Any]) -> Round:
    def number(key: str) -> float | None:
        return None if row.get(key) is None else float(row[key])

    budget = number("budget")
    return Round(
        float(row["lr"]),
        math.inf if budget is None else budget,
        int(row["cohort"]),
        int(row["attackers"]),
        number("omega"),
        number("honest_longest"),
    )


def _dealt(experiment: Experiment) -> Iterator[Round]:
    """The rounds as the config's seed deals them; nothing is trained."""
    protocol = experiment.protocol
    federation = protocol.federation
    for t in range(1, experiment.config.rounds + 1):
        lr, ids = protocol.schedule(t), federation.cohort(t)
        attackers = int(federation.attackers(ids, t).sum()) if protocol.attack else 0
        yield Round(lr, protocol.defense.budget({}, Context(t, lr)), len(ids), attackers)
