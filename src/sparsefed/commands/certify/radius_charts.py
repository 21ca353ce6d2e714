"""The certificate's charts: radii by round, and certified accuracy by the share of attackers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import altair as alt

from sparsefed.commands.certify.accuracy import Accuracy
from sparsefed.commands.certify.bounds import written
from sparsefed.commands.certify.certificate import Certificate
from sparsefed.commands.certify.l2_bound import Route, in_l1
from sparsefed.reports.lines import PALETTE, Stroke, colours, dashes, dressed
from sparsefed.results.numbers import percent, significant
from sparsefed.theory import radius
from sparsefed.theory.threat_schedule import ThreatSchedule

MOST_ROUNDS = 24  # at which a radius is drawn: each is the certificate of a run that long
Points = Sequence[tuple[float, float]]
SERIES = {
    "sparse": Stroke(PALETTE[0], (1, 0)),
    "dense": Stroke(PALETTE[1], (8, 3)),
    "sparse, clipping alone": Stroke(PALETTE[0], (3, 2)),
    "dense, clipping alone": Stroke(PALETTE[1], (3, 2)),
}


def charts(found: Certificate) -> dict[str, alt.LayerChart]:
    """Return the charts that there are numbers for, by names that can be part of a file name."""
    every = {"radius": _radii(found, capped=True), "theorem": _radii(found, capped=False)}
    return (
        every
        if found.accuracy is None or not found.accuracy.curve
        else {"accuracy": _accuracy(found.accuracy), **every}
    )


def _radii(found: Certificate, capped: bool) -> alt.LayerChart:
    """Draw log10 of a radius against the round, sparse and dense, with the bound from clipping alone."""
    protocols = {"sparse": found.protocols.sparse, "dense": found.protocols.dense}
    given = {name: protocol for name, protocol in protocols.items() if protocol is not None}
    bound = _best(found.route) if capped else _recursion
    theirs = {name: _by_round(protocol, bound) for name, protocol in given.items()}
    alone = {f"{name}, clipping alone": _by_round(protocol, radius.movement) for name, protocol in given.items()}
    lines = {name: points for name, points in {**theirs, **alone}.items() if points}
    ends = "; ".join(f"{name} ends at {written(points[-1][1] * math.log(10))}" for name, points in lines.items())
    what = "The radius to quote" if capped else "What the theorem says without the cap"
    x = alt.X("x:Q", title="Round", axis=alt.Axis(format="d", grid=False, tickMinStep=1, tickCount=6))
    y = alt.Y("y:Q", title="log10 of the l1 radius", scale=alt.Scale(zero=False))
    estimate = " Estimate, not a certificate." if found.status == "estimate" else ""
    title = alt.Title(what, subtitle=f"By round: {ends}.{estimate}")
    return _lines(lines, (x, y), title, ("Round", "Radius"), lambda log10: written(log10 * math.log(10)))


def _by_round(protocol: ThreatSchedule, bound: Callable[[ThreatSchedule], float]) -> list[tuple[float, float]]:
    total = len(protocol.lines)
    rounds = sorted({max(1, round(total * step / MOST_ROUNDS)) for step in range(1, MOST_ROUNDS + 1)})
    logs = ((t, bound(replace(protocol, lines=protocol.lines[:t]))) for t in rounds)
    return [(t, log / math.log(10)) for t, log in logs if math.isfinite(log)]


def _best(route: Route) -> Callable[[ThreatSchedule], float]:
    def best(protocol: ThreatSchedule) -> float:
        by_l2 = in_l1(route(protocol), protocol.d)
        return min(radius.capped(protocol).log, math.inf if by_l2 is None else by_l2.log)

    return best


def _recursion(protocol: ThreatSchedule) -> float:
    return radius.recursion(protocol).log


def _accuracy(found: Accuracy) -> alt.LayerChart:
    lines = {
        "certified accuracy": [(each.share, each.accuracy) for each in found.curve],
        "chance": [(found.curve[0].share, found.chance), (found.curve[-1].share, found.chance)],
    }
    x = alt.X("x:Q", title="Attackers' share of each round's updates", axis=alt.Axis(format=".2~%", tickCount=6))
    y = alt.Y("y:Q", title="Certified accuracy", axis=alt.Axis(format=".0%"), scale=alt.Scale(domain=[0, 1]))
    best = "at no share" if not found.largest else f"up to a share of {100 * found.largest:.3g}%"
    told = f"{percent(found.plain)} without attackers; more than chance ({percent(found.chance)}) is certified {best}."
    title = alt.Title("Predictions that no attack can change", subtitle=told)
    return _lines(lines, (x, y), title, ("Share", "Certified"), percent)


def _lines(
    lines: Mapping[str, Points],
    axes: tuple[alt.X, alt.Y],
    title: alt.Title,
    told: tuple[str, str],
    write: Callable[[float], str],
) -> alt.LayerChart:
    """Draw named curves with a dot and a tooltip at each point."""
    names = list(lines)
    strokes = {name: SERIES.get(name, Stroke(PALETTE[i], (3, 2) if i else (1, 0))) for i, name in enumerate(names)}
    data: list[dict[str, Any]] = [
        {"line": name, "x": significant(x, 6), "y": significant(y, 6), told[0]: f"{x:.4g}", told[1]: write(y)}
        for name, points in lines.items()
        for x, y in points
    ]
    base = alt.Chart(alt.InlineData(values=data)).encode(x=axes[0], y=axes[1], color=colours(strokes))
    tips = [alt.Tooltip("line:N", title="Bound"), *(alt.Tooltip(f"{each}:N") for each in told)]
    dots = base.mark_point(filled=True, size=40, opacity=0.9).encode(tooltip=tips)
    chart = alt.LayerChart(layer=[base.mark_line(strokeWidth=2).encode(strokeDash=dashes(strokes)), dots])
    return dressed(chart, title, names)
