"""What a benchmark says: a table of numbers beside their bars for the reader, and one JSON file for machines."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.table import Table

from benchmarks.machine import facts
from benchmarks.timing import Spread
from sparsefed.runs import write_atomically

BUSY = 0.05  # the share of the machine's time beyond which ratios are not to be trusted
_SIGNS = {"at most": "≤", "at least": "≥"}


@dataclass(frozen=True)
class Bar:
    """What a number must not exceed, or must reach."""

    kind: Literal["at most", "at least"]
    limit: float

    def met(self, value: float) -> bool:
        """
        >>> Bar("at most", 1.3).met(1.3), Bar("at least", 5).met(4.9)
        (True, False)
        """
        return value <= self.limit if self.kind == "at most" else value >= self.limit

    def __str__(self) -> str:
        return f"{_SIGNS[self.kind]} {self.limit:g}"


@dataclass(frozen=True)
class Row:
    """One number of the table: the median of what was measured, against its bar if it has one."""

    group: str
    what: str
    setting: str  # the dtype, the population: what tells it from its neighbours
    value: Spread
    bar: Bar | None = None

    @property
    def met(self) -> bool | None:
        return None if self.bar is None else self.bar.met(self.value.median)


def show(console: Console, title: str, caption: str, rows: Sequence[Row]) -> None:
    """The table."""
    table = Table(title=title, caption=caption, title_justify="left", caption_justify="left")
    for heading in ("", "what", "setting"):
        table.add_column(heading)
    for heading in ("median", "quartiles", "of", "bar", "met"):
        table.add_column(heading, justify="right")
    group = ""
    for row in rows:
        if group and row.group != group:
            table.add_section()
        table.add_row(row.group if row.group != group else "", *_cells(row))
        group = row.group
    console.print(table)


def _cells(row: Row) -> tuple[str, ...]:
    value, met = row.value, {None: "", True: "[green]yes", False: "[red]no"}[row.met]
    middle, quartiles = f"{value.median:.2f}", f"{value.low:.2f} - {value.high:.2f}"
    return row.what, row.setting, middle, quartiles, str(value.repeats), str(row.bar or ""), met


def warn_if_busy(console: Console, others: float | None) -> None:
    """A ratio against a machine that works for others too is worth little: say so."""
    if others is not None and others > BUSY:
        console.print(
            f"[yellow]Other programs took {others:.0%} of this machine's time meanwhile: repeat this when it is idle.",
            highlight=False,
            soft_wrap=True,
        )


def write(path: Path, name: str, rows: Sequence[Row], details: Mapping[str, Any], others: float | None) -> None:
    """All of it as JSON, with what is known of the machine; the old file or the new one, never half of one."""
    record = {
        "benchmark": name,
        **facts(),
        "others_share": others,
        "results": [_plain(row) for row in rows],
        "details": details,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, (json.dumps(record, indent=2, allow_nan=False) + "\n").encode())


def _plain(row: Row) -> dict[str, Any]:
    return {
        "group": row.group,
        "what": row.what,
        "setting": row.setting,
        **row.value._asdict(),
        "bar": None if row.bar is None else asdict(row.bar),
        "met": row.met,
    }
