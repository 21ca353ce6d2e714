"""The cost and benefit of one parameter of a defense, over runs that differ in it alone: k, and the clipping norm L."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import altair as alt

from sparsefed.core.types import RunRecord
from sparsefed.reports.lines import MARKS, PALETTE, dressed, share_axis
from sparsefed.results.groups import facts, frozen, told_apart
from sparsefed.results.matrix import NO_ATTACK, mean
from sparsefed.results.numbers import finite, log_ticks, percent, significant
from sparsefed.results.summary import SummaryRow, attacked, summary

DIALS = {"k": "k, the coordinates that a round may change", "clip_norm": "L, the norm that an update may have"}
MEASURES = {"Test accuracy": PALETTE[0], "Attack accuracy": PALETTE[1]}
MOST_CHARTS = 6  # per parameter
SHARE = "Share"


class Sweep(NamedTuple):
    """A group of runs that differ in one parameter (and the seed) alone."""

    dial: str  # its name, a key of DIALS
    name: str  # what is common to them
    rows: Mapping[float, Sequence[SummaryRow]]  # by its value, ascending; one row per seed


def sweeps(runs: Sequence[RunRecord], dial: str) -> list[Sweep]:
    """Return the groups of runs in which this parameter takes several values."""
    values = [finite((run.config.get("defense") or {}).get(dial)) for run in runs]
    fit = [i for i, value in enumerate(values) if value is not None and value > 0]
    others = {i: {key: v for key, v in facts(runs[i]).items() if key != f"defense.{dial}"} for i in fit}
    alike = [[i for i in fit if frozen(others[i]) == group] for group in dict.fromkeys(map(frozen, others.values()))]
    groups = [own for own in alike if len({values[i] for i in own}) > 1]
    rows = summary(runs)
    names = told_apart([(_pair(runs[own[0]]), others[own[0]]) for own in groups])
    return [
        Sweep(dial, name, {v: [rows[i] for i in own if values[i] == v] for v in sorted({values[i] or 0 for i in own})})
        for name, own in zip(names, groups, strict=True)
    ]


def tradeoffs(runs: Sequence[RunRecord]) -> dict[str, alt.LayerChart]:
    """Draw a chart for each group of runs that differ in k, or in L, alone."""
    return {
        f"{dial.replace('_', '-')}-{i}": chart(sweep)
        for dial in DIALS
        for i, sweep in enumerate(sweeps(runs, dial)[:MOST_CHARTS], start=1)
    }


def chart(sweep: Sweep) -> alt.LayerChart:
    """Draw test and attack accuracy against the parameter: means over seeds, with bars from minimum to maximum."""
    points = _points(sweep)
    kinds = [kind for kind in MEASURES if any(point["kind"] == kind for point in points)]
    x = _axis(sweep)
    color = alt.Color("kind:N", scale=alt.Scale(domain=kinds, range=[MEASURES[kind] for kind in kinds]))
    shape = alt.Shape("kind:N", scale=alt.Scale(domain=kinds, range=["circle", "square"][: len(kinds)]))
    base = alt.Chart(alt.InlineData(values=points)).encode(x=x, y=alt.Y(**share_axis(SHARE)), color=color)
    lines = base.mark_line(strokeWidth=2)
    marks = base.mark_point(filled=True, size=70, opacity=1, tooltip=alt.TooltipContent("data")).encode(shape=shape)
    bars = base.mark_rule(strokeWidth=1.5).encode(y=alt.Y("low:Q"), y2=alt.Y2("high:Q"))
    title = alt.Title(f"{DIALS[sweep.dial].split(',')[0]} for {sweep.name}", subtitle=textwrap.wrap(_told(points), 100))
    return dressed(alt.LayerChart(layer=[lines, bars, marks]), title, kinds or [SHARE], MARKS)


def _axis(sweep: Sweep) -> alt.X:
    low, high = min(sweep.rows) / 1.25, max(sweep.rows) * 1.25
    axis = alt.Axis(format="~s" if high > 1000 else "~g", values=log_ticks(low, high), grid=False)
    scale = alt.Scale(type="log", domain=[significant(low), significant(high)], nice=False)
    return alt.X("at:Q", title=f"{DIALS[sweep.dial]} (log)", axis=axis, scale=scale)


def _points(sweep: Sweep) -> list[dict[str, Any]]:
    measured = {
        "Test accuracy": {value: [row.test_accuracy for row in rows] for value, rows in sweep.rows.items()},
        "Attack accuracy": {value: [row.attack_accuracy for row in rows] for value, rows in sweep.rows.items()},
    }
    return [
        _point(kind, value, [each for each in several if each is not None])
        for kind, by_value in measured.items()
        for value, several in by_value.items()
        if mean(several) is not None
    ]


def _point(kind: str, value: float, several: Sequence[float]) -> dict[str, Any]:
    shares = {SHARE: mean(several) or 0.0, "low": min(several), "high": max(several)}
    return {"kind": kind, "at": value, **{key: significant(v) for key, v in shares.items()}, "seeds": len(several)}


def _told(points: Sequence[Mapping[str, Any]]) -> str:
    told = (f"at {point['at']:g} {point['kind'].lower()} {percent(point[SHARE])}" for point in points)
    return f"At the last evaluation, means over the seeds: {'; '.join(told)}."


def _pair(run: RunRecord) -> str:
    kinds = {kind: (run.config.get(kind) or {}).get("name", "") for kind in ("defense", "attack")}
    return f"{kinds['defense']} under {kinds['attack']}" if attacked(run) else f"{kinds['defense']}, {NO_ATTACK}"
