"""The l2 route of one softmax layer (`certify.linear`), for a source: often far below the l1 recursion.

A distance in l2 bounds the one in l1 by sqrt(d) of it, so that both routes end in the same table.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from sparsefed.commands.certify.smoothness import Smoothness, local_scale
from sparsefed.commands.certify.subject import Source
from sparsefed.commands.certify.supported import Server
from sparsefed.theory.linear import l2_radius
from sparsefed.theory.radius import Radius
from sparsefed.theory.threat_schedule import ThreatSchedule

Route = Callable[[ThreatSchedule], Radius | None]  # the l2 radius; None where there is none


def no_route(protocol: ThreatSchedule) -> None:  # noqa: ARG001 - a route of a model that has none
    """Of every model but one softmax layer."""
    return


def l2_route(source: Source, server: Server, smooth: Smoothness) -> Route:
    """The route of the source's model; top-k with momentum has none."""
    if smooth.layer is None:
        return no_route
    # What the server multiplies an update with after clipping it, and a device its gradient before.
    after = [each.lr if server.inside and source.config.train.mode != "fedavg" else 1.0 for each in source.rounds]
    scales = [local_scale(source, each.lr) * factor for each, factor in zip(source.rounds, after, strict=True)]
    steep, free = [scale * smooth.layer.smooth for scale in scales], [scale * smooth.uncut for scale in scales]
    known = longest(source)
    norms = None if known is None else [norm * factor for norm, factor in zip(known, after, strict=True)]

    def route(given: ThreatSchedule) -> Radius | None:
        if given.k is not None and given.rho > 0:
            return None
        t = len(given.lines)
        seen = norms[:t] if norms is not None and given.k == server.k else None  # of this protocol, not of its twin
        return l2_radius(given, steep[:t], free[:t], seen)

    return route


def longest(source: Source) -> list[float] | None:
    """The longest update of each round before clipping, where they were written down, all of them, in a run without
    attackers: what was measured under one attack says nothing of another."""
    if source.attacked:
        return None
    known = [each.longest for each in source.rounds if each.longest is not None]
    return known if len(known) == len(source.rounds) else None


def in_l1(found: Radius | None, d: int) -> Radius | None:
    """The same as a distance in l1."""
    root = math.log(d) / 2
    return None if found is None else Radius(found.log + root, found.additive + root)
