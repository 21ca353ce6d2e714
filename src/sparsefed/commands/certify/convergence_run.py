"""The convergence theorem for the command: a config trained under a progress view."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from sparsefed import config as configs
from sparsefed import runs
from sparsefed.commands.certify.measured_convergence import Convergence, measure
from sparsefed.reports.progress_view import Progress


def follow(path: Path, overrides: Sequence[str], on_progress: Callable[[Progress], None]) -> Convergence:
    """Train a config, or that of a run folder once more, and measure what the theorem speaks of."""
    table = runs.load_config(path) if path.is_dir() else None
    config = configs.read(path, overrides) if table is None else configs.parse(table, overrides, str(path))
    return measure(config, lambda done, rounds: on_progress(Progress("rounds", done, rounds)))
