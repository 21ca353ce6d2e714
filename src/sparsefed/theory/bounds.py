"""Every bound on the l1 distance of one threat schedule.

*Best* is the number to quote: the capped recursion, which is never above the recursion nor above the bound from
clipping alone (*movement*), or, for one softmax layer, the l2 radius if that is smaller: a distance in l1 is at most
sqrt(d) times the one in l2.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from sparsefed.theory import radius
from sparsefed.theory.linear import l2_radius
from sparsefed.theory.radius import Radius
from sparsefed.theory.threat_schedule import ThreatSchedule

ALIKE = 1e-9  # between logarithms: two bounds count as equal


@dataclass(frozen=True)
class Bounds:
    """All bounds of one threat schedule, by name; `softmax` (by way of l2) is there where it is known."""

    schedule: ThreatSchedule
    radii: Mapping[str, Radius]

    @property
    def paper_is_bound(self) -> bool:
        """Return whether the paper's closed form is a bound here."""
        return radius.paper_is_bound(self.schedule)

    @property
    def best_name(self) -> str:
        """Return which of the radii is the one to quote."""
        softmax = self.radii.get("softmax")
        return "softmax" if softmax is not None and softmax.log < self.radii["capped"].log else "capped"

    @property
    def best(self) -> Radius:
        """Return the smallest bound: the capped recursion, or the l2 route."""
        return self.radii[self.best_name]

    @property
    def only_clipping(self) -> bool:
        """Return whether the theorem adds nothing to the bound from clipping alone."""
        return self.best.log >= self.radii["movement"].log - ALIKE


def bounds(schedule: ThreatSchedule) -> Bounds:
    """Return every bound of a schedule; `recursion_sqrt_d` has sqrt(d) in the additive term, as the paper has it."""
    moved = radius.movement(schedule)
    radii = {
        "capped": radius.capped(schedule),
        "recursion": radius.recursion(schedule),
        "recursion_sqrt_d": radius.recursion(schedule, width=schedule.d),
        "movement": Radius(moved, moved),
        "closed_form": radius.closed_form(schedule),
        "paper": radius.paper_closed_form(schedule),
    }
    return Bounds(schedule, {"softmax": by_l2(schedule), **radii} if schedule.has_l2 else radii)


def by_l2(schedule: ThreatSchedule) -> Radius:
    """Return the l2 radius of a schedule as a distance in l1."""
    l2, root = l2_radius(schedule), math.log(schedule.d) / 2
    return Radius(l2.log + root, l2.additive + root)


def by_round(schedule: ThreatSchedule, most: int) -> dict[str, list[tuple[int, float]]]:
    """Return log10 of some bounds after at most so many of the rounds, each the bound of a run that long."""
    total = len(schedule.lines)
    curves: dict[str, list[tuple[int, float]]] = {"best": [], "recursion": [], "movement": []}
    for t in sorted({max(1, round(total * step / most)) for step in range(1, most + 1)}):
        first = replace(schedule, lines=schedule.lines[:t])
        best = min(radius.capped(first).log, by_l2(first).log if first.has_l2 else math.inf)
        logs = {"best": best, "recursion": radius.recursion(first).log, "movement": radius.movement(first)}
        for name, log in logs.items():
            if math.isfinite(log):
                curves[name].append((t, log / math.log(10)))
    return curves
