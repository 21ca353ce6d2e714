"""Charts as pictures, and files that a reader never meets half written."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

if TYPE_CHECKING:
    import altair as alt

PICTURES = ("pdf", "png", "svg")
FORMATS = ("html", *PICTURES)
SHARP = 2  # pixels of a PNG a unit of the chart


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
