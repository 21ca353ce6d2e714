"""The look of charts, and the most common kind: named curves against the round, with readings at the pointer.

Every chart is drawn for a white page; a dark page recolours text and axes itself. The palette has a contrast of
3:1 to both and starts with the colours of Okabe and Ito (2008), safe for colour-blind readers; dashes double it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import altair as alt

from sparsefed.results.numbers import Curve, log_ticks, significant

Band = Sequence[tuple[int, float, float]]  # round, lowest, highest


class Stroke(NamedTuple):
    """The look of a line: its colour and dashes."""

    color: str
    dash: tuple[int, int]


MOST_POINTS = 400  # per curve; more cannot be seen
MOST_IN_ALL = 3000  # points of a chart, so that a page of many runs stays light
LEAST_POINTS = 40
MOST_LINES = 12  # that a legend can name and a reader can follow
SIZE = {"width": 640, "height": 280}
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#b5609a", "#8c6d1f", "#7a6fd0", "#c0444c", "#7f7f7f")
GREY = PALETTE[-1]
DASHES = ((1, 0), (8, 3), (3, 2))
ROUND = "Round"  # a field, an axis and a line of the tooltip
RUN = "Run"
ON_COLOUR = "on_colour"  # the name of a layer whose text stands on colour and keeps its own, also in the dark
LOW, HIGH = "low", "high"  # fields: the ends of an error bar
INK = "#5f6670"  # text, readable on white; the page overrides it in the dark
TEXT = {"labelColor": INK, "labelFontSize": 12}
LEGEND = TEXT | {"labelLimit": 240, "orient": "top", "title": None, "symbolType": "stroke", "symbolSize": 300}
SWATCHES = {key: value for key, value in LEGEND.items() if not key.startswith("symbol")}  # of what is no line
MARKS = SWATCHES | {"offset": 24}  # of points
CONFIG: dict[str, Any] = {
    "aria": False,  # each chart is one picture with one text alternative, not hundreds of labelled marks
    "background": "white",
    "font": "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif",
    "view": {"stroke": None},
    "axis": TEXT | {"titleColor": INK, "titleFontSize": 12, "titleFontWeight": "normal", "gridColor": "#e3e6ea"},
    "title": {"anchor": "start", "fontSize": 15, "subtitleColor": INK, "subtitleFontSize": 12, "offset": 12},
}


def stroke(i: int) -> Stroke:
    """Return the look of the i-th of several lines."""
    return Stroke(PALETTE[i % len(PALETTE)], DASHES[i % len(DASHES)])


def points_each(lines: int) -> int:
    """Return how many points each curve may have on a chart of that many lines.

    >>> points_each(3), points_each(60)
    (400, 50)
    """
    return max(LEAST_POINTS, min(MOST_POINTS, MOST_IN_ALL // lines))


def log_scale(values: Iterable[float], title: str, format: str, **options: Any) -> dict[str, Any]:
    """Return a logarithmic axis; its padding keeps flat curves off the frame and the domain non-empty."""
    known = list(values)
    low, high = significant(min(known) / 1.25), significant(max(known) * 1.25)
    axis = alt.Axis(format=format, values=log_ticks(low, high), **options)
    return {"title": title, "axis": axis, "scale": alt.Scale(type="log", domain=[low, high], nice=False)}


def log_axis(values: Sequence[float], title: str, format: str) -> alt.Y:
    """Return the logarithmic y axis of curves."""
    return alt.Y("value:Q", **log_scale(values, title, format))


def drawn(
    lines: Mapping[str, Curve],
    strokes: Sequence[Stroke],
    y: alt.Y,
    write: Callable[[float], str],
    title: alt.Title,
    bands: Mapping[str, Band] | None = None,
) -> alt.LayerChart:
    """Draw named curves, with a rule that snaps to the round nearest to the pointer and lists every value there.

    `bands` are drawn behind some of the curves, from the lowest to the highest of several seeds.
    """
    names = list(lines)
    long: list[dict[str, Any]] = [
        {"line": name, ROUND: t, "value": significant(v)} for name, points in lines.items() for t, v in points
    ]
    looks = dict(zip(names, strokes, strict=True))
    x, hover = round_axis(max(point[ROUND] for point in long)), _nearest([ROUND])
    seen = alt.when(hover).then(alt.value(1)).otherwise(alt.value(0))
    base = alt.Chart(alt.InlineData(values=long)).encode(x=x, y=y, color=colours(looks))
    alone = any(len(points) == 1 for points in lines.values())  # one value makes no line, and would not be seen
    point = alt.OverlayMarkDef(size=60) if alone else False
    curves = base.mark_line(strokeWidth=2, clip=not alone, point=point).encode(strokeDash=dashes(looks))
    dots = base.mark_point(filled=True, size=50, opacity=1).transform_filter(hover)
    # The tooltip shows the whole datum: Vega-Lite 6 loses text fields named one by one when the nearest is looked for.
    readings = alt.Chart(alt.InlineData(values=_readings(lines, write)))
    rule = readings.mark_rule(color=GREY, tooltip=alt.TooltipContent("data")).encode(x=x, opacity=seen)
    behind = [_band_layer(bands, x, y, looks)] if bands else []
    return dressed(alt.LayerChart(layer=[*behind, curves, rule.add_params(hover), dots]), title, names)


def _band_layer(bands: Mapping[str, Band], x: alt.X, y: alt.Y, looks: Mapping[str, Stroke]) -> alt.Chart:
    values = [
        {"line": name, ROUND: t, LOW: significant(low), HIGH: significant(high)}
        for name, points in bands.items()
        for t, low, high in points
    ]
    up = y.copy()
    up.shorthand = f"{LOW}:Q"
    data = alt.Chart(alt.InlineData(values=values))
    layer: alt.Chart = data.mark_area(fillOpacity=0.2, clip=True).encode(
        x=x, y=up, y2=alt.Y2(f"{HIGH}:Q"), color=colours(looks)
    )
    return layer


def crowd(lines: Mapping[str, Curve], families: Mapping[str, str], y: alt.Y, title: alt.Title) -> alt.LayerChart:
    """Draw more curves than a legend can name: coloured by family, with the one nearest to the pointer highlighted."""
    names = list(dict.fromkeys(families[name] for name in lines))
    long: list[dict[str, Any]] = [
        {RUN: name, "family": families[name], ROUND: t, "value": significant(v, 3)}
        for name, points in lines.items()
        for t, v in points
    ]
    looks = {name: stroke(i) for i, name in enumerate(names)}
    x, hover = round_axis(max(point[ROUND] for point in long)), _nearest([RUN])
    base = alt.Chart(alt.InlineData(values=long)).encode(x=x, y=y, color=colours(looks, "family"), detail=f"{RUN}:N")
    width = alt.when(hover).then(alt.value(3.5)).otherwise(alt.value(1.5))
    opacity = alt.when(hover).then(alt.value(1)).otherwise(alt.value(0.85))
    curves = base.mark_line(clip=True).encode(strokeDash=dashes(looks, "family"), strokeWidth=width, opacity=opacity)
    dots = base.mark_point(opacity=0, tooltip=alt.TooltipContent("data")).add_params(hover)
    return dressed(alt.LayerChart(layer=[curves, dots]), title, names)


def means(base: alt.Chart, y: alt.Y, bars: bool = True, **line: Any) -> list[alt.Chart]:
    """Draw lines through means, a dot at each and, if wanted, an error bar; `line` are encodings of the lines alone."""
    lines = base.mark_line(strokeWidth=2).encode(y=y, **line)
    dots = base.mark_point(filled=True, size=45, opacity=1, tooltip=alt.TooltipContent("data")).encode(y=y)
    errors = base.mark_rule(clip=True).encode(y=alt.Y(f"{LOW}:Q", title=""), y2=f"{HIGH}:Q")
    return [lines, dots, *([errors] if bars else [])]


def dressed(
    chart: alt.LayerChart, title: alt.Title, names: Sequence[str], legend: Mapping[str, Any] = LEGEND, height: int = 280
) -> alt.LayerChart:
    """Return the chart with title, size and theme, its legend in as many columns as fit."""
    # Pixels of a column: the line, then a letter each up to the label limit. A page narrower than SIZE needs to know.
    column = 46 + 6.5 * min(36, max(map(len, names)))
    columns = {"columns": max(1, int(SIZE["width"] // column))}
    sized = chart.properties(title=title, usermeta={"legendColumn": column}, width=SIZE["width"], height=height)
    done: alt.LayerChart = sized.configure(**CONFIG, legend={**legend, **columns})
    return done


def share_axis(field: str, low: float = 0, high: float = 1) -> dict[str, Any]:
    """Return an axis for a share between 0 and 1, titled with the field's name."""
    axis = {"format": ".0%", "tickCount": 6, "labelFlush": False}
    return {"shorthand": f"{field}:Q", "title": field, "axis": axis, "scale": {"domain": [low, high]}}


def colours(strokes: Mapping[str, Stroke], field: str = "line", legend: bool = True) -> alt.Color:
    """Return the colours of named lines."""
    # The domain also gives the order: a `sort` would carry the names into an expression that not every name survives.
    scale = alt.Scale(domain=[*strokes], range=[each.color for each in strokes.values()])
    return alt.Color(f"{field}:N", scale=scale, legend=alt.Undefined if legend else None)


def dashes(strokes: Mapping[str, Stroke], field: str = "line", legend: bool = True) -> alt.StrokeDash:
    """Return the dashes of named lines; they share the legend of the colours, so both have one or neither."""
    scale = alt.Scale(domain=[*strokes], range=[list(each.dash) for each in strokes.values()])
    return alt.StrokeDash(f"{field}:N", scale=scale, legend=alt.Undefined if legend else None)


def marks(
    points: Sequence[Mapping[str, Any]], kinds: Mapping[str, tuple[str, str]], size: int, opacity: float
) -> alt.Chart:
    """Draw points with a colour and a shape by `kind`, and all their fields in the tooltip."""
    used = [kind for kind in kinds if any(point["kind"] == kind for point in points)]
    scales = [alt.Scale(domain=used, range=[kinds[kind][i] for kind in used]) for i in range(2)]
    drawn: alt.Chart = (
        alt.Chart(alt.InlineData(values=list(points)))
        .mark_point(filled=True, size=size, opacity=opacity, tooltip=alt.TooltipContent("data"))
        .encode(color=alt.Color("kind:N", scale=scales[0]), shape=alt.Shape("kind:N", scale=scales[1]))
    )
    return drawn


def stairs(points: Sequence[Mapping[str, Any]], color: str, step: Literal["step-after", "step-before"]) -> alt.Chart:
    """Draw a Pareto front as stairs."""
    data = alt.Chart(alt.InlineData(values=list(points)))
    drawn: alt.Chart = data.mark_line(color=color, strokeWidth=1.5, opacity=0.6, interpolate=step)
    return drawn


def round_axis(last: float, field: str = ROUND) -> alt.X:
    """Return the axis of rounds, from 0 to the last."""
    axis = alt.Axis(format="d", grid=False, tickMinStep=1, tickCount=6, labelFlush=False)
    return alt.X(f"{field}:Q", title=ROUND, axis=axis, scale=alt.Scale(domain=[0, last], nice=False))


def _nearest(fields: list[str]) -> alt.Parameter:
    return alt.selection_point(
        name="hover", fields=fields, nearest=True, on="pointerover", clear="pointerout", empty=False
    )


def _readings(lines: Mapping[str, Curve], write: Callable[[float], str]) -> list[dict[str, Any]]:
    """Return, for each round on the chart, the values of all lines as the text shown at the pointer."""
    at = {name: dict(points) for name, points in lines.items()}
    rounds = sorted({t for values in at.values() for t in values})
    texts = ({name: write(values[t]) if t in values else "–" for name, values in at.items()} for t in rounds)
    return [{ROUND: t} | line | {ROUND: t} for t, line in zip(rounds, texts, strict=True)]
