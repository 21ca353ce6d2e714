"""The l2 route of one softmax layer (`theory.linear`), for a source: often far below the l1 recursion.

A distance in l1 is at most sqrt(d) times the one in l2, so both routes end in the same table.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from sparsefed.commands.certify.smoothness import Smoothness, local_scale
from sparsefed.commands.certify.subject import CertificateSource
from sparsefed.commands.certify.supported import CoveredServer
from sparsefed.theory.linear import l2_radius
from sparsefed.theory.radius import Radius
from sparsefed.theory.threat_schedule import ThreatSchedule

Route = Callable[[ThreatSchedule], Radius | None]  # the l2 radius; None where there is none


def no_route(schedule: ThreatSchedule) -> None:  # noqa: ARG001 - a route of a model that has none
    """Return None, the route of every model but one softmax layer."""
    return


def l2_route(source: CertificateSource, server: CoveredServer, smooth: Smoothness) -> Route:
    """Return the route of the source's model; top-k with momentum has none."""
    if smooth.layer is None:
        return no_route
    # The server's factor on an update after clipping it, and the device's on its gradient before.
    after = [each.lr if server.inside and source.config.train.mode != "fedavg" else 1.0 for each in source.rounds]
    scales = [local_scale(source, each.lr) * factor for each, factor in zip(source.rounds, after, strict=True)]
    steep, free = [scale * smooth.layer.smooth for scale in scales], [scale * smooth.uncut for scale in scales]
    known = longest(source)
    norms = None if known is None else [norm * factor for norm, factor in zip(known, after, strict=True)]

    def route(given: ThreatSchedule) -> Radius | None:
        if given.k is not None and given.rho > 0:
            return None
        t = len(given.lines)
        seen = norms[:t] if norms is not None and given.k == server.k else None  # this schedule's, not its twin's
        return l2_radius(given, steep[:t], free[:t], seen)

    return route


def longest(source: CertificateSource) -> list[float] | None:
    """Return the longest update of each round before clipping, if a run without attackers recorded them all.

    Norms measured under one attack do not bound those under another.
    """
    if source.attacked:
        return None
    known = [each.longest for each in source.rounds if each.longest is not None]
    return known if len(known) == len(source.rounds) else None


def in_l1(l2: Radius | None, d: int) -> Radius | None:
    """Return a distance in l2 as one in l1."""
    root = math.log(d) / 2
    return None if l2 is None else Radius(l2.log + root, l2.additive + root)
