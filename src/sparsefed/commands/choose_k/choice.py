"""What was measured and chosen: values, and the knee of the probe runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from sparsefed.config import Config
from sparsefed.reports.result import Report
from sparsefed.theory.choice_of_k import Choice, FloatArray

OMEGA, SAMPLES = 0.5, 10
KEPT = 0.01  # of an accuracy, which counts as no difference
ROUNDING = 1e-9


@dataclass(frozen=True)
class Asked:
    """How k is to be chosen."""

    omega: float = OMEGA
    samples: int = SAMPLES
    rounds_in: tuple[int, ...] = (0,)  # ascending: after how many rounds the model is sampled
    absolute: bool = False  # omega is a mass, as the paper's box prints it, and not a share
    paper: bool = False  # also the paper's box, with samples drawn anew in every turn
    probe: str = ""  # k's, or how many
    probe_rounds: int | None = None  # None: the config's
    trials: int | None = None  # of tuning the attack at each probed k; None: the attack as the config has it


@dataclass(frozen=True)
class Stage:
    """One model, and what top-k loses of updates there."""

    rounds: int  # that it was trained for
    grid: tuple[int, ...]  # k's, ascending
    samples: FloatArray  # [n, len(grid)], what is lost
    chosen: Choice  # the smallest k
    stepped: Choice  # the paper's, had every turn of it drawn these samples
    printed: Choice | None = None  # the paper's as printed, where asked for

    @property
    def mean(self) -> list[float]:
        return [float(value) for value in self.samples.mean(0)]

    @property
    def low(self) -> list[float]:
        return [float(value) for value in self.samples.min(0)]

    @property
    def high(self) -> list[float]:
        return [float(value) for value in self.samples.max(0)]


@dataclass(frozen=True)
class Probe:
    """What the runs with one k came to; accuracies are fractions, None where nothing was measured."""

    k: int
    test: float | None  # nobody attacks
    converged: bool
    attacked_test: float | None = None
    attack: float | None = None  # mean over the last epoch
    rounds: int = 0

    @property
    def harm(self) -> float | None:
        """What the attack gets through; None where nobody attacks."""
        if self.attack is not None:
            return self.attack
        return None if self.attacked_test is None or self.test is None else self.test - self.attacked_test


@dataclass(frozen=True)
class Outcome(Report, described_by="sparsefed.commands.choose_k.document"):
    """All of it."""

    config: Config
    asked: Asked
    d: int
    epoch: int  # r, rounds of an epoch
    stages: tuple[Stage, ...]
    ks: tuple[int, ...] = ()  # to be probed
    probes: tuple[Probe, ...] = field(default=())

    @property
    def k(self) -> int:
        """The smallest k that keeps the promise at every stage."""
        return max(stage.chosen.k for stage in self.stages)

    @property
    def paper_k(self) -> int:
        """The same by the paper's steps; as printed, where that was asked for."""
        return max((stage.printed or stage.stepped).k for stage in self.stages)

    @property
    def own_k(self) -> int | None:
        """The config's."""
        own = self.config.defense.params.get("k")
        return own if isinstance(own, int) else None

    @property
    def knee(self) -> Probe | None:
        return knee(self.probes)


def knee(probes: Sequence[Probe]) -> Probe | None:
    """The probe that the package's rule chooses; None where no run converged.

    >>> knee([Probe(10, 0.70, True), Probe(100, 0.86, True), Probe(1000, 0.865, True)]).k
    100
    >>> knee([Probe(k, 0.86, True, 0.8, attack) for k, attack in ((10, 0.30), (100, 0.05), (1000, 0.045))]).k
    100
    """
    usable = [probe for probe in probes if probe.converged and probe.test is not None]
    best = max((probe.test or 0.0 for probe in usable), default=0.0)
    accurate = [probe for probe in usable if (probe.test or 0.0) >= best - KEPT - ROUNDING]
    least = min((probe.harm for probe in accurate if probe.harm is not None), default=None)
    if least is not None:
        accurate = [probe for probe in accurate if probe.harm is not None and probe.harm <= least + KEPT + ROUNDING]
    return min(accurate, key=lambda probe: probe.k, default=None)
