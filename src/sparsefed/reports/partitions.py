"""Pictures of a partition: devices against classes, and the sizes of devices, with a few numbers.

Everything is drawn from a `Portrait`: that of a config (`sparsefed data show`), or the one in a run's manifest.
Examples that have no single class (tokens) are shown by the sizes of devices alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import altair as alt

from sparsefed import config as configs
from sparsefed import data
from sparsefed.core.errors import ConfigError, unknown
from sparsefed.core.types import RunRecord
from sparsefed.data.partitions.summary import WIDE, Portrait, Spread, portrait, unpacked
from sparsefed.reports.document import Block, Document, Figure, Table, note, section, table
from sparsefed.reports.lines import CONFIG, INK, PALETTE, SIZE
from sparsefed.reports.pictures import FORMATS, picture, write
from sparsefed.reports.to_html import page
from sparsefed.results.numbers import log_ticks
from sparsefed.results.summary import labels

TALL, LEAST, ROW = 480, 120, 18  # pixels: of the whole picture at most and at least, and of a class
MOST_NAMED = 6  # runs that share a partition, by name
MOST_DRAWN = 4  # partitions of one report
LEGEND = {"labelColor": INK, "titleColor": INK, "titleFontWeight": "normal", "labelFontSize": 12}
TEXTS = {  # the title and the caption of each chart
    "devices": (
        "Who owns which classes",
        "Every column is a device, by the class it owns most of; the stronger the colour, the larger a class's share.",
    ),
    "sizes": ("How much the devices own", "How many devices own how many examples."),
}


@dataclass(frozen=True)
class Dealt:
    """A partition with what is needed to draw it."""

    title: str  # the data set and its partition
    portrait: Portrait
    classes: tuple[str, ...]


def deal(table: Mapping[str, Any], overrides: Sequence[str] = ()) -> Dealt:
    """Return the partition that a config with these tables would make; nothing is trained."""
    config = configs.parse({**table, "train": {"cohort": 1}}, overrides)
    arrays = data.load(configs.dataset(config))
    drawn = portrait(configs.deal(config, arrays), arrays.y_train, len(arrays.classes))
    return Dealt(_title({**configs.dump(config)["data"], "name": arrays.name}), drawn, tuple(arrays.classes))


def of_run(run: RunRecord) -> Dealt | None:
    """Return the partition that the run recorded; None if it recorded none, as older runs did."""
    task = run.manifest.get("task", {})
    classes = tuple(map(str, task.get("classes", ())))
    recorded = unpacked(task.get("partition"), len(classes))
    return None if recorded is None else Dealt(_title(run.config.get("data", {})), recorded, classes)


def _title(table: Mapping[str, Any]) -> str:
    """Return the data set and the partition, with its parameters, of a [data] table."""
    fixed = ("name", "partition", "devices", "per_device", "augment", "root")
    params = [f"{key} = {value}" for key, value in table.items() if key not in fixed]
    params += [f"{table['per_device']} examples a device"] if table.get("per_device") else []
    return f"{table.get('name', '')} dealt {table.get('partition', '')}" + f" ({', '.join(params)})" * bool(params)


def facts(dealt: Dealt) -> dict[str, str]:
    """Return a few numbers of the partition, as text."""
    of = dealt.portrait
    spreads = {"size": of.sizes, "classes a device": of.classes}
    return {
        "devices": f"{of.devices:,}",
        "examples dealt": f"{of.dealt:,}",
        "different ones": f"{of.different:,} of {of.total:,}",
        **{
            f"{what}: min / median / max": f"{spread[0]:,} / {spread[1]:,g} / {spread[2]:,}"
            for what, spread in spreads.items()
            if spread
        },
    }


def facts_table(dealt: Dealt, caption: str) -> Table:
    """Return the numbers of the partition as a table."""
    return table(caption, ("What", "How much"), facts(dealt).items(), "facts")


def chart(dealt: Dealt) -> alt.VConcatChart:
    """Draw devices against classes above and sizes below, as one picture."""
    whole: alt.VConcatChart = _dressed(alt.vconcat(*_parts(dealt).values(), spacing=28), dealt.title, dealt)
    return whole


def _parts(dealt: Dealt) -> dict[str, alt.Chart]:
    """Draw devices against classes, if examples have a class, and sizes."""
    classes = {"devices": _mixtures(dealt)} if dealt.portrait.owned else {}
    return classes | {"sizes": _sizes(dealt.portrait)}


def _dressed(chart: Any, title: str, dealt: Dealt) -> Any:
    subtitle = _sentence(dealt.portrait)
    return chart.properties(title=alt.Title(title, subtitle=subtitle)).configure(**CONFIG, legend=LEGEND)


def _figures(dealt: Dealt, name: str) -> Iterator[Figure]:
    for kind, part in _parts(dealt).items():
        title, caption = TEXTS[kind]
        yield Figure(f"{name}-{kind}", _dressed(part, title, dealt), caption)


def save(dealt: Dealt, out: Path) -> Path:
    """Write the picture in the format given by the file's ending."""
    format = out.suffix.removeprefix(".").lower()
    if format not in FORMATS:
        raise ConfigError(unknown("kind of picture", out.suffix, [f".{kind}" for kind in FORMATS]))
    return write(out, html(dealt).encode() if format == "html" else picture(chart(dealt), format))


def html(dealt: Dealt) -> str:
    """Return the partition as a page of its own."""
    parts = section("Who owns what", facts_table(dealt, "What was dealt"), _figures(dealt, "partition"))
    return page(Document(dealt.title, "", (parts,)))


def portraits(runs: Sequence[RunRecord]) -> Iterator[Block]:
    """Yield the partitions of these runs, each once; those that differ in the seed alone are drawn at the first."""
    owners: dict[str, list[str]] = {}
    drawn: dict[str, list[Dealt]] = {}
    for label, run in zip(labels(runs), runs, strict=True):
        if dealt := of_run(run):
            how = json.dumps([dealt.title, run.config.get("data")], sort_keys=True, default=str)
            owners.setdefault(how, []).append(label)
            drawn.setdefault(how, []).extend([] if dealt in drawn.get(how, ()) else [dealt])
    for i, (how, names) in enumerate(list(owners.items())[:MOST_DRAWN], start=1):
        dealt, seeds = drawn[how][0], len(drawn[how])
        more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
        whose = f", in {', '.join(names[:MOST_NAMED])}{more}" if len(owners) > 1 else ""
        one = f" Drawn is one of {seeds} seeds." if seeds > 1 else ""
        yield note(f"{dealt.title}{whose}: {_sentence(dealt.portrait)}{one}")
        yield from _figures(dealt, f"partition-{i}")
    if len(owners) > MOST_DRAWN:
        yield note(f"{len(owners) - MOST_DRAWN} more partitions are not drawn.")


def _sentence(of: Portrait) -> str:
    """Return the facts as a sentence."""
    classes = f", of {_from_to(of.classes)} class{'es' * (of.classes[2] > 1)}" if of.classes else ""
    return f"{of.devices:,} devices own {_from_to(of.sizes)} examples each{classes}."


def _from_to(values: Spread) -> str:
    low, middle, high = values
    return f"{low:,}" if low == high else f"{low:,} to {high:,} (median {middle:,g})"


def _mixtures(dealt: Dealt) -> alt.Chart:
    """Draw devices against classes."""
    of, classes = dealt.portrait, list(dealt.classes)
    cells = []
    for i, (device, counts) in enumerate(zip(of.chosen, of.owned, strict=True)):
        for name, count in zip(classes, counts, strict=True):
            if count:
                share = {"Examples": f"{count} of {sum(counts)}", "share": round(count / sum(counts), 3)}
                cells.append({"column": i, "Device": device, "Class": name, **share})
    some = f"{len(of.chosen)} of {of.devices:,}" if len(of.chosen) < of.devices else str(len(of.chosen))
    height = max(LEAST, min(TALL, ROW * len(classes)))
    x = alt.X("column:O", title=f"{some} devices", axis=alt.Axis(labels=False, ticks=False))
    y = alt.Y("Class:N", title=None, sort=None, scale=alt.Scale(domain=classes), axis=alt.Axis(labelOverlap=True))
    shade = alt.Opacity("share:Q", title="Share", scale=alt.Scale(domain=[0, 1], range=[0, 1]))
    shade = shade.legend(format=".0%", values=[0.25, 0.5, 0.75, 1], symbolType="square", orient="bottom")
    drawn = alt.Chart(alt.InlineData(values=cells)).mark_rect(color=PALETTE[0])
    encoded = drawn.encode(x=x, y=y, opacity=shade, tooltip=["Device:N", "Class:N", "Examples:N"])
    heat: alt.Chart = encoded.properties(width=SIZE["width"], height=height)
    return heat


def _sizes(of: Portrait) -> alt.Chart:
    """Draw how many devices own how many examples."""
    wide = of.sizes[2] / of.sizes[0] > WIDE
    room = 0 if wide else max(0, 5 - len(of.bars))  # so that a single bar does not fill the chart
    low, high = max(of.bars[0][0] - room, -0.5), of.bars[-1][1] + room
    scale = alt.Scale(type="log" if wide else "linear", domain=[low, high], nice=False, zero=False)
    ticks = {"values": log_ticks(low, high)} if wide else {"tickMinStep": 1, "tickCount": 8}
    axis = alt.Axis(format="~d", grid=False, labelOverlap=True, **ticks)
    rows = [{"from": a, "to": b, "Examples": _range(a, b), "Devices": n} for a, b, n in of.bars if n]
    drawn = alt.Chart(alt.InlineData(values=rows)).mark_rect(color=PALETTE[0])
    histogram: alt.Chart = drawn.encode(
        x=alt.X("from:Q", title="Examples that a device owns" + " (log)" * wide, scale=scale, axis=axis),
        x2=alt.X2("to:Q"),
        y=alt.Y("Devices:Q", title="Devices", axis=alt.Axis(format=",d", tickMinStep=1, tickCount=5)),
        y2=alt.Y2Datum(0),
        tooltip=[alt.Tooltip("Examples:N"), alt.Tooltip("Devices:Q", format=",")],
    ).properties(width=SIZE["width"], height=160)
    return histogram


def _range(low: float, high: float) -> str:
    first, last = round(low + 0.5), round(high - 0.5)
    return str(first) if first == last else f"{first} to {last}"
