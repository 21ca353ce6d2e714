"""The numbers that go into a certificate, each with the assumption that it rests on and how that is known."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from sparsefed.commands.certify.subject import CertificateSource
from sparsefed.core.errors import ConfigError, RunError
from sparsefed.core.federation import none
from sparsefed.theory import lipschitz
from sparsefed.theory.bounds import Bounds, bounds
from sparsefed.theory.lipschitz import Smoothness
from sparsefed.theory.radius import dense
from sparsefed.theory.threat_schedule import Line, ThreatSchedule, worst_omega

# by construction  the code or the data make it so
# assumed          not checked, and where it is about the protocol: given by the user
# measured         in this run only; another run of the same protocol, attacked otherwise, may differ
# estimate         a number that may be too small
Mark = Literal["by construction", "assumed", "measured", "estimate"]
Status = Literal["certificate", "conditional", "estimate"]

TITLES: dict[Status, str] = {
    "certificate": "Certificate",
    "conditional": "Conditional certificate",
    "estimate": "Estimate, not a certificate",
}
WORST, MEASURED = "worst", "measured"
ANYTHING = "They may send anything, also nothing usable, in every round, knowing everything."
CUTTING = (
    "Clipping may cut honest updates, too: then c is no longer the constant of a coordinate, and sqrt(w d) c stands in "
    "the place of w c."
)
LENGTHS = (
    "How long honest updates were before clipping was measured; the l2 route uses that clipping cut none of them where "
    "they were short enough for every attack within reach."
)
DRAWS = (
    "Both runs have the same first model, cohorts, examples and random draws: these depend on the seed, the round and "
    "the device alone."
)


@dataclass(frozen=True)
class Assumption:
    """An assumption that must hold."""

    about: str  # a word or two
    says: str
    mark: Mark
    binding: bool = False  # whether somebody other than the code vouches for it, so that the certificate is conditional


def status(assumptions: Iterable[Assumption]) -> Status:
    """Return the status of a number that rests on these assumptions.

    >>> status([Assumption("c", "from the data", "by construction"), Assumption("omega", "given", "assumed", True)])
    'conditional'
    """
    listed = list(assumptions)
    if any(each.mark == "estimate" for each in listed):
        return "estimate"
    return "conditional" if any(each.binding for each in listed) else "certificate"


def bounded(
    source: CertificateSource, shares: Sequence[float], smooth: Smoothness, omegas: Sequence[float]
) -> tuple[Bounds | None, Bounds]:
    """Return the bounds of the source's threat schedule with top-k, if it has that, and of the dense one."""
    own, growths = threat_schedule(source, shares, smooth, omegas)
    return (None, bounds(own)) if own.k is None else (bounds(own), bounds(dense(own, growths)))


def threat_schedule(
    source: CertificateSource, shares: Sequence[float], smooth: Smoothness, omegas: Sequence[float]
) -> tuple[ThreatSchedule, list[float]]:
    """Return the source's threat schedule, and the growth of each round if every coordinate were applied."""
    d, k, measured = source.d, source.server.k, source.longest
    lines, growths = [], []
    for i, each in enumerate(source.rounds):
        before, after, rate = source.factors(each)
        growths.append(after * smooth.growth(d, None, before, each.budget))
        line = Line(rate, after * each.budget, shares[i], after * smooth.growth(d, k, before, each.budget), omegas[i])
        if smooth.layer is not None:
            scale, longest = before * after, math.inf if measured is None else measured[i] * after
            line = replace(line, smooth=scale * smooth.layer.smooth, free=scale * smooth.uncut, longest=longest)
        lines.append(line)
    return ThreatSchedule(d, k, tuple(lines), source.server.rho), growths


def attacking(source: CertificateSource, share: float | None, attackers: int | None) -> tuple[list[float], Assumption]:
    """Return the attackers' share of the updates in each round: as given, or as the config or run has it."""
    cohorts = [each.cohort for each in source.rounds]
    if share is not None:
        shares = [share] * len(cohorts)
        who = f"In every round at most a share of {share:g} of the updates is the attackers'."
    elif attackers is not None:
        if not 0 <= attackers < min(cohorts):
            why = f"the smallest round has {min(cohorts)} devices and one must be honest"
            raise ConfigError(f"--attackers is {attackers}, but {why}: choose from 0 to {min(cohorts) - 1}")
        shares = [attackers / cohort for cohort in cohorts]
        who = f"In every round at most {attackers} of the devices are attackers."
    else:
        shares, who = [each.attackers / each.cohort for each in source.rounds], _own_attackers(source)
    return shares, Assumption("attackers", f"{who} {ANYTHING}", "assumed")


def _own_attackers(source: CertificateSource) -> str:
    numbers = [each.attackers for each in source.rounds]
    if not any(numbers):
        raise ConfigError(f"there are no attackers in {source.label} to certify against; give --share or --attackers")
    for t, each in enumerate(source.rounds, 1):
        if each.attackers >= each.cohort:
            raise ConfigError(
                f"in round {t} all {each.cohort} devices are attackers, but one must be honest; use fewer"
            )
    where = "the run recorded them" if source.run else "the config's seed deals them"
    total = f"{sum(numbers):,} of {sum(each.cohort for each in source.rounds):,} in all"
    return f"As many devices of each round are attackers as {where}: {total}, at most {max(numbers)} in a round."


def losing(source: CertificateSource, omega: str | float) -> tuple[list[float], list[Assumption]]:
    """Return the share of l1 mass that top-k leaves in each round: the worst case, a given one, or as measured."""
    rounds, k = len(source.rounds), source.server.k
    if k is None:
        if omega != WORST:
            raise ConfigError(f"--omega is {omega}, but {source.label} applies every coordinate: nothing is left out")
        return [0.0] * rounds, []
    worst = worst_omega(source.d, k)
    if omega == WORST:
        text = f"Top-k leaves at most 1 - k/d = {worst:.6g} of the l1 mass that it sees, whatever comes."
        return [worst] * rounds, [Assumption("omega", text, "by construction")]
    if omega == MEASURED:
        return _measured(source, worst)
    try:
        value = float(omega)
    except ValueError:
        raise ConfigError(f"--omega is '{omega}'; use {WORST}, {MEASURED} or a number") from None
    if not 0 <= value <= worst:
        raise ConfigError(
            f"--omega is {omega}, but top {k} of {source.d} leaves 0 to 1 - k/d = {worst:.6g}; choose in between"
        )
    text = f"Given: top-k leaves at most {value:g} of the l1 mass that it sees, in every round and under every attack."
    return [value] * rounds, [Assumption("omega", text, "assumed", binding=True)]


def _measured(source: CertificateSource, worst: float) -> tuple[list[float], list[Assumption]]:
    if source.run is None:
        raise ConfigError(f"--omega measured is for run folders, but {source.label} is a config; use worst or a number")
    recorded = [each.omega for each in source.rounds]
    known = [min(value, worst) for value in recorded if value is not None]
    if len(known) < len(recorded):
        lacking = f"{source.label} has no omega in round {recorded.index(None) + 1} of its metrics"
        raise RunError(f"{lacking}, as old versions did not write it; use --omega worst, or run it again")
    text = (
        f"Top-k leaves no larger a share of l1 mass than it did in this run, round by round ({min(known):.3g} to "
        f"{max(known):.3g}); a run attacked otherwise may lose more, and then the number does not hold."
    )
    return known, [Assumption("omega", text, "measured", binding=True)]


def is_linear(source: CertificateSource) -> bool:
    """Return whether the model is one softmax layer that is trained on cross-entropy."""
    return lipschitz.is_softmax_task(source.experiment.task) and not source.arrays.is_text


def smoothness(source: CertificateSource, c: float | None, estimate: bool) -> tuple[Smoothness, list[Assumption]]:
    """Return the constants, and how they are known; with `estimate`, by a search even if they are known better."""
    task, federation = source.experiment.task, source.experiment.setup.federation
    decay = source.experiment.setup.weight_decay
    more = f" Weight decay adds {decay:.3g}." if decay else ""
    cutting = Assumption("clipping", CUTTING, "by construction")
    if c is not None:
        says = f"each coordinate of a device's gradient changes by at most {c:g} a unit of l1 change of the model."
        given = Assumption("c", f"Given: {says}{more}", "assumed", binding=True)
        return Smoothness(c + decay), [given, cutting]
    if is_linear(source) and not estimate:
        smooth = lipschitz.exact(task, federation, decay)
        data = "from the devices' training data"
        if federation.augment is not none:
            data = "for any bytes that augmentation may give"
        says = f"{smooth.c:.4g}, exact for one softmax layer, {data}; the largest of any device.{more}"
        return smooth, [Assumption("c", says, "by construction"), _cut(source, smooth, decay)]
    models = [source.experiment.theta, *([] if source.final is None else [source.final])]
    search = lipschitz.estimate_on_devices(task, federation, models, source.config.seed)
    says = (
        f"{search.c + decay:.4g}, the steepest change that a search found ({search.samples:,} second derivatives "
        f"looked at, on {search.devices} devices). The true one is no smaller, and a network with ReLU or max-pooling "
        f"has none at all: nothing here that needs c is a bound.{more}"
    )
    return Smoothness(search.c + decay), [Assumption("c", says, "estimate"), cutting]


def _cut(source: CertificateSource, smooth: Smoothness, decay: float) -> Assumption:
    why = f"an honest gradient can be {smooth.uncut:.4g} long, longer than the clip norm"
    if decay:
        why = "with weight decay an honest gradient has no largest length"
    text = f"It may cut honest updates ({why}), so only what survives a projection in l2 is used."
    if all(source.factors(each)[0] * smooth.uncut <= each.budget for each in source.rounds):
        text = f"It never cuts an honest update: no honest gradient is longer than {smooth.uncut:.4g}."
    return Assumption("clipping", text, "by construction")


def others(source: CertificateSource, smooth: Smoothness) -> Iterator[Assumption]:
    """Yield the assumptions of every certificate."""
    rates, norms = [each.lr for each in source.rounds], [each.budget for each in source.rounds]
    low, high, rho = min(norms), max(norms), source.server.rho
    norm = f"{high:.4g}" if low == high else f"{low:.3g} to {high:.3g}"
    where = "as the run recorded them" if source.run else "from the config's schedule"
    rounds = (
        f"{len(rates):,}, {where}; the learning rates add up to {sum(rates):.4g} and are from {min(rates):.3g} to "
        f"{max(rates):.3g}."
    )
    if not source.finished:
        rounds += f" The run is unfinished: only these of its {source.config.rounds:,} rounds count."
    if smooth.layer is not None and source.longest is not None:
        yield Assumption("honest lengths", LENGTHS, "measured")
    yield Assumption("rounds", rounds, "by construction")
    clipping = f"The server cuts every update to {norm} in l2, whoever sent it, and drops what is not finite."
    yield Assumption("clip norm", clipping, "by construction")
    if rho:
        text = f"Server momentum {rho:g}: the recursion extended to it, as derived in docs/certificate.md."
        yield Assumption("momentum", text, "by construction")
    yield Assumption("same draws", DRAWS, "by construction")
    yield Assumption("honest updates", "Every honest update is finite, so that none of them is dropped.", "assumed")
    rounding = f"Real numbers: the rounding of {source.config.train.dtype} is not counted."
    yield Assumption("arithmetic", rounding, "assumed")
