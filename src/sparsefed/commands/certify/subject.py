"""The source of a certificate: a config or a run folder, what was built from it, and the numbers of every round."""

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
from sparsefed.commands.common import Subject
from sparsefed.config import BuiltSimulation, Config
from sparsefed.core.errors import ConfigError, RunError
from sparsefed.core.types import Arrays, Context, RunRecord
from sparsefed.theory.threat_schedule import ThreatSchedule


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

    def exceeds(self, schedule: ThreatSchedule) -> bool:
        """Return whether this was run with more attackers, in some round, than the schedule has."""
        pairs = zip(self.rounds, schedule.lines, strict=True)
        return self.run is not None and any(each.attackers > line.share * each.cohort + 1e-9 for each, line in pairs)

    @property
    def finished(self) -> bool:
        return len(self.rounds) == self.config.rounds


def read(subject: Subject, overrides: Sequence[str] = ()) -> CertificateSource:
    """Read a config, its table, its file, or a run folder for its certificate.

    Raises:
        ConfigError: The theory does not cover it, or there are overrides for a run.
        RunError: The run has no finished round.
    """
    if not isinstance(subject, str | Path):
        config = configs.as_config(subject)
        return _of_config(config.name or "this config", config)
    path = Path(subject)
    if not path.is_dir():
        return _of_config(str(path), configs.read(path, overrides))
    if overrides:
        raise ConfigError(f"{path} is a run, which was what it was; --set is for configs: give {path / runs.CONFIG}")
    return _of_run(path)


def _of_config(label: str, config: Config) -> CertificateSource:
    arrays, experiment = _built(config)
    return CertificateSource(label, config, arrays, experiment, tuple(_dealt(experiment)))


def _of_run(folder: Path) -> CertificateSource:
    record = runs.load_run(folder)
    if not record.rows:
        raise RunError(f"{folder} has no finished round yet; certify its config: {folder / runs.CONFIG}")
    config = configs.parse(record.config, source=str(folder / runs.CONFIG))
    arrays, experiment = _built(config)
    state = runs.load_state(folder)
    theta = state.theta if state is not None and state.round == len(record.rows) else None
    return CertificateSource(str(folder), config, arrays, experiment, tuple(map(_recorded, record.rows)), record, theta)


def with_model(source: CertificateSource, trained: Path | str) -> CertificateSource:
    """Return a config's source with the model of a run without attackers, and the lengths of its updates.

    Raises:
        RunError: The run in the folder `trained` is not finished.
    """
    state, rows = runs.load_state(Path(trained)), runs.load_run(Path(trained)).rows
    if state is None or state.round < source.config.rounds:
        raise RunError(f"{trained} is not finished; go on with `sparsefed resume {trained}`")
    measured = map(_recorded, rows)
    rounds = tuple(each._replace(longest=other.longest) for each, other in zip(source.rounds, measured, strict=True))
    return replace(source, rounds=rounds, final=state.theta)


def unattacked(source: CertificateSource) -> Config:
    """Return the config without its attackers but with their goal: the twin that `run --twins` makes."""
    return configs.twins(source.config)["unattacked"] if source.config.is_attacked else source.config


def _built(config: Config) -> tuple[Arrays, BuiltSimulation]:
    server_of(config)  # raises for unsupported servers before anything is loaded
    arrays = data.load(configs.dataset(config))
    experiment = configs.build(config, lambda _: arrays)
    refuse_several_steps(experiment.setup)
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


def _dealt(experiment: BuiltSimulation) -> Iterator[Round]:
    """Yield the rounds as the config's seed draws them; nothing is trained."""
    setup = experiment.setup
    federation = setup.federation
    for t in range(1, experiment.config.rounds + 1):
        lr, ids = setup.schedule(t), federation.cohort(t)
        attackers = int(federation.attackers(ids, t).sum()) if setup.attack else 0
        yield Round(lr, setup.defense.budget({}, Context(t, lr)), len(ids), attackers)
