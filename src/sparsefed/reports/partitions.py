"""Pictures of a partition: devices against classes, and the sizes of devices, with a few numbers.

Everything is drawn from a `Portrait`: that of a config (`sparsefed data show`), or the one in a run's manifest.
Examples that have no single class (tokens) are shown by the sizes of devices alone.
"""

from __future__ import annotations

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
SHADES = "Every column is a device, by the class it owns most of; the stronger the colour, the larger a class's share."
HEIGHTS = "How many devices own how many examples."


@dataclass(frozen=True)
class Dealt:
    """A partition with what is needed to draw it."""

    title: str  # the data set and its partition
    portrait: Portrait
    classes: tuple[str, ...]

    @property
    def has_classes(self) -> bool:
        return bool(self.portrait.owned)


def deal(table: Mapping[str, Any], overrides: Sequence[str] = ()) -> Dealt:
    """Return the partition that a config with these tables would make; nothing is trained."""
    config = configs.parse({**table, "train": {"cohort": 1}}, overrides)
    chosen, arrays = config.data, data.load(configs.dataset(config))
    title = _how(arrays.name, chosen.partition, chosen.params, chosen.per_device)
    return Dealt(
        title, portrait(configs.deal(config, arrays), arrays.y_train, len(arrays.classes)), tuple(arrays.classes)
    )


def of_run(run: RunRecord) -> Dealt | None:
    """Return the partition that the run recorded; None if it recorded none, as older runs did."""
    task, table = run.manifest.get("task", {}), run.config.get("data", {})
    classes = tuple(map(str, task.get("classes", ())))
    found = unpacked(task.get("partition"), len(classes))
    if found is None:
        return None
    fixed = ("name", "partition", "devices", "per_device", "augment", "root")
    params = {key: value for key, value in table.items() if key not in fixed}
    title = _how(str(table.get("name", "")), str(table.get("partition", "")), params, table.get("per_device"))
    return Dealt(title, found, classes)


def facts(dealt: Dealt) -> dict[str, str]:
    """Return a few numbers of the partition, as text."""
    of = dealt.portrait
    found = {
        "devices": f"{of.devices:,}",
        "examples dealt": f"{of.dealt:,}",
        "different ones": f"{of.different:,} of {of.total:,}",
        "size: min / median / max": _spread(of.sizes),
    }
    if of.classes:
        found["classes a device: min / median / max"] = _spread(of.classes)
    return found


def charts(dealt: Dealt) -> dict[str, alt.Chart]:
    """Draw devices against classes, if examples have a class, and sizes; each with its own title."""
    told = _told(dealt.portrait)
    titles = {"devices": "Who owns which classes", "sizes": "How much the devices own"}
    parts = ({"devices": _mixtures(dealt)} if dealt.has_classes else {}) | {"sizes": _sizes(dealt.portrait)}
    return {
        name: part.properties(title=alt.Title(titles[name], subtitle=told)).configure(**CONFIG, legend=LEGEND)
        for name, part in parts.items()
    }


def chart(dealt: Dealt) -> alt.VConcatChart:
    """Draw devices against classes above and sizes below, as one picture."""
    parts = ([_mixtures(dealt)] if dealt.has_classes else []) + [_sizes(dealt.portrait)]
    title = alt.Title(dealt.title, subtitle=_told(dealt.portrait))
    whole: alt.VConcatChart = alt.vconcat(*parts, spacing=28).properties(title=title).configure(**CONFIG, legend=LEGEND)
    return whole


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


def facts_table(dealt: Dealt, caption: str) -> Table:
    """Return the numbers of the partition as a table."""
    return table(caption, ("What", "How much"), facts(dealt).items(), "facts")


def _figures(dealt: Dealt, name: str) -> list[Figure]:
    said = {"devices": SHADES, "sizes": HEIGHTS}
    return [Figure(f"{name}-{kind}", part, said[kind]) for kind, part in charts(dealt).items()]


def portraits(runs: Sequence[RunRecord]) -> Iterator[Block]:
    """Yield the partitions of these runs, each once."""
    found = [(label, dealt) for label, run in zip(labels(runs), runs, strict=True) if (dealt := of_run(run))]
    several = list(dict.fromkeys(dealt for _, dealt in found))
    for i, dealt in enumerate(several[:MOST_DRAWN], start=1):
        owners = [label for label, other in found if other == dealt]
        whose = f", in {', '.join(owners[:MOST_NAMED])}" if len(several) > 1 else ""
        more = f" and {len(owners) - MOST_NAMED} more" if whose and len(owners) > MOST_NAMED else ""
        yield note(f"{dealt.title}{whose}{more}: {_told(dealt.portrait)}")
        yield from _figures(dealt, f"partition-{i}")
    if len(several) > MOST_DRAWN:
        yield note(f"{len(several) - MOST_DRAWN} more partitions are not drawn.")


def _how(name: str, partition: str, params: Mapping[str, Any], per_device: int | None) -> str:
    told = [f"{key} = {value}" for key, value in params.items()]
    told += [f"{per_device} examples a device"] if per_device else []
    return f"{name} dealt {partition} ({', '.join(told)})" if told else f"{name} dealt {partition}"


def _spread(values: Spread) -> str:
    low, middle, high = values
    return f"{low:,} / {middle:,g} / {high:,}"


def _told(of: Portrait) -> str:
    """Return the facts as a sentence."""
    told = f"{of.devices:,} devices own {_from_to(of.sizes)} examples each"
    return f"{told}, of {_from_to(of.classes)} class{'es' * (of.classes[2] > 1)}." if of.classes else f"{told}."


def _from_to(values: Spread) -> str:
    low, middle, high = values
    return f"{low:,}" if low == high else f"{low:,} to {high:,} (median {middle:,g})"


def _mixtures(dealt: Dealt) -> alt.Chart:
    """Draw devices against classes."""
    of, classes = dealt.portrait, list(dealt.classes)
    cells = [
        {
            "column": i,
            "Device": device,
            "Class": classes[k],
            "Examples": f"{count} of {sum(counts)}",
            "share": round(count / sum(counts), 3),
        }
        for i, (device, counts) in enumerate(zip(of.chosen, of.owned, strict=True))
        for k, count in enumerate(counts)
        if count
    ]
    some = f"{len(of.chosen)} of {of.devices:,}" if len(of.chosen) < of.devices else str(len(of.chosen))
    height = max(LEAST, min(TALL, ROW * len(classes)))
    x = alt.X("column:O", title=f"{some} devices", axis=alt.Axis(labels=False, ticks=False))
    y = alt.Y("Class:N", title=None, sort=None, scale=alt.Scale(domain=classes), axis=alt.Axis(labelOverlap=True))
    shade = alt.Opacity("share:Q", title="Share", scale=alt.Scale(domain=[0, 1], range=[0, 1]))
    shade = shade.legend(format=".0%", values=[0.25, 0.5, 0.75, 1], symbolType="square", orient="bottom")
    drawn = alt.Chart(alt.InlineData(values=cells)).mark_rect(color=PALETTE[0])
    told = [alt.Tooltip(f"{name}:N") for name in ("Device", "Class", "Examples")]
    heat: alt.Chart = drawn.encode(x=x, y=y, opacity=shade, tooltip=told).properties(width=SIZE["width"], height=height)
    return heat


def _sizes(of: Portrait) -> alt.Chart:
    """Draw how many devices own how many examples."""
    wide = of.sizes[2] / of.sizes[0] > WIDE
    room = 0 if wide else max(0, 5 - len(of.bars))  # so that a single bar does not fill the chart
    low, high = max(of.bars[0][0] - room, -0.5), of.bars[-1][1] + room
    scale = alt.Scale(type="log" if wide else "linear", domain=[low, high], nice=False, zero=False)
    axis = alt.Axis(
        format="~d", grid=False, labelOverlap=True, values=log_ticks(low, high) if wide else _ticks(low, high)
    )
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


def _ticks(low: float, high: float) -> list[int]:
    """Return whole numbers between the two: all of them, or eight."""
    marks = int(high - low) if high - low <= 12 else 8
    step = (high - low - 1) / max(1, marks - 1)
    return sorted({round(low + 0.5 + i * step) for i in range(marks)})


def _range(low: float, high: float) -> str:
    first, last = round(low + 0.5), round(high - 0.5)
    return str(first) if first == last else f"{first} to {last}"
