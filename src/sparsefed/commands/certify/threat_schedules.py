"""The numbers of a source as a `certify` protocol, and the same devices and rates without top-k beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sparsefed.commands.certify.assumptions import Assumption
from sparsefed.commands.certify.smoothness import Smoothness
from sparsefed.commands.certify.subject import Round, Source
from sparsefed.commands.certify.supported import Server
from sparsefed.core.errors import ConfigError, RunError
from sparsefed.theory.threat_schedule import Line, ThreatSchedule, check, worst_omega

WORST, MEASURED = "worst", "measured"


@dataclass(frozen=True)
class Protocols:
    """What is certified, and what it is compared with."""

    sparse: ThreatSchedule | None  # None: the source applies every coordinate
    dense: ThreatSchedule

    @property
    def own(self) -> ThreatSchedule:
        """The source's."""
        return self.sparse or self.dense


def protocols(
    source: Source, server: Server, shares: Sequence[float], smooth: Smoothness, omegas: Sequence[float]
) -> Protocols:
    """Both protocols, round by round."""
    sparse = None if server.k is None else _protocol(source, server, server.k, shares, smooth, omegas)
    dense = _protocol(source, server, None, shares, smooth, [0.0] * len(source.rounds))
    return Protocols(sparse, dense)


def _protocol(
    source: Source,
    server: Server,
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
    source: Source, server: Server, k: int | None, smooth: Smoothness, each: Round, share: float, omega: float
) -> Line:
    """A round. Where the rate is inside what the server sums up, it belongs to the updates and not to the server."""
    train = source.config.train
    if train.mode == "fedavg":  # an update is the device's rate times its gradient, and is then clipped
        scale = each.lr if train.local_lr is None else train.local_lr
        return Line(1.0, each.budget, share, smooth.growth(source.d, k, scale, each.budget), omega)
    grown = smooth.growth(source.d, k, 1.0, each.budget)
    if server.inside:  # clipped first, and then scaled
        return Line(1.0, each.lr * each.budget, share, each.lr * grown, omega)
    return Line(each.lr, each.budget, share, grown, omega)


def omegas(source: Source, server: Server, asked: str) -> tuple[list[float], Assumption | None]:
    """The share of l1 mass that top-k leaves, a number a round: the worst case, a given one, or what was measured."""
    rounds = len(source.rounds)
    if server.k is None:
        if asked != WORST:
            raise ConfigError(f"--omega is {asked}, but {source.path} applies every coordinate, so nothing is left out")
        return [0.0] * rounds, None
    worst = worst_omega(source.d, server.k)
    if asked == WORST:
        said = f"Top-k leaves at most 1 - k/d = {worst:.6g} of the l1 mass that it sees, whatever comes."
        return [worst] * rounds, Assumption("omega", said, "by construction")
    if asked == MEASURED:
        return _measured(source, worst)
    value = _number(asked)
    if not 0 <= value <= worst:
        raise ConfigError(
            f"--omega is {asked}, but top-k with k = {server.k} of d = {source.d} leaves 0 to 1 - k/d = {worst:.6g}"
        )
    said = f"Given: top-k leaves at most {value:g} of the l1 mass that it sees, in every round and under every attack."
    return [value] * rounds, Assumption("omega", said, "assumed", binding=True)


def _measured(source: Source, worst: float) -> tuple[list[float], Assumption]:
    if source.run is None:
        raise ConfigError(f"--omega measured is for run folders, but {source.path} is a config; use worst or a number")
    found = [each.omega for each in source.rounds]
    known = [min(value, worst) for value in found if value is not None]
    if len(known) < len(found):
        raise RunError(
            f"{source.path} has no omega in round {found.index(None) + 1} of its metrics: it was run by a version that "
            "did not write it; use --omega worst, or run it again"
        )
    said = (
        f"Top-k leaves no larger a share of l1 mass than it did in this run, round by round ({min(known):.3g} to "
        f"{max(known):.3g}); a run attacked otherwise may lose more, and then the number does not hold."
    )
    return known, Assumption("omega", said, "measured", binding=True)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ConfigError(f"--omega is '{text}'; use {WORST}, {MEASURED} or a number") from None
