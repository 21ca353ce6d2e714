"""The certificate of a config or a run: its radii and those of its dense twin, their assumptions, and the verdict."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from sparsefed import config as configs
from sparsefed import runs
from sparsefed.commands.certify.accuracy import Accuracy, accuracy
from sparsefed.commands.certify.assumptions import TITLES, Assumption, Status, status
from sparsefed.commands.certify.bounds import ALIKE, Bounds, bounds, times, written
from sparsefed.commands.certify.l2_bound import Route, l2_route, longest
from sparsefed.commands.certify.options import CertificateOptions
from sparsefed.commands.certify.smoothness import Smoothness, is_linear, smoothness
from sparsefed.commands.certify.subject import CertificateSource, read, unattacked, with_model
from sparsefed.commands.certify.supported import CoveredServer, server_of
from sparsefed.commands.certify.threat_schedules import WORST, ThreatSchedules, omegas, shares, threat_schedules
from sparsefed.commands.common import RunAll, Subject, run_all
from sparsefed.config import Config
from sparsefed.core.errors import ConfigError
from sparsefed.core.metrics import distances
from sparsefed.core.progress import OnProgress
from sparsefed.reports.result import Report
from sparsefed.results.numbers import percent
from sparsefed.sweeps.runner import working_folder

HARDLY = 1.1  # a smaller factor is not worth reporting


@dataclass(frozen=True)
class Certificate(Report, described_by="sparsefed.commands.certify.document"):
    """The certificate: how far attackers can move a model at most, with all its assumptions."""

    source: CertificateSource
    protocols: ThreatSchedules
    assumptions: tuple[Assumption, ...]
    route: Route
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
        return {**({} if self.sparse is None else {"sparse": self.sparse}), "dense": self.dense}

    @property
    def status(self) -> Status:
        """Return the status of the number to quote."""
        return self.status_of("softmax" if self.own.best is self.own.softmax else "capped")

    def status_of(self, field: str) -> Status:
        """Return the status of one of the bounds: clipping alone does not need c, nor the l2 route omega."""
        spared = {"movement": "c", "softmax": "omega"}.get(field)
        return status(each for each in self.assumptions if each.about != spared)

    def is_bound(self, field: str) -> str:
        """Return whether a field is really a bound: yes, if (under the assumptions), estimate or NO."""
        if field == "paper" and not self.own.paper_is_bound:
            return "NO"
        return {"certificate": "yes", "conditional": "if", "estimate": "estimate"}[self.status_of(field)]

    def records(self) -> list[dict[str, Any]]:
        """Return a flat record for each radius, in natural logarithms, in the form that `pandas.DataFrame` takes."""
        fields = ("softmax", "capped", "recursion", "recursion_sqrt_d", "movement", "closed_form", "paper")
        every = ((side, field, getattr(each, field)) for side, each in self.sides.items() for field in fields)
        return [
            {"protocol": side, "bound": field, "is_bound": self.is_bound(field), "log": radius.log}
            | {"additive": radius.additive, "propagation": radius.propagation, "log10": radius.log10}
            for side, field, radius in every
            if radius is not None
        ]

    # --- the verdict, sentence by sentence ---------------------------------------------------------------------------

    @property
    def title(self) -> str:
        """Return the title: the status, and the name of the source."""
        return f"{TITLES[self.status]}: {self.source.name}"

    @property
    def verdict(self) -> list[str]:
        """Return the whole verdict, the most important sentence first."""
        certified = self.certified_accuracy_sentence
        return [
            f"{self.title}.",
            self.headline,
            *self.worth,
            *self._gain(),
            *([] if certified is None else [certified, *self._about_accuracy()]),
            *self._warnings(),
        ]

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
        return [*self._beside_clipping(), *([] if self.travelled is None else [self._beside_training(self.travelled)])]

    def _beside_clipping(self) -> Iterator[str]:
        own = self.own
        if own.only_clipping:
            yield (
                "The theorem says nothing here that clipping does not say by itself: no two runs of updates of this "
                "length end further apart."
            )
            if self.status == "estimate" and self.status_of("movement") == "certificate":
                yield "That part does not need c, so this one number is a bound."
        else:
            factor = own.movement.log - own.best.log
            by = "hardly" if factor < math.log(HARDLY) else f"{times(factor)} times"
            yield f"That is {by} smaller than what clipping promises by itself."

    def _beside_training(self, travelled: float) -> str:
        own = self.own.best.log
        apart = own - math.log(travelled) if travelled > 0 else math.inf
        moved = f"Training itself moved this run's model by {travelled:,.4g} in l1"
        if apart >= 0:
            return f"{moved}: a radius no smaller than that leaves room for an attack that undoes all of it (vacuous)."
        return f"{moved}: the radius is smaller, so no attack can undo it all."

    def _gain(self) -> Iterator[str]:
        if self.sparse is None:
            return
        apart = self.dense.best.log - self.sparse.best.log
        if abs(apart) <= ALIKE:
            yield "Without top-k the radius would be the same."
        else:
            how = f"{times(abs(apart))} times {'larger' if apart > 0 else 'smaller'}"
            yield f"Without top-k (dense) it would be {how}: {written(self.dense.best.log)}."

    @property
    def certified_accuracy_sentence(self) -> str | None:
        """Return a sentence on certified accuracy; None if the model is not one softmax layer or is not trained."""
        accuracy = self.accuracy
        if accuracy is None:
            if not self.source.exceeds(self.protocols.own):
                return None
            return "Certified accuracy is left out: this run had more attackers in some round than were asked about."
        of = f"{share_down(accuracy.certified.accuracy)} of {accuracy.points:,} test points"
        if accuracy.attacked:
            return (
                f"Certified accuracy: on {of} this model is right, and so is the one that the same devices would have "
                "trained without attackers, whatever these sent (the bound holds in both directions)."
            )
        plain = f"{percent(accuracy.plain)} without attackers, {percent(accuracy.chance)} by chance"
        return f"Certified accuracy: {of} are right and stay right, however they attack ({plain})."

    def _about_accuracy(self) -> Iterator[str]:
        accuracy = self.accuracy
        if accuracy is None:
            return
        if accuracy.vacuous:
            yield "That is no more than always naming the most frequent class would get: vacuous."
        if accuracy.attacked:
            yield (
                "For a curve against the share of attackers certify the run without them (`sparsefed run --twins`), or "
                "the config with --train."
            )
        elif accuracy.largest:
            yield f"More than chance is certified up to a share of {_share(accuracy.largest)} of each round's updates."
        else:
            yield "More than chance is certified at no share of attackers."

    def _warnings(self) -> Iterator[str]:
        if not self.own.paper_is_bound:
            yield (
                "Warning: the paper's closed form is NOT a bound here, because its last step needs every learning rate "
                "to be at least 1 and no momentum; it is shown for comparison only."
            )


def share_down(share: float) -> str:
    """Write a share that is certified, rounded down.

    >>> share_down(0.8999), share_down(0.9)
    ('89.9%', '90.0%')
    """
    return f"{math.floor(1000 * share + 1e-9) / 10:.1f}%"


def _share(share: float) -> str:
    """Write a share of attackers rounded down: what is certified at a share is certified below it.

    >>> _share(0.012345), _share(1.0)
    ('1.23%', '100%')
    """
    decimals = 2 - math.floor(math.log10(100 * share)) if share > 0 else 0
    return f"{math.floor(100 * share * 10.0**decimals + 1e-9) / 10.0**decimals:.3g}%"


# --- from a subject to its certificate -------------------------------------------------------------------------------


def certify(
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
    """Certify how far attackers can move the model of a config or a run, at most.

    Args:
        subject: A config, its table, the path of its file, or a run folder.
        share: The attackers' share of each round's updates; by default as many attackers as the subject has.
        attackers: The attackers in each round, instead of `share`.
        c: How fast a coordinate of a device's gradient can change; by default exact for one softmax layer, and
            estimated for any other model, which then has no certificate.
        estimate_c: Whether to estimate c also where it is known.
        omega: What top-k leaves of l1 mass: 'worst', 'measured' (of a run), or a share.
        overrides: `key=value` on top of a config file.
        trained: The folder of a config's run without attackers, for certified accuracy.
        train: Whether to train a config without attackers for that.
        folder: Where that run is kept, under its name; by default nowhere.
        on_progress: Called after every round of that run.
        runner: How that run is carried out, instead.

    Returns:
        The radii, what they rest on, and the verdict in sentences.

    Raises:
        ConfigError: The theory does not cover the subject, or an option is impossible.
        RunError: A run is not finished, or damaged.
    """
    options = CertificateOptions(share, attackers, c, estimate_c, omega)
    source = read(subject, overrides)
    if trained is not None:
        source = with_model(source, trained)
    certificate = _certificate(source, options)
    if not train:
        return certificate
    config = _to_train(source)
    with working_folder(folder) as kept:
        place = kept / (config.name or "trained")
        if runs.unfinished({place: configs.dump(config)}):
            (runner or partial(run_all, on_progress=on_progress))({place: config})
        return _certificate(with_model(source, place), options)


def _certificate(source: CertificateSource, options: CertificateOptions) -> Certificate:
    server = server_of(source.config)
    attacking, threat = shares(source, options.share, options.attackers)
    lost, losing = omegas(source, server, options.omega)
    smooth, smoothing = smoothness(source, options.c, options.estimate_c)
    schedules = threat_schedules(source, server, attacking, smooth, lost)
    route = l2_route(source, server, smooth)
    rests_on = [threat, *smoothing, *([losing] if losing else []), *_lengths(source, smooth), *_always(source, server)]
    return Certificate(
        source,
        schedules,
        tuple(rests_on),
        route,
        None if schedules.sparse is None else bounds(schedules.sparse, route),
        bounds(schedules.dense, route),
        smooth.c,
        None if source.final is None else distances(source.experiment.theta, source.final).l1,
        accuracy(source, smooth, route, schedules.own),
    )


def _to_train(source: CertificateSource) -> Config:
    """Return the config whose run gives a certificate the model that certified accuracy is about."""
    if source.run is not None:
        raise ConfigError(f"{source.label} is a run and has been trained; --train is for configs")
    if not is_linear(source):
        raise ConfigError(
            f"--train is for certified accuracy, which one softmax layer has and model {source.config.model.name} has "
            'not; leave it out, or use [model] name = "softmax"'
        )
    return unattacked(source)


def _lengths(source: CertificateSource, smooth: Smoothness) -> Iterator[Assumption]:
    if smooth.layer is not None and longest(source) is not None:
        text = (
            "How long honest updates were before clipping was measured; the l2 route uses that clipping cut none of "
            "them where they were short enough for every attack within reach."
        )
        yield Assumption("honest lengths", text, "measured")


def _always(source: CertificateSource, server: CoveredServer) -> Iterator[Assumption]:
    """Yield the assumptions of every certificate."""
    rounds = source.rounds
    rates, norms = [each.lr for each in rounds], [each.budget for each in rounds]
    where = "as the run recorded them" if source.run else "from the config's schedule"
    done = (
        "" if source.finished else f" The run is unfinished: only these of its {source.config.rounds:,} rounds count."
    )
    yield Assumption(
        "rounds",
        f"{len(rounds):,}, {where}; the learning rates add up to {sum(rates):.4g} and are from {min(rates):.3g} to "
        f"{max(rates):.3g}.{done}",
        "by construction",
    )
    yield Assumption(
        "clip norm",
        f"The server cuts every update to {_between(norms)} in l2, whoever sent it, and drops what is not finite.",
        "by construction",
    )
    if server.rho:
        text = f"Server momentum {server.rho:g}: the recursion extended to it, as derived in docs/certificate.md."
        yield Assumption("momentum", text, "by construction")
    yield Assumption(
        "same draws",
        "Both runs have the same first model, cohorts, examples and random draws: these depend on the seed, the round "
        "and the device alone.",
        "by construction",
    )
    yield Assumption("honest updates", "Every honest update is finite, so that none of them is dropped.", "assumed")
    dtype = source.config.train.dtype
    yield Assumption("arithmetic", f"Real numbers: the rounding of {dtype} is not counted.", "assumed")


def _between(values: Sequence[float]) -> str:
    low, high = min(values), max(values)
    return f"{high:.4g}" if low == high else f"{low:.3g} to {high:.3g}"
