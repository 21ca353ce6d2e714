"""Every bound of `theory.radius` for one threat schedule, and radii as text.

*Best* is the number to quote: the capped recursion, which is never above the recursion nor above the bound from
clipping alone (*movement*), or, for one softmax layer, the l2 route if that is smaller.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from sparsefed.commands.certify.l2_bound import Route, in_l1, no_route
from sparsefed.theory import radius
from sparsefed.theory.radius import Radius
from sparsefed.theory.threat_schedule import ThreatSchedule

ALIKE = 1e-9  # between logarithms: two bounds count as equal


@dataclass(frozen=True)
class Bounds:
    """All bounds of one threat schedule."""

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
        """Return the smallest bound: the capped recursion, or the l2 route."""
        return self.capped if self.softmax is None or self.capped.log <= self.softmax.log else self.softmax

    @property
    def only_clipping(self) -> bool:
        """Return whether the theorem adds nothing to the bound from clipping alone."""
        return self.best.log >= self.movement.log - ALIKE


def bounds(schedule: ThreatSchedule, route: Route = no_route) -> Bounds:
    """Return every bound, as logarithms."""
    moved = radius.movement(schedule)
    return Bounds(
        recursion=radius.recursion(schedule),
        recursion_sqrt_d=radius.recursion(schedule, width=schedule.d),
        capped=radius.capped(schedule),
        movement=Radius(moved, moved),
        closed_form=radius.closed_form(schedule),
        paper=radius.paper_closed_form(schedule),
        paper_is_bound=radius.paper_is_bound(schedule),
        softmax=in_l1(route(schedule), schedule.d),
    )


def written(log: float) -> str:
    """Write a radius from its natural logarithm: a plain number below a million, else a power of ten.

    Rounded up, for a bound that is rounded down is none.

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
    """Write a factor from its natural logarithm.

    >>> times(math.log(1.4444)), times(1000.0)
    ('1.44', '10^434')
    """
    return f"{math.exp(log):,.3g}" if log < math.log(1000) else f"10^{log / math.log(10):,.0f}"


def power(log: float) -> str:
    """Write a natural logarithm as one to the base 10.

    >>> power(math.log(1000)), power(-math.inf)
    ('3.00', '-inf')
    """
    if not math.isfinite(log):
        return "-inf"
    log10 = log / math.log(10)
    return f"{_up(log10, 0):,.0f}" if log10 >= 10_000 else f"{_up(log10, 2):,.2f}"


def _up(value: float, decimals: int) -> float:
    """Round up, ignoring floating-point error."""
    scaled = value * 10.0**decimals
    return math.ceil(scaled - 1e-9 * max(1.0, abs(scaled))) / 10.0**decimals
