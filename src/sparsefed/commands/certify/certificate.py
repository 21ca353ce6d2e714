"""The certificate of a config or a run: its radii and those of its dense twin, their assumptions, and the verdict."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from sparsefed import config as configs
from sparsefed import runs
from sparsefed.commands.certify import assumptions as known
from sparsefed.commands.certify.assumptions import TITLES, WORST, Assumption, Status
from sparsefed.commands.certify.subject import CertificateSource, read, with_model
from sparsefed.commands.common import RunAll, Subject, run_all
from sparsefed.config import Config
from sparsefed.core.errors import ConfigError
from sparsefed.core.progress import OnProgress
from sparsefed.reports.result import Report
from sparsefed.results.numbers import percent
from sparsefed.results.twins import distances
from sparsefed.sweeps.runner import working_folder
from sparsefed.theory import linear
from sparsefed.theory.bounds import ALIKE, Bounds
from sparsefed.theory.linear import Accuracy
from sparsefed.theory.lipschitz import Smoothness
from sparsefed.theory.radius import log
from sparsefed.theory.rounding import attackers_text, factor_text, share_down, written
from sparsefed.theory.threat_schedule import ThreatSchedule

HARDLY = 1.1  # a smaller factor is not worth reporting
ONLY_CLIPPING = (
    "The theorem says nothing here that clipping does not say by itself: no two runs of updates of this length end "
    "further apart."
)
ALL_UNDONE = "a radius no smaller than that leaves room for an attack that undoes all of it (vacuous)."
NOT_UNDONE = "the radius is smaller, so no attack can undo it all."
UNATTACKED = (
    "For a curve against the share of attackers certify the run without them (`sparsefed run --twins`), or the config "
    "with --train."
)
NOT_A_BOUND = (
    "Warning: the paper's closed form is NOT a bound here, because its last step needs every learning rate to be at "
    "least 1 and no momentum; it is shown for comparison only."
)


@dataclass(frozen=True)
class Certificate(Report, described_by="sparsefed.commands.certify.document"):
    """The certificate: how far attackers can move a model at most, with all its assumptions."""

    source: CertificateSource
    assumptions: tuple[Assumption, ...]
    sparse: Bounds | None
    dense: Bounds
    c: float
    travelled: float | None  # |theta_T - theta_0|_1 of a run, where its last model is there
    accuracy: Accuracy | None  # of one softmax layer that has been trained

    @property
    def own(self) -> Bounds:
        """Return the bounds of the source's own schedule."""
        return self.sparse or self.dense

    @property
    def sides(self) -> dict[str, Bounds]:
        """Return the bounds of the source's own schedule, and of the dense one if it differs."""
        return {"dense": self.dense} if self.sparse is None else {"sparse": self.sparse, "dense": self.dense}

    @property
    def status(self) -> Status:
        """Return the status of the number to quote; what clipping promises by itself does not need c."""
        return self.status_of("movement" if self.own.only_clipping else self.own.best_name)

    def status_of(self, name: str) -> Status:
        """Return the status of one of the bounds: clipping alone does not need c, nor the l2 route omega."""
        spared = {"movement": "c", "softmax": "omega"}.get(name)
        return known.status(each for each in self.assumptions if each.about != spared)

    def is_bound(self, name: str) -> str:
        """Return whether one of the radii is really a bound: yes, if (under the assumptions), estimate or NO."""
        if name == "paper" and not self.own.paper_is_bound:
            return "NO"
        return {"certificate": "yes", "conditional": "if", "estimate": "estimate"}[self.status_of(name)]

    def records(self) -> list[dict[str, Any]]:
        """Return a flat record for each radius, in natural logarithms, in the form that `pandas.DataFrame` takes."""
        return [
            {"protocol": side, "bound": name, "is_bound": self.is_bound(name), **radius.parts}
            for side, each in self.sides.items()
            for name, radius in each.radii.items()
        ]

    # --- the verdict, sentence by sentence ---------------------------------------------------------------------------

    @property
    def title(self) -> str:
        """Return the title: the status, and the name of the source."""
        return f"{TITLES[self.status]}: {self.source.name}"

    @property
    def verdict(self) -> list[str]:
        """Return the whole verdict, the most important sentence first."""
        warnings = [] if self.own.paper_is_bound else [NOT_A_BOUND]
        return [f"{self.title}.", self.headline, *self.worth, *self._gain(), *self._about_accuracy(), *warnings]

    @property
    def headline(self) -> str:
        """Return the number to quote, in a sentence."""
        sure, distance = {
            "certificate": ("However they attack,", "is at most"),
            "conditional": ("If what was given or measured holds under every attack, then", "is at most"),
            "estimate": ("No promise, for c is only estimated:", "would be at most"),
        }[self.status]
        done = "" if self.source.finished else " (of an unfinished run: the rounds done)"
        return (
            f"{sure} after {len(self.source.rounds):,} rounds{done} the model {distance} {written(self.own.best.log)} "
            "in l1 from the one that the same devices would have trained without attackers."
        )

    @property
    def worth(self) -> list[str]:
        """Return sentences that compare the number with the trivial bound and with the distance trained."""
        own, sentences = self.own, [ONLY_CLIPPING]
        if not own.only_clipping:
            factor = own.radii["movement"].log - own.best.log
            by = "hardly" if factor < math.log(HARDLY) else f"{factor_text(factor)} times"
            sentences = [f"That is {by} smaller than what clipping promises by itself."]
        if self.travelled is not None:
            moved = f"Training itself moved this run's model by {self.travelled:,.4g} in l1"
            vacuous = own.best.log >= log(self.travelled)
            sentences.append(f"{moved}: {ALL_UNDONE if vacuous else NOT_UNDONE}")
        return sentences

    def _gain(self) -> Iterator[str]:
        if self.sparse is None:
            return
        apart = self.dense.best.log - self.sparse.best.log
        if abs(apart) <= ALIKE:
            yield "Without top-k the radius would be the same."
        else:
            by = "hardly" if abs(apart) < math.log(HARDLY) else f"{factor_text(abs(apart))} times"
            how = f"{by} {'larger' if apart > 0 else 'smaller'}"
            yield f"Without top-k (dense) it would be {how}: {written(self.dense.best.log)}."

    @property
    def certified_accuracy_sentence(self) -> str | None:
        """Return a sentence on certified accuracy; None if the model is not one softmax layer or is not trained."""
        return next(self._about_accuracy(), None)

    def _about_accuracy(self) -> Iterator[str]:
        accuracy = self.accuracy
        if accuracy is None:
            if self.source.exceeds(self.own.schedule):
                yield "Certified accuracy is left out: this run had more attackers in some round than are certified."
            return
        of = f"{share_down(accuracy.certified.accuracy)} of {accuracy.points:,} test points"
        if accuracy.attacked:
            yield (
                f"Certified accuracy: on {of} this model is right, and so is the one that the same devices would have "
                "trained without attackers, whatever these sent (the bound holds in both directions)."
            )
        else:
            plain = f"{percent(accuracy.plain)} without attackers, {percent(accuracy.chance)} by chance"
            yield f"Certified accuracy: {of} are right and stay right, however they attack ({plain})."
        if accuracy.vacuous:
            yield "That is no more than always naming the most frequent class would get: vacuous."
        if accuracy.attacked:
            yield UNATTACKED
        elif accuracy.largest:
            largest = attackers_text(accuracy.largest)
            yield f"More than chance is certified up to a share of {largest} of each round's updates."
        else:
            yield "More than chance is certified at no share of attackers."


def certify_radius(
    subject: Subject,
    *,
    share: float | None = None,
    attackers: int | None = None,
    c: float | None = None,
    estimate_c: bool = False,
    omega: str | float = WORST,
    overrides: Sequence[str] = (),
    trained: Path | str | None = None,
    train: bool = False,
    folder: Path | str | None = None,
    on_progress: OnProgress | None = None,
    runner: RunAll | None = None,
) -> Certificate:
    """Certify how far attackers can move the model of a config or a run; `certify` lists the arguments."""
    _check(share, attackers, c, estimate_c)
    source = read(subject, overrides)
    if trained is not None:
        source = with_model(source, trained)

    def certificate(source: CertificateSource) -> Certificate:
        shares, threat = known.attacking(source, share, attackers)
        omegas, losing = known.losing(source, omega)
        smooth, smoothing = known.smoothness(source, c, estimate_c)
        rests_on = (threat, *smoothing, *losing, *known.others(source, smooth))
        sparse, dense = known.bounded(source, shares, smooth, omegas)
        travelled = None if source.final is None else distances(source.experiment.theta, source.final).l1
        accuracy = _accuracy(source, smooth, (sparse or dense).schedule)
        return Certificate(source, rests_on, sparse, dense, smooth.c, travelled, accuracy)

    first = certificate(source)
    if not train:
        return first
    config = _to_train(source)
    with working_folder(folder) as kept:
        place = runs.free_folder(kept / (config.name or "trained"), configs.dump(config))
        if runs.unfinished({place: configs.dump(config)}):
            (runner or partial(run_all, on_progress=on_progress))({place: config})
        return certificate(with_model(source, place))


def _check(share: float | None, attackers: int | None, c: float | None, estimate_c: bool) -> None:
    """Refuse impossible options before anything is loaded."""
    check_attackers(share, attackers)
    if c is not None and estimate_c:
        raise ConfigError("--c gives c and --estimate-c searches for it; give one of them")
    if c is not None and not 0 < c < math.inf:
        raise ConfigError(f"--c is {c:g}, but it bounds how fast a gradient changes: choose a finite number above 0")


def check_attackers(share: float | None, attackers: int | None) -> None:
    """Refuse a number of attackers that is given twice, or impossible."""
    if share is not None and attackers is not None:
        raise ConfigError("--share and --attackers say the same thing twice; give one of them")
    if share is not None and not 0 <= share < 1:
        raise ConfigError(f"--share is {share:g}, but it is a share of each round's updates: choose 0 <= share < 1")


def _accuracy(source: CertificateSource, smooth: Smoothness, schedule: ThreatSchedule) -> Accuracy | None:
    if source.final is None or smooth.layer is None or source.exceeds(schedule):
        return None
    x, y = torch.from_numpy(source.arrays.x_test), torch.from_numpy(source.arrays.y_test)
    return linear.accuracy(linear.task_points(source.experiment.task, source.final, x, y), schedule, source.attacked)


def _to_train(source: CertificateSource) -> Config:
    """Return the config whose run gives a certificate the model that certified accuracy is about."""
    if source.run is not None:
        raise ConfigError(f"{source.label} is a run and has been trained; --train is for configs")
    target = source.experiment.task.target
    if target.kind != "classes":
        raise ConfigError(
            f"--train is for certified accuracy, which counts right classes, but this task has {target.title} and is "
            f"judged by {configs.score_title(source.config)}; leave it out"
        )
    if not known.is_linear(source):
        raise ConfigError(
            f"--train is for certified accuracy, which one softmax layer has and model {source.config.model.name} has "
            'not; leave it out, or use [model] name = "softmax"'
        )
    return configs.twins(source.config)["unattacked"] if source.config.is_attacked else source.config
