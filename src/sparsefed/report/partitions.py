"""A picture of a partition: devices against classes, and how large the devices are; and the few numbers beside it.

Examples that have no single class (tokens) are shown by their sizes alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

import numpy as np

from sparsefed import config as configs
from sparsefed import data
from sparsefed.data.partition import Partition
from sparsefed.errors import ConfigError, unknown
from sparsefed.report.charts import CONFIG, INK, PALETTE, SIZE, log_ticks
from sparsefed.report.files import FORMATS, picture, write
from sparsefed.report.markup import joined, table
from sparsefed.report.page import library, script_json
from sparsefed.types import IntArray

if TYPE_CHECKING:
    import altair as alt

MOST_COLUMNS = 200  # devices in the picture; more could not be told apart
MOST_BARS = 40
WIDE = 50.0  # the largest device over the smallest from which sizes are drawn on a logarithmic scale
TALL, LEAST, ROW = 480, 120, 18  # pixels: of the whole picture at most and at least, and of a class


@dataclass(frozen=True)
class Dealt:
    """A partition with what is needed to look at it."""

    title: str  # which data set, dealt how
    partition: Partition
    labels: IntArray  # [N], or [N, ...] where an example has several
    classes: tuple[str, ...]

    @property
    def sizes(self) -> IntArray:
        return np.diff(self.partition.offsets)

    @property
    def has_classes(self) -> bool:
        return self.labels.ndim == 1


def deal(table: Mapping[str, Any], overrides: Sequence[str] = ()) -> Dealt:
    """What a config with these tables would deal; nothing is trained."""
    config = configs.parse({**table, "train": {"cohort": 1}}, overrides)
    chosen, arrays = config.data, data.load(configs.dataset(config))
    params = [f"{key} = {value}" for key, value in chosen.params.items()]
    sizes = [f"{chosen.per_device} examples a device"] if chosen.per_device else []
    how = f"{chosen.partition} ({', '.join(params + sizes)})" if params or sizes else chosen.partition
    return Dealt(f"{arrays.name} dealt {how}", configs.deal(config, arrays), arrays.y_train, arrays.classes)


def facts(dealt: Dealt) -> dict[str, str]:
    """The few numbers, as text."""
    sizes, total = dealt.sizes, len(dealt.labels)
    used = len(np.unique(dealt.partition.examples))
    found = {
        "devices": f"{len(sizes):,}",
        "examples dealt": f"{sizes.sum():,}",
        "different ones": f"{used:,} of {total:,}",
        "size: min / median / max": _spread(sizes),
    }
    if dealt.has_classes:
        found["classes a device: min / median / max"] = _spread(_classes_per_device(dealt))
    return found


def chart(dealt: Dealt) -> alt.VConcatChart:
    """Devices against classes above, sizes below."""
    import altair as alt

    parts = ([_mixtures(dealt)] if dealt.has_classes else []) + [_sizes(dealt.sizes)]
    title = alt.Title(dealt.title, subtitle=_told(dealt))
    legend = {"labelColor": INK, "titleColor": INK, "titleFontWeight": "normal", "labelFontSize": 12}
    whole: alt.VConcatChart = alt.vconcat(*parts, spacing=28).properties(title=title).configure(**CONFIG, legend=legend)
    return whole


def save(dealt: Dealt, out: Path) -> Path:
    """Write the picture; the name's ending says as what."""
    format = out.suffix.removeprefix(".").lower()
    if format not in FORMATS:
        raise ConfigError(unknown("kind of picture", out.suffix, [f".{kind}" for kind in FORMATS]))
    return write(out, _html(dealt).encode() if format == "html" else picture(chart(dealt), format))


def _html(dealt: Dealt) -> str:
    def read(name: str) -> str:
        return files(__package__).joinpath(name).read_text(encoding="utf-8")

    spec = chart(dealt).to_dict()
    spec.pop("title")
    return Template(read("partition.html")).substitute(
        title=joined([dealt.title]),
        style=read("page.css"),
        facts=table("What was dealt", ("", ""), facts(dealt).items(), class_="facts"),
        told=joined([_told(dealt)]),
        spec=script_json(spec),
        library=library(),
    )


def _spread(values: IntArray) -> str:
    return f"{values.min():,} / {np.median(values):,g} / {values.max():,}"


def _told(dealt: Dealt) -> str:
    """The facts as a sentence."""
    told = f"{len(dealt.sizes):,} devices own {_from_to(dealt.sizes)} examples each"
    return f"{told}, of {_from_to(_classes_per_device(dealt))} classes." if dealt.has_classes else f"{told}."


def _from_to(values: IntArray) -> str:
    low, high = int(values.min()), int(values.max())
    return f"{low:,}" if low == high else f"{low:,} to {high:,} (median {np.median(values):,g})"


def _classes_per_device(dealt: Dealt) -> IntArray:
    """How many different classes each device owns."""
    count = len(dealt.classes)
    owners = np.repeat(np.arange(dealt.partition.devices), dealt.sizes)
    pairs = np.unique(owners * count + dealt.labels[dealt.partition.examples])
    return np.bincount(pairs // count, minlength=dealt.partition.devices)


# --- devices against classes -----------------------------------------------------------------------------------------


def mixtures(dealt: Dealt) -> tuple[IntArray, IntArray]:
    """Devices spread evenly over all, sorted by their commonest class, and how many examples of each class they own."""
    devices, offsets = dealt.partition.devices, dealt.partition.offsets
    chosen = np.unique(np.linspace(0, devices - 1, min(devices, MOST_COLUMNS)).round().astype(np.int64))
    owned = [dealt.labels[dealt.partition.examples[offsets[i] : offsets[i + 1]]] for i in chosen]
    counts = np.stack([np.bincount(labels, minlength=len(dealt.classes)) for labels in owned])
    shares = counts / counts.sum(1, keepdims=True)
    order = np.lexsort((-shares.max(1), shares.argmax(1)))
    return chosen[order], counts[order]


def _mixtures(dealt: Dealt) -> alt.Chart:
    import altair as alt

    chosen, counts = mixtures(dealt)
    columns, classes = np.nonzero(counts)
    totals = counts.sum(1)
    cells = [
        {
            "column": int(i),
            "Device": int(chosen[i]),
            "Class": dealt.classes[k],
            "Examples": f"{counts[i, k]} of {totals[i]}",
            "share": round(float(counts[i, k] / totals[i]), 3),
        }
        for i, k in zip(columns, classes, strict=True)
    ]
    of = f"{len(chosen)} of {dealt.partition.devices:,}" if len(chosen) < dealt.partition.devices else str(len(chosen))
    height = max(LEAST, min(TALL, ROW * len(dealt.classes)))
    x = alt.X("column:O", title=f"{of} devices, by commonest class", axis=alt.Axis(labels=False, ticks=False))
    y = alt.Y(
        "Class:N", title=None, sort=None, scale=alt.Scale(domain=list(dealt.classes)), axis=alt.Axis(labelOverlap=True)
    )
    shade = alt.Opacity("share:Q", title="Share", scale=alt.Scale(domain=[0, 1], range=[0, 1]))
    shade = shade.legend(format=".0%", values=[0.25, 0.5, 0.75, 1], symbolType="square")
    drawn = alt.Chart(alt.InlineData(values=cells)).mark_rect(color=PALETTE[0])
    told = [alt.Tooltip(f"{name}:N") for name in ("Device", "Class", "Examples")]
    heat: alt.Chart = drawn.encode(x=x, y=y, opacity=shade, tooltip=told).properties(width=SIZE["width"], height=height)
    return heat


# --- sizes -----------------------------------------------------------------------------------------------------------


def bars(sizes: IntArray) -> list[tuple[float, float, int]]:
    """(from, to, devices): a bar for each size where these are few, else bins, logarithmic ones for a wide range."""
    low, high = int(sizes.min()), int(sizes.max())
    if high - low < MOST_BARS:
        edges = np.arange(low, high + 2) - 0.5
    elif high / low > WIDE:
        edges = np.unique(np.geomspace(low, high + 1, MOST_BARS // 2 + 1).round()) - 0.5
    else:
        edges = np.arange(low, high + 1 + (width := -(-(high + 1 - low) // MOST_BARS)), width) - 0.5
    devices = np.histogram(sizes, edges)[0]
    return [(float(a), float(b), int(n)) for a, b, n in zip(edges[:-1], edges[1:], devices, strict=True)]


def _sizes(sizes: IntArray) -> alt.Chart:
    import altair as alt

    found = bars(sizes)
    wide = int(sizes.max()) / int(sizes.min()) > WIDE
    room = 0 if wide else max(0, 5 - len(found))  # a lonely bar is no wall
    low, high = max(found[0][0] - room, -0.5), found[-1][1] + room
    scale = alt.Scale(type="log" if wide else "linear", domain=[low, high], nice=False, zero=False)
    marks = int(high - low) if high - low <= 12 else 8
    ticks = log_ticks(low, high) if wide else np.unique(np.linspace(low + 0.5, high - 0.5, marks).round()).tolist()
    axis = alt.Axis(format="~d", grid=False, values=ticks)
    rows = [{"from": a, "to": b, "Examples": _range(a, b), "Devices": n} for a, b, n in found if n]
    drawn = alt.Chart(alt.InlineData(values=rows)).mark_rect(color=PALETTE[0], stroke="white", strokeWidth=0.5)
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
