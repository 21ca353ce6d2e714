"""A report on disk: HTML as one file, pictures as one file a chart."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sparsefed.core.errors import ConfigError, RunError, unknown
from sparsefed.core.types import RunRecord
from sparsefed.reports.document import html
from sparsefed.reports.pictures import FORMATS, picture, write
from sparsefed.reports.run_charts import charts, check


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
