"""The numbers of a source as a `theory` threat schedule, and the dense schedule without top-k to compare it with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sparsefed.commands.certify.assumptions import Assumption
from sparsefed.commands.certify.smoothness import Smoothness
from sparsefed.commands.certify.subject import CertificateSource, Round
from sparsefed.commands.certify.supported import CoveredServer
from sparsefed.core.errors import ConfigError, RunError
from sparsefed.theory.threat_schedule import Line, ThreatSchedule, check, worst_omega

WORST, MEASURED = "worst", "measured"
ABOUT = "attackers"
ANYTHING = "They may send anything, also nothing usable, in every round, knowing everything."


@dataclass(frozen=True)
class ThreatSchedules:
    """The schedule that is certified, and the dense one that it is compared with."""

    sparse: ThreatSchedule | None  # None: the source applies every coordinate
    dense: ThreatSchedule

    @property
    def own(self) -> ThreatSchedule:
        """Return the source's own schedule."""
        return self.sparse or self.dense


def threat_schedules(
    source: CertificateSource,
    server: CoveredServer,
    shares: Sequence[float],
    smooth: Smoothness,
    omegas: Sequence[float],
) -> ThreatSchedules:
    """Return both schedules, round by round."""
    sparse = None if server.k is None else _schedule(source, server, server.k, shares, smooth, omegas)
    dense = _schedule(source, server, None, shares, smooth, [0.0] * len(source.rounds))
    return ThreatSchedules(sparse, dense)


def _schedule(
    source: CertificateSource,
    server: CoveredServer,
    k: int | None,
    shares: Sequence[float],
    smooth: Smoothness,
    omegas: Sequence[float],
) -> ThreatSchedule:
    lines = tuple(
        _line(source, server, k, smooth, each, share, omega)
        for each, share, omega in zip(source.rounds, shares, omegas, strict=True)
    )
    made = ThreatSchedule(source.d, k, lines, server.rho)
    check(made)
    return made


def _line(
    source: CertificateSource,
    server: CoveredServer,
    k: int | None,
    smooth: Smoothness,
    each: Round,
    share: float,
    omega: float,
) -> Line:
    """Return a round. Where the rate is inside what the server sums up, it is the updates' and not the server's."""
    train = source.config.train
    if train.mode == "fedavg":  # an update is the device's rate times its gradient, and is then clipped
        scale = each.lr if train.local_lr is None else train.local_lr
        return Line(1.0, each.budget, share, smooth.growth(source.d, k, scale, each.budget), omega)
    grown = smooth.growth(source.d, k, 1.0, each.budget)
    if server.inside:  # clipped first, and then scaled
        return Line(1.0, each.lr * each.budget, share, each.lr * grown, omega)
    return Line(each.lr, each.budget, share, grown, omega)


# --- attackers -------------------------------------------------------------------------------------------------------


def shares(source: CertificateSource, share: float | None, attackers: int | None) -> tuple[list[float], Assumption]:
    """Return the attackers' share of the updates in each round: as given, or as the config or run has it."""
    if share is not None:
        return _of_every_round(source, share)
    if attackers is not None:
        return _so_many(source, attackers)
    return _as_it_is(source)


def _of_every_round(source: CertificateSource, share: float) -> tuple[list[float], Assumption]:
    text = f"In every round at most a share of {share:g} of the updates is the attackers'. {ANYTHING}"
    return [share] * len(source.rounds), Assumption(ABOUT, text, "assumed")


def _so_many(source: CertificateSource, attackers: int) -> tuple[list[float], Assumption]:
    least = min(each.cohort for each in source.rounds)
    if not 0 <= attackers < least:
        raise ConfigError(
            f"--attackers is {attackers}, but the smallest round has {least} devices and one must be honest: choose "
            f"from 0 to {least - 1}"
        )
    text = f"In every round at most {attackers} of the devices are attackers. {ANYTHING}"
    return [attackers / each.cohort for each in source.rounds], Assumption(ABOUT, text, "assumed")


def _as_it_is(source: CertificateSource) -> tuple[list[float], Assumption]:
    numbers = [each.attackers for each in source.rounds]
    if not any(numbers):
        raise ConfigError(
            f"nobody attacks in {source.label}, and without attackers the two models are the same; give --share or "
            "--attackers"
        )
    for t, each in enumerate(source.rounds, 1):
        if each.attackers >= each.cohort:
            raise ConfigError(
                f"in round {t} all {each.cohort} devices are attackers, who could make it no round at all; the "
                "certificate needs an honest device in each"
            )
    where = "the run recorded them" if source.run else "the config's seed deals them"
    total, most = sum(numbers), max(numbers)
    text = (
        f"As many devices of each round are attackers as {where}: {total:,} of "
        f"{sum(each.cohort for each in source.rounds):,} in all, at most {most} in a round. {ANYTHING}"
    )
    return [each.attackers / each.cohort for each in source.rounds], Assumption(ABOUT, text, "assumed")


# --- omega -----------------------------------------------------------------------------------------------------------


def omegas(
    source: CertificateSource, server: CoveredServer, wanted: str | float
) -> tuple[list[float], Assumption | None]:
    """Return the share of l1 mass that top-k leaves in each round: the worst case, a given one, or as measured."""
    rounds = len(source.rounds)
    if server.k is None:
        if wanted != WORST:
            raise ConfigError(
                f"--omega is {wanted}, but {source.label} applies every coordinate, so nothing is left out"
            )
        return [0.0] * rounds, None
    worst = worst_omega(source.d, server.k)
    if wanted == WORST:
        text = f"Top-k leaves at most 1 - k/d = {worst:.6g} of the l1 mass that it sees, whatever comes."
        return [worst] * rounds, Assumption("omega", text, "by construction")
    if wanted == MEASURED:
        return _measured(source, worst)
    value = _number(wanted)
    if not 0 <= value <= worst:
        raise ConfigError(
            f"--omega is {wanted}, but top-k with k = {server.k} of d = {source.d} leaves 0 to 1 - k/d = {worst:.6g}"
        )
    text = f"Given: top-k leaves at most {value:g} of the l1 mass that it sees, in every round and under every attack."
    return [value] * rounds, Assumption("omega", text, "assumed", binding=True)


def _measured(source: CertificateSource, worst: float) -> tuple[list[float], Assumption]:
    if source.run is None:
        raise ConfigError(f"--omega measured is for run folders, but {source.label} is a config; use worst or a number")
    recorded = [each.omega for each in source.rounds]
    known = [min(value, worst) for value in recorded if value is not None]
    if len(known) < len(recorded):
        raise RunError(
            f"{source.label} has no omega in round {recorded.index(None) + 1} of its metrics: it was run by a version "
            "that did not write it; use --omega worst, or run it again"
        )
    text = (
        f"Top-k leaves no larger a share of l1 mass than it did in this run, round by round ({min(known):.3g} to "
        f"{max(known):.3g}); a run attacked otherwise may lose more, and then the number does not hold."
    )
    return known, Assumption("omega", text, "measured", binding=True)


def _number(text: str | float) -> float:
    try:
        return float(text)
    except ValueError:
        raise ConfigError(f"--omega is '{text}'; use {WORST}, {MEASURED} or a number") from None
