"""The charts of an exhibit, as its file describes them: a picture for each metric and each value of its panel.

They look like those of reports. The paper's numbers, if it prints any, are drawn as hollow diamonds beside ours.
"""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from statistics import fmean
from typing import Any

import altair as alt

from sparsefed.commands.reproduce.claims import MetricEntry, entries
from sparsefed.commands.reproduce.exhibit import ROUND, Chart, Exhibit, Paper, Pick
from sparsefed.commands.reproduce.grid import matches
from sparsefed.reports import lines as look
from sparsefed.reports.lines import HIGH, INK, LOW, SIZE
from sparsefed.results.measures import measure
from sparsefed.results.numbers import log_ticks, significant
from sparsefed.results.numbers import points as points_of
from sparsefed.results.summary import NOT_LEARNED
from sparsefed.sweeps.ledger import Row

MOST_TICKS = 10
CLOSE = 0.2  # shares that lie within this much of each other need not be drawn on an axis from 0 to 1
ROOM = 0.07  # of a logarithmic axis, for a label
IN_POINTS = "format(100 * datum.value, '.3~g')"  # an axis label in percentage points
WIDE = 50  # from this ratio of largest to smallest on, an axis is logarithmic
Points = list[dict[str, Any]]
X, Y, LINE, WHOSE, LOST, BAND = "x", "y", "line", "whose", "lost", "band"
OURS, PAPER = "ours", "paper"
CROSS = "×"
HEAT, ON_HEAT = ("#fff5ee", "#f0a07c"), "#1f2328"  # light enough for dark text everywhere
# What a caption explains of a chart, by what must be in its data for it to be there.
EXPLAINED = {
    HIGH: "Error bars are one standard deviation over the seeds, both ways.",
    BAND: "Bands are from the lowest to the highest of the seeds.",
    PAPER: "Hollow diamonds are the paper's numbers.",
    LOST: f"{CROSS}: the model of at least half of the runs learned nothing.",
}


def caption(chart: alt.LayerChart) -> str:
    """Return what explains the marks of a chart, and no others."""
    spec = chart.to_dict()
    if any(layer["mark"].get("type") == "rect" for layer in spec["layer"]):
        return "Below each number, the paper's." if "paper " in str(spec["datasets"]) else ""
    points = [point for values in spec["datasets"].values() for point in values]
    bands = any(layer["mark"].get("type") == "area" for layer in spec["layer"])
    shown = {BAND if bands else HIGH: any(point.get(HIGH) != point.get(LOW) for point in points)}
    shown |= {PAPER: any(point.get(WHOSE) == PAPER for point in points), LOST: any(point.get(LOST) for point in points)}
    return " ".join(sentence for mark, sentence in EXPLAINED.items() if shown.get(mark))


def charts(exhibit: Exhibit, rows: Sequence[Row], paper: Paper) -> dict[str, alt.LayerChart]:
    """Return the charts that there are numbers for, by names that can be part of a file name."""
    chart = exhibit.chart
    if chart is None:
        return {}
    values = dict.fromkeys(row["cell"].get(chart.panel, "") for row in rows)
    panels: list[Pick] = [{}] if chart.panel is None else [{chart.panel: (value,)} for value in values]
    drawn: dict[str, alt.LayerChart] = {}
    for metric in chart.y:
        for number, panel in enumerate(panels, 1):
            here = [row for row in rows if matches(row["cell"], panel)]
            if points := list(_points(exhibit, chart, metric, here, paper)):
                every = [_series(chart, row["cell"]) for row in rows]  # the same colours in every panel
                lines = list(dict.fromkeys([*every, *_names(points, LINE)]))
                draw = {"bars": _bars, "lines": _lines, "heat": _heat, "pareto": _pareto}[chart.kind]
                name = f"{metric}-{number}" if panel else metric
                drawn[name.replace("_", "-")] = draw(chart, metric, points, lines, _title(exhibit, metric, panel))
    return drawn


def together(drawn: Mapping[str, alt.LayerChart]) -> alt.VConcatChart | alt.LayerChart | None:
    """Return all charts of an exhibit as one, for a file."""
    if len(drawn) < 2:
        return next(iter(drawn.values()), None)
    bare = [chart.copy(deep=False) for chart in drawn.values()]
    config = bare[0].config
    for chart in bare:
        chart.config = chart.usermeta = alt.Undefined
    whole: alt.VConcatChart = alt.VConcatChart(vconcat=bare, config=config).resolve_scale(
        color="independent", strokeDash="independent"
    )
    return whole


def _title(exhibit: Exhibit, metric: str, panel: Pick) -> alt.Title:
    where = "".join(f"; {axis}: {values[0]}" for axis, values in panel.items())
    when = "every" if exhibit.chart is not None and exhibit.chart.x == ROUND else "the last"
    about = measure(metric).about.replace("the last evaluation", f"{when} evaluation")
    where_from = f"{exhibit.where} of the paper" if exhibit.in_paper else exhibit.where
    whole = f"{exhibit.title} ({where_from})" if exhibit.where else exhibit.title
    subtitle = f"{whole}. {about[:1].upper()}{about[1:]}{'.' if about else ''}"
    return alt.Title(f"{measure(metric).title}{where}", subtitle=textwrap.wrap(subtitle, 90))


# --- points ----------------------------------------------------------------------------------------------------------


def _points(exhibit: Exhibit, chart: Chart, metric: str, rows: Sequence[Row], paper: Paper) -> Iterator[dict[str, Any]]:
    """Yield what is drawn of a metric: ours and, at the combinations that were run, the paper's."""
    exact = exhibit.kind == "formula"
    every = entries(rows, metric, exact)
    if chart.x == ROUND:
        yield from _curve_points(chart, rows, metric)
    elif chart.kind == "pareto":
        yield from _pairs(chart, entries(rows, chart.x, exact), every)
    else:
        yield from _means(chart, metric, every)
        numbers = [row for row in paper.rows if row.metric == metric and isinstance(row.value, float | int)]
        for values in (entry.values for entry in every):
            for row in [row for row in numbers if matches(values, row.pick)][:1]:
                yield {X: values[chart.x], LINE: _series(chart, values), WHOSE: PAPER, Y: row.value}


def _means(chart: Chart, metric: str, every: Sequence[MetricEntry]) -> Iterator[dict[str, Any]]:
    floor = -math.inf if measure(metric).write is points_of else 0.0  # differences alone can be below 0
    for entry in every:
        if entry.mean is not None and chart.x in entry.values:
            mean, spread = entry.mean, entry.spread or 0.0
            point = {X: entry.values[chart.x], LINE: _series(chart, entry.values), WHOSE: OURS}
            numbers = {Y: mean, LOW: max(floor, mean - spread), HIGH: mean + spread}
            lost = {} if entry.converged else {LOST: True}
            yield {**point, **{key: significant(value) for key, value in numbers.items()}, **lost}


def _curve_points(chart: Chart, rows: Sequence[Row], metric: str) -> Iterator[dict[str, Any]]:
    """Yield the mean over the seeds, round by round."""
    gathered: dict[tuple[str, int], list[float]] = {}
    for row in rows:
        for t, value in row.get("curves", {}).get(metric, ()):
            gathered.setdefault((_series(chart, row["cell"]), t), []).append(value)
    for (line, t), values in gathered.items():
        yield {X: t, LINE: line, WHOSE: OURS, Y: significant(fmean(values)), LOW: min(values), HIGH: max(values)}


def _pairs(chart: Chart, across: Sequence[MetricEntry], up: Sequence[MetricEntry]) -> Iterator[dict[str, Any]]:
    for x, y in zip(across, up, strict=True):
        if x.mean is not None and y.mean is not None:
            point = {X: significant(x.mean), Y: significant(y.mean), LINE: _series(chart, y.values)}
            yield point | {WHOSE: OURS, "name": ", ".join(y.values.values())}


def _series(chart: Chart, values: Mapping[str, str]) -> str:
    """Return the line or row of a combination: its values of the colour axis and of axes with no other place."""
    first = [chart.colour] if chart.colour is not None and chart.colour in values else []
    alone = bool(first) and chart.kind == "pareto"
    rest = [] if alone else [axis for axis in values if axis not in (chart.x, chart.panel, chart.colour)]
    return ", ".join(_named(axis, values[axis]) for axis in [*first, *rest]) or OURS


def _named(axis: str, value: str) -> str:
    """Return a value as a legend shows it: a number with its axis, without which it means nothing.

    >>> _named("batch", "30"), _named("defense", "Krum")
    ('batch 30', 'Krum')
    """
    return value if number(value) is None else f"{axis} {value}"


def number(value: str) -> float | None:
    """Return an axis's value as a number, if it is one.

    >>> number("1e4"), number("50 000"), number("0.5 %"), number("Krum")
    (10000.0, 50000.0, 0.5, None)
    """
    try:
        return float(re.sub(r"[\s,_]|%$", "", value))
    except ValueError:
        return None


def _names(points: Points, key: str) -> list[str]:
    return list(dict.fromkeys(str(point[key]) for point in points))


# --- pictures --------------------------------------------------------------------------------------------------------


def _bars(chart: Chart, metric: str, points: Points, lines: list[str], title: alt.Title) -> alt.LayerChart:
    grouped = len(lines) > 1 and lines != _names(points, X)
    base = alt.Chart(alt.InlineData(values=points)).encode(x=_named_axis(chart.x, points))
    if grouped:
        base = base.encode(xOffset=alt.XOffset(f"{LINE}:N", sort=None, scale=alt.Scale(domain=lines)))
    ours = base.transform_filter(f"datum.{WHOSE} == '{OURS}'")
    y, colour = alt.Y(f"{Y}:Q", **_quantity(metric, points, Y)), look.colours(_looks(lines), legend=grouped)
    pale = alt.when(f"datum.{LOST}").then(alt.value(0.35)).otherwise(alt.value(1))
    bars = ours.mark_bar(tooltip=alt.TooltipContent("data")).encode(y=y, color=colour, opacity=pale)
    strokes = {"white": 4.0, INK: 1.8}  # one below the other: visible on a bar and on the page
    rules = [ours.mark_rule(color=ink, strokeWidth=wide, clip=True) for ink, wide in strokes.items()]
    errors = [rule.encode(y=alt.Y(f"{LOW}:Q", title=""), y2=f"{HIGH}:Q") for rule in rules]
    layers = [bars, *errors, *_remarks(base, y, points, alt.value(INK))]
    return look.dressed(alt.LayerChart(layer=layers), title, lines, look.SWATCHES)


def _lines(chart: Chart, metric: str, points: Points, lines: list[str], title: alt.Title) -> alt.LayerChart:
    points, x = _placed(chart, points)
    base = alt.Chart(alt.InlineData(values=points)).encode(x=x)
    several, looks = len(lines) > 1, _looks(lines)
    y, colour = alt.Y(f"{Y}:Q", **_quantity(metric, points, Y)), look.colours(looks, legend=several)
    ours = base.transform_filter(f"datum.{WHOSE} == '{OURS}'").encode(color=colour)
    bands = [] if chart.x != ROUND else [_bands(ours)]
    layers = [*bands, *look.means(ours, y, bars=chart.x != ROUND, strokeDash=look.dashes(looks, legend=several))]
    layers += _remarks(base, y, points, colour)
    return look.dressed(alt.LayerChart(layer=layers), title, lines, look.LEGEND)


def _bands(curves: alt.Chart) -> alt.Chart:
    """Draw the range of the seeds behind curves over the rounds."""
    area: alt.Chart = curves.mark_area(fillOpacity=0.18, clip=True)
    return area.encode(y=alt.Y(f"{LOW}:Q", title=""), y2=f"{HIGH}:Q")


def _heat(chart: Chart, metric: str, points: Points, lines: list[str], title: alt.Title) -> alt.LayerChart:
    printed = {(point[X], point[LINE]): point[Y] for point in points if point[WHOSE] == PAPER}
    ours = [point | {"text": _square(metric, point, printed)} for point in points if point[WHOSE] == OURS]
    down = [line for line in lines if line in _names(ours, LINE)]
    y = alt.Y(f"{LINE}:N", title=chart.colour, sort=None, scale=alt.Scale(domain=down))
    values = [point[Y] for point in ours]
    low, high = (0, 1) if measure(metric).share else (min(values), max(values))
    base = alt.Chart(alt.InlineData(values=ours)).encode(x=_named_axis(chart.x, ours), y=y)
    shade = alt.Color(f"{Y}:Q", scale=alt.Scale(range=HEAT, domain=[low, high]), legend=None)
    squares = base.mark_rect(stroke="white", strokeWidth=1).encode(color=shade)
    lower = base.mark_text(fontSize=12, lineBreak="\n", dy=-6 if printed else 0, color=ON_HEAT)
    text = lower.encode(text="text:N").properties(name=look.ON_COLOUR)
    height = max(120, (48 if printed else 34) * len(down))
    return look.dressed(alt.LayerChart(layer=[squares, text]), title, lines, look.SWATCHES, height)


def _square(metric: str, point: Mapping[str, Any], printed: Mapping[tuple[str, str], float]) -> str:
    """Return the text of a square: our number, and below it the paper's."""
    write = measure(metric).write
    ours = write(point[Y]) + (f" ({NOT_LEARNED})" if point.get(LOST) else "")
    theirs = printed.get((point[X], point[LINE]))
    return ours if theirs is None else f"{ours}\npaper {write(theirs)}"


def _pareto(chart: Chart, metric: str, points: Points, lines: list[str], title: alt.Title) -> alt.LayerChart:
    x = alt.X(f"{X}:Q", **_quantity(chart.x, points, X, zero=False, grid=False, tickCount=6))
    base = alt.Chart(alt.InlineData(values=points)).encode(x=x, y=alt.Y(f"{Y}:Q", **_quantity(metric, points, Y)))
    dots = base.mark_point(filled=True, size=90, opacity=0.9, tooltip=alt.TooltipContent("data"))
    layers = [dots.encode(color=look.colours(_looks(lines)))]
    return look.dressed(alt.LayerChart(layer=layers), title, lines, look.SWATCHES)


def _looks(lines: Sequence[str]) -> dict[str, look.Stroke]:
    return {line: look.stroke(i) for i, line in enumerate(lines)}


def _remarks(base: alt.Chart, y: alt.Y, points: Points, colour: Any) -> list[alt.Chart]:
    """Draw the paper's numbers as diamonds, and a remark beside those of ours that learned nothing."""
    paper = base.transform_filter(f"datum.{WHOSE} == '{PAPER}'").encode(y=y)
    diamonds = paper.mark_point(shape="diamond", size=70, fill="white", stroke=INK, strokeWidth=1.5, opacity=1)
    if not any(point.get(LOST) for point in points):
        return [diamonds]
    lost = base.transform_filter(f"datum.{LOST}").encode(y=y, color=colour)
    return [diamonds, lost.mark_text(text=CROSS, fontSize=14, fontWeight="bold", dy=-9)]


# --- axes ------------------------------------------------------------------------------------------------------------


def _placed(chart: Chart, points: Points) -> tuple[Points, alt.X]:
    """Return the points, with x as numbers if all are, and their axis."""
    if chart.x == ROUND:
        return points, look.round_axis(max(point[X] for point in points), X)
    numbers = [value for point in points if (value := number(point[X])) is not None]
    if len(numbers) < len(points):
        return points, _named_axis(chart.x, points)
    placed = [{**point, X: value} for point, value in zip(points, numbers, strict=True)]
    low, high, ticks = min(numbers), max(numbers), sorted(set(numbers))
    log = _spans_decades(numbers)
    crowded = log and any(math.log(b / a) < ROOM * math.log(high / low) for a, b in pairwise(ticks))
    if crowded or len(ticks) > MOST_TICKS:
        ticks = log_ticks(low, high) if log else []
    axis = alt.Axis(format=_form(numbers), grid=False, values=ticks or alt.Undefined)
    scale = alt.Scale(type="log" if log else "linear", nice=False, zero=False, padding=12)
    return placed, alt.X(f"{X}:Q", title=f"{chart.x} (log)" if log else chart.x, scale=scale, axis=axis)


def _named_axis(title: str, points: Points) -> alt.X:
    """Return an axis of names, horizontal if there is room, else slanted."""
    names = _names(points, X)
    flat = max(map(len, names)) <= SIZE["width"] / len(names) / 6.5
    axis = alt.Axis(labelLimit=200, **({"labelAngle": 0} if flat else {"labelAngle": -35, "labelAlign": "right"}))
    return alt.X(f"{X}:N", title=title, sort=None, scale=alt.Scale(domain=names), axis=axis)


def _quantity(metric: str, points: Points, key: str, zero: bool = True, **options: Any) -> dict[str, Any]:
    """Return the axis of a metric: shares from 0 to 1; logarithmic for values that span decades.

    Where 0 need not be shown, shares that lie close together have an axis of their own range.
    """
    values, about = [point[key] for point in points], measure(metric)
    if about.share and not zero and 0 < max(values) - min(values) < CLOSE:
        scale, axis = alt.Scale(zero=False, padding=12), alt.Axis(format=".2~%", **options)
        return {"title": about.title, "scale": scale, "axis": axis}
    if about.share:
        scale, axis = alt.Scale(domain=[0, 1]), alt.Axis(format=".0%", **options)
        return {"title": about.title, "scale": scale, "axis": axis}
    if zero and _spans_decades(values):
        form = "~%" if metric.endswith("share") else _form(values)
        axis = alt.Axis(format=form, values=log_ticks(min(values), max(values)), **options)
        return {"title": f"{about.title} (log)", "scale": alt.Scale(type="log"), "axis": axis}
    labels: dict[str, Any] = {"labelExpr": IN_POINTS} if about.write is points_of else {"format": _form(values)}
    return {"title": about.title, "scale": alt.Scale(zero=zero), "axis": alt.Axis(**labels, **options)}


def _spans_decades(values: Sequence[float]) -> bool:
    return min(values) > 0 and max(values) / min(values) >= WIDE


def _form(values: Sequence[float]) -> str:
    """Return the number format of an axis: 0.12, 1,200, 120k."""
    high = max(map(abs, values))
    return "~s" if high >= 10_000 else ",d" if high >= 1000 else ".4~g"
