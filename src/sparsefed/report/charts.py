"""The charts: what the curves show, how they answer to a pointer, and colours that everyone can tell apart.

Every chart is drawn for a white page; a page in the dark recolours text and axes itself. The palette keeps a contrast
of 3:1 to both and starts with the colours of Okabe and Ito (2008), which the colour-blind tell apart; dashes double it.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from sparsefed.errors import RunError
from sparsefed.report.numbers import Curve, binned, curve, percent, perplexity, picked, significant
from sparsefed.report.summary import labels
from sparsefed.types import RunRecord

if TYPE_CHECKING:
    import altair as alt


class Stroke(NamedTuple):
    """How a line is drawn."""

    color: str
    dash: tuple[int, int]


MOST_POINTS = 400  # a curve; more cannot be seen, and a page of many runs must stay light
SIZE = {"width": 640, "height": 280}
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#b5609a", "#8c6d1f", "#7a6fd0", "#c0444c", "#7f7f7f")
DASHES = ((1, 0), (8, 3), (3, 2))
ROUND = "Round"  # a field, an axis and a line of the tooltip
INK = "#5f6670"  # text, readable on white; the page overrides it in the dark
WHO = {  # what is drawn of the norms, from which key of a row
    "attackers": ("attacker_norm", Stroke("#c2357a", (1, 0))),
    "honest devices": ("honest_norm", Stroke("#7f7f7f", (1, 0))),
    "server's limit": ("budget", Stroke("#0072b2", (4, 5))),
}
TEXT = {"labelColor": INK, "labelFontSize": 12}
LEGEND = TEXT | {"labelLimit": 240, "orient": "top", "title": None, "symbolType": "stroke", "symbolSize": 300}
CONFIG: dict[str, Any] = {
    "aria": False,  # each chart is one picture with one text alternative, not hundreds of labelled marks
    "background": "white",
    "font": "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif",
    "view": {"stroke": None},
    "axis": TEXT | {"titleColor": INK, "titleFontSize": 12, "titleFontWeight": "normal", "gridColor": "#e3e6ea"},
    "title": {"anchor": "start", "fontSize": 15, "subtitleColor": INK, "subtitleFontSize": 12, "offset": 12},
}


def charts(runs: Sequence[RunRecord]) -> dict[str, alt.LayerChart]:
    """The charts that these runs have numbers for, by a name that can be part of a file's name.

    `test-accuracy`, `test-perplexity` (text), `attack-accuracy`, `attack-landed`, `norms-1`, `norms-2`, ... (a run
    each, on one scale), `clipped`.
    """
    check(runs)
    shares = {
        "test-accuracy": _shares(runs, "test_accuracy", "Test accuracy", "How often the model is right on test data"),
        "attack-accuracy": _shares(runs, "attack_accuracy", "Attack accuracy", "How often the attackers get their way"),
    }
    clipped = _shares(runs, "clipped", "Updates clipped", "How many updates were longer than the server allows")
    landed = _shares(runs, "attack_landed", "Landed", "How much of what attackers sent reached the model")
    more = {"test-perplexity": _perplexity(runs), "attack-landed": landed}
    every = {**shares, **more, **_norms(runs), "clipped": clipped}
    return {name: chart for name, chart in every.items() if chart is not None}


def check(runs: Sequence[RunRecord]) -> None:
    """One clear error where there is nothing to report on."""
    if not runs:
        raise RunError("there is nothing to report on: no run was given; name at least one run folder")
    if empty := [run.name for run in runs if not run.rows]:
        raise RunError(f"no finished round yet in: {', '.join(empty)}; report on it after its first round")


def log_ticks(low: float, high: float) -> list[float]:
    """1, 2 and 5 of each decade between the two, or the decades alone where these are many.

    >>> log_ticks(0.6, 30)
    [1.0, 2.0, 5.0, 10.0, 20.0]
    """
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = (1, 2, 5) if len(decades) <= 4 else (1,)
    ticks = (significant(step * 10.0**decade) for decade in decades for step in steps)
    return [tick for tick in ticks if low <= tick <= high]


def _shares(runs: Sequence[RunRecord], key: str, axis: str, title: str) -> alt.LayerChart | None:
    """One share between 0 and 1 against the round, a line a run."""
    import altair as alt

    # An accuracy is shown as it was measured; a share of a small cohort jitters, so neighbours are put together.
    thin = picked if key.endswith("accuracy") else binned
    lines = {label: thin(curve(run.rows, key), MOST_POINTS) for label, run in zip(labels(runs), runs, strict=True)}
    lines = {label: points for label, points in lines.items() if points}
    if not lines:
        return None
    # A run looks the same in every chart, also where others are missing.
    strokes = [_stroke(i) for i, label in enumerate(labels(runs)) if label in lines]
    y = alt.Y("value:Q", title=axis, axis=alt.Axis(format=".0%"), scale=alt.Scale(domain=[0, 1]))
    ends = "; ".join(f"{label} ends at {percent(points[-1][1])}" for label, points in lines.items())
    return _lines(
        lines, strokes, y, percent, alt.Title(title, subtitle=textwrap.wrap(f"{axis} by round: {ends}.", 100))
    )


def _perplexity(runs: Sequence[RunRecord]) -> alt.LayerChart | None:
    """The perplexity of runs on text against the round, on a logarithmic scale."""
    import altair as alt

    names = labels(runs)
    lines = {
        label: picked(curve(run.rows, "test_perplexity"), MOST_POINTS) for label, run in zip(names, runs, strict=True)
    }
    lines = {label: points for label, points in lines.items() if points}
    if not lines:
        return None
    values = [value for points in lines.values() for _, value in points]
    low, high = significant(min(values) / 1.25), significant(max(values) * 1.25)
    axis = alt.Axis(format="~s", values=log_ticks(low, high))
    y = alt.Y(
        "value:Q", title="Perplexity (log)", axis=axis, scale=alt.Scale(type="log", domain=[low, high], nice=False)
    )
    ends = "; ".join(f"{label} ends at {perplexity(points[-1][1])}" for label, points in lines.items())
    told = textwrap.wrap(f"Test perplexity by round: {ends}.", 100)
    strokes = [_stroke(i) for i, label in enumerate(names) if label in lines]
    return _lines(lines, strokes, y, perplexity, alt.Title("How sure the model is of the next token", subtitle=told))


def _stroke(i: int) -> Stroke:
    return Stroke(PALETTE[i % len(PALETTE)], DASHES[i % len(DASHES)])


def _norms(runs: Sequence[RunRecord]) -> dict[str, alt.LayerChart]:
    """The lengths of updates, a chart a run, all on one logarithmic scale."""
    import altair as alt

    names = labels(runs)
    per_run = [_norm_curves(run) for run in runs]
    values = [value for lines in per_run for points in lines.values() for _, value in points]
    if not values:
        return {}
    # The padding keeps a flat curve off the frame and an all-equal domain from being empty.
    low, high = significant(min(values) / 1.25), significant(max(values) * 1.25)
    y = alt.Y(
        "value:Q",
        title="l2 norm of an update (log)",
        axis=alt.Axis(format="~g", values=log_ticks(low, high)),
        scale=alt.Scale(type="log", domain=[low, high], nice=False),
    )
    return {
        f"norms-{i}": _lines(
            lines,
            [WHO[who][1] for who in lines],
            y,
            lambda norm: f"{norm:.3g}",
            alt.Title(f"How long the updates are: {name}", subtitle=_medians(lines)),
        )
        for i, (name, lines) in enumerate(zip(names, per_run, strict=True), start=1)
        if lines
    }


def _medians(lines: Mapping[str, Curve]) -> str:
    told = (f"{who} {median(value for _, value in points):.3g}" for who, points in lines.items())
    return f"l2 norms before the server clips, by round; medians: {', '.join(told)}."


def _norm_curves(run: RunRecord) -> dict[str, Curve]:
    every = {who: [(t, v) for t, v in curve(run.rows, key) if v > 0] for who, (key, _) in WHO.items()}
    return {who: binned(points, MOST_POINTS) for who, points in every.items() if points}


def _lines(
    lines: Mapping[str, Curve],
    strokes: Sequence[Stroke],
    y: alt.Y,
    write: Callable[[float], str],
    title: alt.Title,
) -> alt.LayerChart:
    """Named curves, and a rule that follows the pointer to the nearest round and tells every value there."""
    import altair as alt

    names = list(lines)
    long = [{"line": name, ROUND: t, "value": significant(v)} for name, points in lines.items() for t, v in points]
    # The domains also give the order: a `sort` would carry the names into an expression that not every name survives.
    colors = alt.Scale(domain=names, range=[stroke.color for stroke in strokes])
    dashes = alt.Scale(domain=names, range=[list(stroke.dash) for stroke in strokes])
    x, hover = _round_axis(lines), _nearest_round()
    seen = alt.when(hover).then(alt.value(1)).otherwise(alt.value(0))
    base = alt.Chart(alt.InlineData(values=long)).encode(x=x, y=y, color=alt.Color("line:N", scale=colors))
    drawn = base.mark_line(strokeWidth=2, clip=True).encode(strokeDash=alt.StrokeDash("line:N", scale=dashes))
    dots = base.mark_point(filled=True, size=50, opacity=1).transform_filter(hover)
    # The tooltip tells the whole datum: Vega-Lite 6 loses text fields named one by one when the nearest is looked for.
    readings = alt.Chart(alt.InlineData(values=_readings(lines, write)))
    rule = readings.mark_rule(color="#7f7f7f", tooltip=alt.TooltipContent("data")).encode(x=x, opacity=seen)
    return _dressed(alt.LayerChart(layer=[drawn, rule.add_params(hover), dots]), title, names)


def _dressed(chart: alt.LayerChart, title: alt.Title, names: Sequence[str]) -> alt.LayerChart:
    """The chart with title, size and looks, its legend in as many columns as there is room for."""
    # Pixels of a column: the line, then a letter each up to the label limit. A page narrower than SIZE needs to know.
    column = 46 + 6.5 * min(36, max(map(len, names)))
    legend = LEGEND | {"columns": max(1, int(SIZE["width"] // column))}
    sized = chart.properties(title=title, usermeta={"legendColumn": column}, **SIZE)
    dressed: alt.LayerChart = sized.configure(**CONFIG, legend=legend)
    return dressed


def _round_axis(lines: Mapping[str, Curve]) -> alt.X:
    import altair as alt

    last = max(points[-1][0] for points in lines.values())
    axis = alt.Axis(format="d", grid=False, tickMinStep=1, tickCount=6, labelFlush=False)
    return alt.X(f"{ROUND}:Q", title=ROUND, axis=axis, scale=alt.Scale(domain=[0, last], nice=False))


def _nearest_round() -> alt.Parameter:
    import altair as alt

    return alt.selection_point(
        name="hover", fields=[ROUND], nearest=True, on="pointerover", clear="pointerout", empty=False
    )


def _readings(lines: Mapping[str, Curve], write: Callable[[float], str]) -> list[dict[str, Any]]:
    """For each round on the chart the values of all lines, as the text that the pointer shows."""
    at = {name: dict(points) for name, points in lines.items()}
    rounds = sorted({t for values in at.values() for t in values})
    told = ({name: write(values[t]) if t in values else "–" for name, values in at.items()} for t in rounds)
    return [{ROUND: t} | texts | {ROUND: t} for t, texts in zip(rounds, told, strict=True)]
