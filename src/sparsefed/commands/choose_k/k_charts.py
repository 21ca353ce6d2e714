"""The charts of choosing k: what is lost, and the probe runs' accuracies, against k on a logarithmic scale."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt

from sparsefed.commands.choose_k.choice import ChooseKResult, Stage
from sparsefed.reports.lines import PALETTE, Stroke, colours, dashes, dressed
from sparsefed.results.numbers import length, log_ticks, percent, significant

K = "k"  # a field, an axis and a line of the tooltip
MARKS = {  # upright rules, the same on both charts
    "chosen": Stroke("#d55e00", (1, 0)),
    "paper": Stroke("#b5609a", (8, 3)),
    "config": Stroke("#7f7f7f", (3, 2)),
    "knee": Stroke("#d55e00", (8, 3)),
}
LINES = {  # of the probe runs
    "test accuracy, nobody attacks": ("test", Stroke("#0072b2", (1, 0))),
    "test accuracy, attacked": ("attacked_test", Stroke("#0072b2", (8, 3))),
    "attack accuracy": ("attack", Stroke("#c2357a", (1, 0))),
}
STAGES = (PALETTE[0], PALETTE[2], PALETTE[4], PALETTE[5])


def when(stage: Stage) -> str:
    """Return a label for the sampled model."""
    return f"after {stage.rounds} round{'s' if stage.rounds > 1 else ''}" if stage.rounds else "at the start"


def lost(outcome: ChooseKResult, value: float) -> str:
    """Return what is lost as text, as a share or as a mass."""
    return length(value) if outcome.options.absolute else percent(value)


def curve_chart(outcome: ChooseKResult) -> alt.LayerChart:
    """Draw what top-k loses against k: one line per stage, the range of its samples, and the k's to compare."""
    strokes = {when(stage): Stroke(STAGES[i % len(STAGES)], (1, 0)) for i, stage in enumerate(outcome.stages)}
    limit = f"omega = {lost(outcome, outcome.options.omega)}"
    marks = _curve_marks(outcome)
    strokes |= {limit: Stroke("#7f7f7f", (1, 2))} | {name: MARKS[kind] for name, (kind, _) in marks.items()}
    color = colours(strokes)
    x = _x([1, outcome.d])
    y = _y("Mass lost" if outcome.options.absolute else "Share of the l1 mass lost", not outcome.options.absolute)
    points = alt.Chart(alt.InlineData(values=_curve_points(outcome))).encode(x=x)
    lines = points.mark_line(strokeWidth=2).encode(y=y, color=color, strokeDash=dashes(strokes))
    readable = points.mark_point(opacity=0, size=60, tooltip=alt.TooltipContent("data")).encode(y=y)
    across = alt.Chart(alt.InlineData(values=[{"line": limit, "value": outcome.options.omega}]))
    level = across.mark_rule(strokeWidth=1.5).encode(y=y, color=color, strokeDash=dashes(strokes))
    told = f"k = {outcome.k:,} loses at most {lost(outcome, outcome.options.omega)} at every model that was sampled."
    layers = [*_bands(outcome, strokes, x), lines, level, _rules(marks, strokes, x), readable]
    return _dressed(layers, "What top-k loses", told, list(strokes))


def probe_chart(outcome: ChooseKResult) -> alt.LayerChart:
    """Draw the results of the probe runs against k."""
    marks = _probe_marks(outcome)
    points = [
        {"line": name, K: probe.k, "value": significant(value), name: percent(value)}
        for name, (key, _) in LINES.items()
        for probe in outcome.probes
        if (value := getattr(probe, key)) is not None
    ]
    strokes = {name: stroke for name, (_, stroke) in LINES.items() if any(point["line"] == name for point in points)}
    strokes |= {name: MARKS[kind] for name, (kind, _) in marks.items()}
    x, y, color = _x([probe.k for probe in outcome.probes]), _y("Accuracy", True), colours(strokes)
    base = alt.Chart(alt.InlineData(values=points)).encode(x=x, y=y, color=color)
    lines = base.mark_line(strokeWidth=2).encode(strokeDash=dashes(strokes))
    dots = base.mark_point(filled=True, size=60, opacity=1, tooltip=alt.TooltipContent("data"))
    best = outcome.knee
    told = f"The knee is at k = {best.k:,}." if best else "No run converged."
    return _dressed([lines, _rules(marks, strokes, x), dots], "What probe runs came to", told, list(strokes))


def _curve_points(outcome: ChooseKResult) -> list[dict[str, Any]]:
    return [
        {"line": when(stage), K: k, "value": significant(mean), "least": significant(low), "most": significant(high)}
        for stage in outcome.stages
        for k, mean, low, high in zip(stage.grid, stage.mean, stage.low, stage.high, strict=True)
    ]


def _curve_marks(outcome: ChooseKResult) -> dict[str, tuple[str, int]]:
    marks = {f"chosen: {outcome.k:,}": ("chosen", outcome.k), f"paper: {outcome.paper_k:,}": ("paper", outcome.paper_k)}
    own = outcome.own_k
    return marks if own is None or own > outcome.d else {**marks, f"config: {own:,}": ("config", own)}


def _probe_marks(outcome: ChooseKResult) -> dict[str, tuple[str, int]]:
    low, high = outcome.probes[0].k, outcome.probes[-1].k
    marks = {f"knee: {outcome.knee.k:,}": ("knee", outcome.knee.k)} if outcome.knee else {}
    inside = low <= outcome.k <= high
    return marks | ({f"chosen by mass: {outcome.k:,}": ("chosen", outcome.k)} if inside else {})


def _rules(marks: Mapping[str, tuple[str, int]], strokes: Mapping[str, Stroke], x: alt.X) -> alt.Chart:
    rows = [{"line": name, K: k} for name, (_, k) in marks.items()]
    rules = alt.Chart(alt.InlineData(values=rows)).mark_rule(strokeWidth=1.5, tooltip=alt.TooltipContent("data"))
    drawn: alt.Chart = rules.encode(x=x, color=colours(strokes), strokeDash=dashes(strokes))
    return drawn


def _bands(outcome: ChooseKResult, strokes: Mapping[str, Stroke], x: alt.X) -> list[alt.Chart]:
    """Draw the range of the samples of each stage; without a legend, which would be as pale as the bands."""
    points = _curve_points(outcome)
    bands = {name: [point for point in points if point["line"] == name] for name in map(when, outcome.stages)}
    return [
        alt.Chart(alt.InlineData(values=each))
        .mark_area(opacity=0.15, color=strokes[name].color)
        .encode(x=x, y="least:Q", y2="most:Q")
        for name, each in bands.items()
    ]


def _x(ks: Sequence[int]) -> alt.X:
    low, high = min(ks), max(ks)
    if low == high:  # a domain must not be empty
        low, high = max(1, low // 2), 2 * high
    axis = alt.Axis(format="~s", values=log_ticks(low, high), grid=False, labelFlush=False, labelOverlap=True)
    return alt.X(f"{K}:Q", title="k (log)", axis=axis, scale=alt.Scale(type="log", domain=[low, high], nice=False))


def _y(title: str, share: bool) -> alt.Y:
    if share:
        return alt.Y("value:Q", title=title, axis=alt.Axis(format=".0%"), scale=alt.Scale(domain=[0, 1]))
    return alt.Y("value:Q", title=title, axis=alt.Axis(format="~g"))


def _dressed(layers: Sequence[alt.Chart], title: str, told: str, names: Sequence[str]) -> alt.LayerChart:
    return dressed(alt.LayerChart(layer=list(layers)), alt.Title(title, subtitle=textwrap.wrap(told, 100)), names)
