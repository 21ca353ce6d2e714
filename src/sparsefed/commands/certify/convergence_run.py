"""The convergence theorem for the command: a config trained under a progress bar, told in sentences and a table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from sparsefed import config as configs
from sparsefed import runs
from sparsefed.commands.certify.convergence_document import HEAD, html, rows, sentences
from sparsefed.commands.certify.measured_convergence import Convergence, measure
from sparsefed.reports.pictures import write

__all__ = ["convergence_table", "follow", "save_convergence", "sentences"]


def follow(path: Path, overrides: Sequence[str], console: Console) -> Convergence:
    """Train a config, or that of a run folder once more, and measure what the theorem speaks of."""
    table = runs.load_config(path) if path.is_dir() else None
    config = configs.read(path, overrides) if table is None else configs.parse(table, overrides, str(path))
    columns = (TextColumn("round {task.completed:.0f}/{task.total:.0f}"), BarColumn(), TimeElapsedColumn())
    progress = Progress(*columns, TimeRemainingColumn(), console=console, disable=not console.is_terminal)
    task = progress.add_task("", total=config.rounds)
    with progress:
        return measure(config, lambda done, rounds: progress.update(task, completed=done, total=rounds))


def convergence_table(found: Convergence) -> Table:
    """Measured and promised, by the number of rounds."""
    table = Table(title="Convergence", title_justify="left")
    for heading in HEAD:
        table.add_column(heading, justify="right")
    for cells in rows(found):
        table.add_row(*cells)
    return table


def save_convergence(found: Convergence, out: Path) -> Path:
    """Write its page and say where."""
    return write(out, html(found).encode())
