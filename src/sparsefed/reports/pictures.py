"""Charts as picture files, written atomically."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

from sparsefed import runs

if TYPE_CHECKING:
    import altair as alt

PICTURES = ("pdf", "png", "svg")
FORMATS = ("html", *PICTURES)
SHARP = 2  # PNG pixels per unit of the chart


def picture(chart: alt.TopLevelMixin, format: str) -> bytes:
    """Return a chart drawn as PNG, SVG or PDF."""
    if format == "svg":
        text = io.StringIO()
        chart.save(text, format="svg")
        return text.getvalue().encode()
    data = io.BytesIO()
    chart.save(data, format=cast(Literal["pdf", "png"], format), scale_factor=SHARP if format == "png" else 1)
    return data.getvalue()


def write(path: Path, data: bytes) -> Path:
    """Write a file atomically, and create its folder if it is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    runs.write_atomically(path, data)
    return path
