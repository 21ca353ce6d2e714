"""The charts of an exhibit, as its file describes them: a picture for each metric and each value of its panel.

They look like those of reports. The paper's numbers, if it prints any, are drawn as hollow diamonds beside ours.
"""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import altair as alt

from sparsefed.commands.reproduce.claims import MetricEntry, entries
from sparsefed.commands.reproduce.exhibit import ROUND, Chart, Exhibit, Paper, Pick
from sparsefed.commands.reproduce.grid import matches
from sparsefed.reports.lines import CONFIG, DASHES, INK, LEGEND, PALETTE, SIZE
from sparsefed.results.measures import measure
from sparsefed.results.numbers import log_ticks, significant
from sparsefed.results.numbers import points as points_of
from sparsefed.sweeps.ledger import Row

MOST_TICKS = 10
ROOM = 0.07  # of a logarithmic axis, for a label
IN_POINTS = "format(100 * datum.value, '.3~g')"  # an axis label in percentage points
WIDE = 50  # from this ratio of largest to smallest on, an axis is logarithmic
Points = list[dict[str, Any]]
SAID = (
    "Error bars are one standard deviation over the seeds, both ways; hollow diamonds are the paper's numbers; DNC is "
    "what did not converge."
)


def charts(exhibit: Exhibit, rows: Sequence[Row], paper: Paper) -> dict[str, alt.LayerChart]:
    """Return the charts that there are numbers for, by names that can be part of a file name."""
    chart = exhibit.chart
    if chart is None:
        return {}
    found: dict[str, alt.LayerChart] = {}
    for metric in chart.y:
        for number, panel in enumerate(_panels(chart, rows), 1):
            drawn = _drawn(exhibit, chart, metric, panel, rows, paper)
            if drawn is not None:
                found[f"{metric.replace('_', '-')}-{number}" if panel else metric.replace("_", "-")] = drawn
    return found


def _panels(chart: Chart, rows: Sequence[Row]) -> list[Pick]:
    if chart.panel is None:
        return [{}]
    return [{chart.panel: (value,)} for value in dict.fromkeys(row["cell"].get(chart.panel, "") for row in rows)]


def _drawn(
    exhibit: Exhibit, chart: Chart, metric: str, panel: Pick, rows: Sequence[Row], paper: Paper
) -> alt.LayerChart | None:
    here = [row for row in rows if matches(row["cell"], panel)]
    exact = exhibit.kind == "formula"
    if chart.x == ROUND:
        points = list(_curve_points(chart, here, metric))
    elif chart.kind == "pareto":
        points = list(_pairs(chart, entries(here, chart.x, exact), entries(here, metric, exact)))
    else:
        points = list(_points(chart, metric, entries(here, metric, exact))) + list(
            _printed(chart, metric, panel, here, paper)
        )
    if not points:
        return None
    every = [_series(chart, row["cell"]) for row in rows]
    lines = list(dict.fromkeys([*every, *(str(point[LINE]) for point in points)]))  # the same colours in every panel
    draw = {"bars": _bars, "lines": _lines, "heat": _heat, "pareto": _pareto}[chart.kind]
    return draw(chart, metric, points, lines, _title(exhibit, metric, panel))


def _title(exhibit: Exhibit, metric: str, panel: Pick) -> alt.Title:
    where = "".join(f"; {axis}: {values[0]}" for axis, values in panel.items())
    about = measure(metric).about
    where_from = exhibit.where if exhibit.where.startswith("not ") else f"{exhibit.where} of the paper"
    subtitle = f"{exhibit.title} ({where_from}). {about[:1].upper()}{about[1:]}{'.' if about else ''}"
    return alt.Title(f"{measure(metric).title}{where}", subtitle=textwrap.wrap(subtitle, 90))


# --- points ----------------------------------------------------------------------------------------------------------

X, Y, LOW, HIGH, LINE, WHOSE, LOST = "x", "y", "low", "high", "line", "whose", "lost"
OURS, PAPER = "ours", "paper"


def number(value: str) -> float | None:
    """Return an axis's value as a number, if it is one.

    >>> number("1e4"), number("50 000"), number("0.5 %"), number("Krum")
    (10000.0, 50000.0, 0.5, None)
    """
    text = re.sub(r"[\s,_]|%$", "", value)
    try:
        return float(text)
    except ValueError:
        return None


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


def _points(chart: Chart, metric: str, found: Sequence[MetricEntry]) -> Iterator[dict[str, Any]]:
    floor = -math.inf if measure(metric).write is points_of else 0.0  # differences alone can be below 0
    for entry in found:
        if entry.mean is not None and chart.x in entry.values:
            mean, spread = entry.mean, entry.spread or 0.0
            point: dict[str, Any] = {X: entry.values[chart.x], LINE: _series(chart, entry.values), WHOSE: OURS}
            point |= {} if entry.converged else {LOST: True}
            yield point | {
                Y: significant(mean),
                LOW: significant(max(floor, mean - spread)),
                HIGH: significant(mean + spread),
            }


def _printed(chart: Chart, metric: str, panel: Pick, rows: Sequence[Row], paper: Paper) -> Iterator[dict[str, Any]]:
    """Yield the paper's numbers at the combinations that were run."""
    combinations = {tuple(row["cell"].items()): row["cell"] for row in rows if row["role"] == "result"}
    for values in combinations.values():
        for row in paper.rows:
            known = row.metric == metric and isinstance(row.value, float | int)
            if known and matches(values, {a: (v,) for a, v in row.cell.items()}) and matches(values, panel):
                yield {X: values[chart.x], LINE: _series(chart, values), WHOSE: PAPER, Y: row.value}
                break


def _curve_points(chart: Chart, rows: Sequence[Row], metric: str) -> Iterator[dict[str, Any]]:
    """Yield the mean over the seeds, round by round."""
    gathered: dict[tuple[str, int], list[float]] = {}
    for row in rows:
        for t, value in row.get("curves", {}).get(metric, ()):
            gathered.setdefault((_series(chart, row["cell"]), t), []).append(value)
    for (line, t), values in gathered.items():
        mean = sum(values) / len(values)
        yield {X: t, LINE: line, WHOSE: OURS, Y: significant(mean), LOW: min(values), HIGH: max(values)}


def _pairs(chart: Chart, across: Sequence[MetricEntry], up: Sequence[MetricEntry]) -> Iterator[dict[str, Any]]:
    for x, y in zip(across, up, strict=True):
        if x.mean is not None and y.mean is not None:
            name = ", ".join(y.values.values())
            point = {X: significant(x.mean), Y: significant(y.mean), LINE: _series(chart, y.values)}
            yield point | {WHOSE: OURS, "name": name}


# --- pictures --------------------------------------------------------------------------------------------------------


def _bars(chart: Chart, metric: str, points: Points, lines: list[str], title: alt.Title) -> alt.LayerChart:
    order = _names(points, X)
    x = alt.X(f"{X}:N", title=chart.x, sort=None, scale=alt.Scale(domain=order), axis=_flat_labels(order))
    grouped = len(lines) > 1 and lines != order
    base = alt.Chart(alt.InlineData(values=points)).encode(x=x)
    if grouped:
        base = base.encode(xOffset=alt.XOffset(f"{LINE}:N", sort=None, scale=alt.Scale(domain=lines)))
    colours = _colours(lines, legend=grouped)
    ours = base.transform_filter(f"datum.{WHOSE} == '{OURS}'")
    y, pale = _quantity(metric, points), alt.when(f"datum.{LOST}").then(alt.value(0.35)).otherwise(alt.value(1))
    bars = ours.mark_bar(tooltip=alt.TooltipContent("data")).encode(y=y, color=colours, opacity=pale)
    ends = {"y": alt.Y(f"{LOW}:Q", title=""), "y2": alt.Y2(f"{HIGH}:Q")}
    strokes = {"white": 4.0, INK: 1.8}  # one below the other: visible on a bar and on the page
    rules = [ours.mark_rule(color=ink, strokeWidth=wide, clip=True) for ink, wide in strokes.items()]
    layers = [bars, *(rule.encode(**ends) for rule in rules), _diamonds(base, metric, points)]
    return _dressed([*layers, *_losses(ours, y, points, alt.value(INK))], title, lines if grouped else ["-"])


def _lines(chart: Chart, metric: str, points: Points, lines: list[str], title: alt.Title) -> alt.LayerChart:
    points, x = _placed(chart, points)
    base = alt.Chart(alt.InlineData(values=points)).encode(x=x)
    ours = base.transform_filter(f"datum.{WHOSE} == '{OURS}'")
    y, colours = _quantity(metric, points), _colours(lines, legend=len(lines) > 1)
    drawn = ours.mark_line(strokeWidth=2).encode(y=y, color=colours, strokeDash=_dashes(lines))
    dots = ours.mark_point(filled=True, size=45, opacity=1, tooltip=alt.TooltipContent("data"))
    layers = [drawn, dots.encode(y=y, color=colours)]
    if chart.x != ROUND:
        layers.append(ours.mark_rule(clip=True).encode(y=alt.Y(f"{LOW}:Q", title=""), y2=f"{HIGH}:Q", color=colours))
    layers += [_diamonds(base, metric, points), *_losses(ours, y, points, colours)]
    return _dressed(layers, title, lines, lines=True)


def _heat(chart: Chart, metric: str, points: Points, lines: list[str], title: alt.Title) -> alt.LayerChart:
    printed = {(point[X], point[LINE]): point[Y] for point in points if point[WHOSE] == PAPER}
    ours = [point | {"told": _square(metric, point, printed)} for point in points if point[WHOSE] == OURS]
    across, down = _names(ours, X), [line for line in lines if line in _names(ours, LINE)]
    x = alt.X(f"{X}:N", title=chart.x, sort=None, scale=alt.Scale(domain=across), axis=_flat_labels(across))
    y = alt.Y(f"{LINE}:N", title=chart.colour, sort=None, scale=alt.Scale(domain=down))
    values = [point[Y] for point in ours]
    domain = [0, 1] if measure(metric).share else [min(values), max(values)]
    base = alt.Chart(alt.InlineData(values=ours)).encode(x=x, y=y)
    shade = alt.Color(f"{Y}:Q", scale=alt.Scale(scheme="oranges", domain=domain), legend=None)
    squares = base.mark_rect(stroke="white", strokeWidth=1).encode(color=shade)
    dark = alt.value("white"), alt.value("#1f2328")
    ink = alt.when(f"datum.{Y} > {domain[0] + 0.55 * (domain[1] - domain[0])}").then(dark[0]).otherwise(dark[1])
    text = base.mark_text(fontSize=12, lineBreak="\n", dy=-6 if printed else 0).encode(text="told:N", color=ink)
    height = max(120, (48 if printed else 34) * len(down))
    return _dressed([squares, text], title, ["-"], {"width": SIZE["width"], "height": height})


def _square(metric: str, point: Mapping[str, Any], printed: Mapping[tuple[str, str], float]) -> str:
    """Return the text of a square: our number, and below it the paper's."""
    write = measure(metric).write
    told = write(point[Y]) + (" (did not converge)" if point.get(LOST) else "")
    theirs = printed.get((point[X], point[LINE]))
    return told if theirs is None else f"{told}\npaper {write(theirs)}"


def _pareto(chart: Chart, metric: str, points: Points, lines: list[str], title: alt.Title) -> alt.LayerChart:
    scale = alt.Scale(domain=[0, 1]) if measure(chart.x).share else alt.Scale(zero=False)
    x = alt.X(f"{X}:Q", title=measure(chart.x).title, scale=scale, axis=_axis(chart.x, points, X))
    base = alt.Chart(alt.InlineData(values=points)).encode(x=x, y=_quantity(metric, points))
    dots = base.mark_point(filled=True, size=90, opacity=0.9, tooltip=alt.TooltipContent("data"))
    return _dressed([dots.encode(color=_colours(lines, legend=True))], title, lines)


def _diamonds(base: alt.Chart, metric: str, points: Points) -> alt.Chart:
    """Draw the paper's numbers."""
    paper = base.transform_filter(f"datum.{WHOSE} == '{PAPER}'").mark_point(
        shape="diamond", size=70, fill="white", stroke=INK, strokeWidth=1.5, opacity=1
    )
    drawn: alt.Chart = paper.encode(y=_quantity(metric, points))
    return drawn


def _losses(ours: alt.Chart, y: alt.Y, points: Points, colour: Any) -> list[alt.Chart]:
    """Draw DNC beside the points that did not converge."""
    if not any(point.get(LOST) for point in points):
        return []
    label = ours.transform_filter(f"datum.{LOST}").mark_text(text="DNC", fontSize=10, align="left", dx=4, dy=-6)
    return [label.encode(y=y, color=colour)]


def _placed(chart: Chart, points: Points) -> tuple[Points, alt.X]:
    """Return the points, with x as numbers if all are, and their axis."""
    read = [point[X] if chart.x == ROUND else number(point[X]) for point in points]
    numbers = [float(value) for value in read if value is not None]
    if len(numbers) < len(read):
        order = _names(points, X)
        return points, alt.X(
            f"{X}:N", title=chart.x, sort=None, scale=alt.Scale(domain=order), axis=_flat_labels(order)
        )
    placed = [{**point, X: value} for point, value in zip(points, numbers, strict=True)]
    if chart.x == ROUND:
        scale, axis = alt.Scale(domain=[0, max(numbers)]), alt.Axis(format="d", grid=False, tickMinStep=1, tickCount=6)
        return placed, alt.X(f"{X}:Q", title="Round", scale=scale, axis=axis)
    low, high, each = min(numbers), max(numbers), sorted(set(numbers))
    log = low > 0 and high / low >= WIDE
    least = ROOM * math.log(high / low) if log else 0.0
    apart = all(math.log(b / a) >= least for a, b in pairwise(each)) if log else True
    ticks = each if len(each) <= MOST_TICKS and apart else log_ticks(low, high) if log else []
    shown: dict[str, Any] = {"values": ticks} if ticks else {}
    axis = alt.Axis(format=_form(numbers), grid=False, **shown)
    scale = alt.Scale(type="log" if log else "linear", nice=False, zero=False, padding=12)
    return placed, alt.X(f"{X}:Q", title=f"{chart.x} (log)" if log else chart.x, scale=scale, axis=axis)


def _quantity(metric: str, points: Sequence[Mapping[str, Any]]) -> alt.Y:
    """Return the y axis: shares from 0 to 1; logarithmic for values that span decades."""
    values = [point[Y] for point in points]
    title = measure(metric).title
    if measure(metric).share:
        scale, axis = alt.Scale(domain=[0, 1]), alt.Axis(format=".0%")
        return alt.Y(f"{Y}:Q", title=title, scale=scale, axis=axis)
    if min(values) > 0 and max(values) / min(values) >= WIDE:
        ticks = log_ticks(min(values), max(values))
        form = "~%" if metric.endswith("share") else _form(values)
        axis = alt.Axis(format=form, values=ticks)
        return alt.Y(f"{Y}:Q", title=f"{title} (log)", scale=alt.Scale(type="log"), axis=axis)
    axis = alt.Axis(labelExpr=IN_POINTS) if measure(metric).write is points_of else alt.Axis(format=_form(values))
    return alt.Y(f"{Y}:Q", title=title, axis=axis)


def _form(values: Sequence[float]) -> str:
    """Return the number format of an axis: 0.12, 1,200, 120k."""
    high = max(map(abs, values))
    return "~s" if high >= 10_000 else ",d" if high >= 1000 else ".4~g"


def _axis(metric: str, points: Sequence[Mapping[str, Any]], key: str) -> alt.Axis:
    if measure(metric).write is points_of:
        return alt.Axis(labelExpr=IN_POINTS, grid=False, tickCount=6)
    form = ".0%" if measure(metric).share else _form([point[key] for point in points])
    return alt.Axis(format=form, grid=False, tickCount=6)


def _colours(lines: Sequence[str], legend: bool) -> alt.Color:
    scale = alt.Scale(domain=list(lines), range=[PALETTE[i % len(PALETTE)] for i in range(len(lines))])
    shown: dict[str, Any] = {} if legend else {"legend": None}
    return alt.Color(f"{LINE}:N", scale=scale, **shown)


def _dashes(lines: Sequence[str]) -> alt.StrokeDash:
    """Return dashes that share the legend of the colours; a single line has no legend, or neither would be shown."""
    scale = alt.Scale(domain=list(lines), range=[list(DASHES[i % len(DASHES)]) for i in range(len(lines))])
    shown: dict[str, Any] = {} if len(lines) > 1 else {"legend": None}
    return alt.StrokeDash(f"{LINE}:N", scale=scale, **shown)


def _flat_labels(names: Sequence[str]) -> alt.Axis:
    """Return an axis with horizontal labels if there is room, else slanted ones."""
    room = SIZE["width"] / max(len(names), 1) / 6.5
    angle = {"labelAngle": 0} if max(map(len, names)) <= room else {"labelAngle": -35, "labelAlign": "right"}
    return alt.Axis(labelLimit=200, **angle)


def _names(points: Sequence[Mapping[str, Any]], key: str) -> list[str]:
    return list(dict.fromkeys(str(point[key]) for point in points))


def _dressed(
    layers: Sequence[alt.Chart],
    title: alt.Title,
    names: Sequence[str],
    size: Mapping[str, int] = SIZE,
    lines: bool = False,
) -> alt.LayerChart:
    """Return the layers with the look of a report; the legend of lines has strokes."""
    column = 46 + 6.5 * min(36, max(map(len, names)))
    legend = LEGEND if lines else {key: item for key, item in LEGEND.items() if not key.startswith("symbol")}
    sized = alt.LayerChart(layer=list(layers)).properties(title=title, usermeta={"legendColumn": column}, **size)
    dressed: alt.LayerChart = sized.configure(**CONFIG, legend=legend | {"columns": max(1, int(640 // column))})
    return dressed


def together(drawn: Mapping[str, alt.LayerChart]) -> alt.VConcatChart | alt.LayerChart | None:
    """Return all charts of an exhibit as one, for a file."""
    if len(drawn) < 2:
        return next(iter(drawn.values()), None)
    first = next(iter(drawn.values()))
    bare = []
    for chart in drawn.values():
        copied = chart.copy(deep=False)
        copied.config = alt.Undefined
        copied.usermeta = alt.Undefined
        bare.append(copied)
    whole: alt.VConcatChart = alt.VConcatChart(vconcat=bare, config=first.config).resolve_scale(
        color="independent", strokeDash="independent"
    )
    return whole
