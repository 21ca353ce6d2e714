"""A report on disk: HTML as one file, pictures as one file a chart; a reader never meets half a file."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

from sparsefed.errors import ConfigError, RunError, unknown
from sparsefed.report.charts import charts, check
from sparsefed.report.page import html
from sparsefed.types import RunRecord

if TYPE_CHECKING:
    import altair as alt

PICTURES = ("pdf", "png", "svg")
FORMATS = ("html", *PICTURES)
SHARP = 2  # pixels of a PNG a unit of the chart


def save(runs: Sequence[RunRecord], out: Path, format: str = "html") -> list[Path]:
    """Write the report and say where: `out` itself for HTML, `out`'s stem with the chart's name for pictures."""
    if format not in FORMATS:
        raise ConfigError(unknown("report format", format, FORMATS))
    check(runs)
    if format == "html":
        return [write(out, html(runs).encode())]
    pictures = {name: picture(chart, format) for name, chart in charts(runs).items()}
    if not pictures:
        raise RunError(
            "there is nothing to draw yet: no round has an accuracy or a norm; wait for the first evaluation"
        )
    return [write(out.with_name(f"{out.stem}-{name}.{format}"), data) for name, data in pictures.items()]


def picture(chart: alt.TopLevelMixin, format: str) -> bytes:
    """A chart drawn as PNG, SVG or PDF."""
    if format == "svg":
        text = io.StringIO()
        chart.save(text, format="svg")
        return text.getvalue().encode()
    data = io.BytesIO()
    chart.save(data, format=cast(Literal["pdf", "png"], format), scale_factor=SHARP if format == "png" else 1)
    return data.getvalue()


def write(path: Path, data: bytes) -> Path:
    """All of it or nothing: a temporary file beside it, then one rename."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(data)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return path
