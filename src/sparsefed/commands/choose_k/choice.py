"""The result of choosing k: what was measured and chosen, and the knee of the probe runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from sparsefed.commands.choose_k.options import ChooseKOptions
from sparsefed.config import Config
from sparsefed.kernels.topk import coordinates
from sparsefed.reports.result import Report
from sparsefed.theory.choice_of_k import ChosenK, FloatArray

KEPT = 0.01  # a difference of accuracies that counts as none
ROUNDING = 1e-9


class LossAtK(NamedTuple):
    """What top-k loses at one k: mean and range of the samples."""

    k: int
    mean: float
    min: float
    max: float


@dataclass(frozen=True)
class Stage:
    """One sampled model, and what top-k loses of the updates at it."""

    rounds: int  # that it was trained for
    grid: tuple[int, ...]  # k's, ascending
    samples: FloatArray  # [n, len(grid)], what is lost
    chosen: ChosenK  # the smallest k
    stepped: ChosenK  # the paper's, if every iteration drew these samples
    printed: ChosenK | None = None  # the paper's as printed, if `paper`

    @property
    def curve(self) -> list[LossAtK]:
        mean, low, high = (each.tolist() for each in (self.samples.mean(0), self.samples.min(0), self.samples.max(0)))
        return [LossAtK(*point) for point in zip(self.grid, mean, low, high, strict=True)]


@dataclass(frozen=True)
class Probe:
    """The runs with one k; accuracies are fractions, None where nothing was measured."""

    k: int
    test: float | None  # without attackers
    converged: bool
    attacked_test: float | None = None
    attack: float | None = None  # mean over the last epoch
    rounds: int = 0

    @property
    def harm(self) -> float | None:
        """Return what the attack achieves; None without attackers."""
        if self.attack is not None:
            return self.attack
        return None if self.attacked_test is None or self.test is None else self.test - self.attacked_test


@dataclass(frozen=True)
class ChooseKResult(Report, described_by="sparsefed.commands.choose_k.document"):
    """The chosen k, and everything that was measured for it."""

    config: Config
    options: ChooseKOptions
    d: int
    epoch: int  # r, rounds of an epoch
    stages: tuple[Stage, ...]
    ks: tuple[int, ...] = ()  # to be probed
    probes: tuple[Probe, ...] = ()

    @property
    def k(self) -> int:
        """Return the smallest k that keeps the promise at every stage."""
        return max(stage.chosen.k for stage in self.stages)

    @property
    def answer(self) -> int:
        """Return the k to use: the knee of the probe runs if there is one, otherwise the smallest by mass."""
        return self.k if self.knee is None else self.knee.k

    @property
    def paper_k(self) -> int:
        """Return the k by the paper's steps; as printed, if `paper`."""
        return max((stage.printed or stage.stepped).k for stage in self.stages)

    @property
    def own_k(self) -> int | None:
        """Return the config's own k, if it has one."""
        own = self.config.defense.params.get("k")
        return None if own is None else coordinates(own, self.d)

    @property
    def knee(self) -> Probe | None:
        return knee(self.probes)

    def records(self) -> list[dict[str, Any]]:
        """Return a flat record for each sampled model and k: what top-k loses there, mean and range of the samples."""
        return [
            {"after_rounds": stage.rounds, "k": k, "share_of_d": k / self.d, "lost": mean, "least": low, "most": high}
            for stage in self.stages
            for k, mean, low, high in stage.curve
        ]

    def probe_records(self) -> list[dict[str, Any]]:
        """Return a flat record for each k that was probed."""
        return [asdict(probe) | {"knee": probe == self.knee} for probe in self.probes]


def knee(probes: Sequence[Probe]) -> Probe | None:
    """Return the probe that the package's rule chooses; None if no run converged.

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
