"""Charts as pictures, and files that a reader never meets half written."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

from sparsefed import runs

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
    """Write all of it or nothing, into a folder that is made where it is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    runs.write_atomically(path, data)
    return path
