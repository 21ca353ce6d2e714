"""What a certificate says: every bound of `certify.radius`, for the source and its dense twin, and what they rest on.

*Best* is the number to quote: the capped recursion, which is never above the recursion nor above what clipping alone
promises (*movement*), or, for one softmax layer, the l2 route where that is smaller.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from sparsefed.commands.certify.accuracy import Accuracy
from sparsefed.commands.certify.assumptions import Assumption, Status, status
from sparsefed.commands.certify.l2_bound import Route, in_l1, no_route
from sparsefed.commands.certify.subject import Source
from sparsefed.commands.certify.threat_schedules import Protocols
from sparsefed.core.metrics import distances
from sparsefed.reports.result import Report
from sparsefed.theory import radius
from sparsefed.theory.radius import Radius
from sparsefed.theory.threat_schedule import ThreatSchedule

ALIKE = 1e-9  # of logarithms: two bounds that are one


@dataclass(frozen=True)
class Bounds:
    """Everything that can be said of one protocol."""

    recursion: Radius
    recursion_sqrt_d: Radius  # the additive term with sqrt(d), as the paper reads the norms
    capped: Radius
    movement: Radius
    closed_form: Radius
    paper: Radius
    paper_is_bound: bool
    softmax: Radius | None = None  # by the l2 route, as a distance in l1

    @property
    def best(self) -> Radius:
        """The smallest that is a bound: the capped recursion, or the l2 route."""
        return self.capped if self.softmax is None or self.capped.log <= self.softmax.log else self.softmax

    @property
    def only_clipping(self) -> bool:
        """Whether the theorem adds nothing to what clipping promises by itself."""
        return self.best.log >= self.movement.log - ALIKE


def bounds(protocol: ThreatSchedule, route: Route = no_route) -> Bounds:
    """All of them, as logarithms."""
    moved = radius.movement(protocol)
    return Bounds(
        recursion=radius.recursion(protocol),
        recursion_sqrt_d=radius.recursion(protocol, width=protocol.d),
        capped=radius.capped(protocol),
        movement=Radius(moved, moved),
        closed_form=radius.closed_form(protocol),
        paper=radius.paper_closed_form(protocol),
        paper_is_bound=radius.paper_is_bound(protocol),
        softmax=in_l1(route(protocol), protocol.d),
    )


@dataclass(frozen=True)
class Certificate(Report, described_by="sparsefed.commands.certify.document"):
    """The whole answer."""

    source: Source
    protocols: Protocols
    assumptions: tuple[Assumption, ...]
    route: Route
    sparse: Bounds | None
    dense: Bounds
    c: float
    travelled: float | None  # |theta_T - theta_0|_1 of a run, where its last model is there
    accuracy: Accuracy | None  # of one softmax layer that has been trained

    @property
    def own(self) -> Bounds:
        return self.sparse or self.dense

    @property
    def status(self) -> Status:
        """What the number to quote may be called."""
        return self.status_of("softmax" if self.own.best is self.own.softmax else "capped")

    def status_of(self, field: str) -> Status:
        """What one of the bounds may be called: clipping alone does not need c, and the l2 route not omega."""
        spared = {"movement": "c", "softmax": "omega"}.get(field)
        return status(each for each in self.assumptions if each.about != spared)


def certificate(
    source: Source,
    found: Protocols,
    route: Route,
    assumptions: Sequence[Assumption],
    c: float,
    accuracy: Accuracy | None = None,
) -> Certificate:
    """From the protocols, every number that follows."""
    return Certificate(
        source,
        found,
        tuple(assumptions),
        route,
        None if found.sparse is None else bounds(found.sparse, route),
        bounds(found.dense, route),
        c,
        None if source.final is None else distances(source.experiment.theta, source.final).l1,
        accuracy,
    )


def written(log: float) -> str:
    """A radius for a person, from its natural logarithm: a plain number below a million, else a power of ten; rounded
    up, for a bound that is rounded down is none.

    >>> written(math.log(12345.6)), written(math.log(0.5)), written(1000.0), written(-math.inf)
    ('12,400', '0.5', '10^434.3', '0')
    """
    if log == -math.inf:
        return "0"
    if log >= math.log(1e6):
        return f"10^{_up(log / math.log(10), 1):,.1f}"
    decimals = 2 - math.floor(log / math.log(10))
    value = _up(math.exp(log), decimals)
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def times(log: float) -> str:
    """A factor for a person, from its natural logarithm.

    >>> times(math.log(1.4444)), times(1000.0)
    ('1.44', '10^434')
    """
    return f"{math.exp(log):,.3g}" if log < math.log(1000) else f"10^{log / math.log(10):,.0f}"


def power(log: float) -> str:
    """The same as a logarithm to the base 10.

    >>> power(math.log(1000)), power(-math.inf)
    ('3.00', '-inf')
    """
    if not math.isfinite(log):
        return "-inf"
    log10 = log / math.log(10)
    return f"{_up(log10, 0):,.0f}" if log10 >= 10_000 else f"{_up(log10, 2):,.2f}"


def _up(value: float, decimals: int) -> float:
    """Rounded up, but for what floating point added."""
    scaled = value * 10.0**decimals
    return math.ceil(scaled - 1e-9 * max(1.0, abs(scaled))) / 10.0**decimals
