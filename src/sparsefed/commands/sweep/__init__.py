"""A sweep from a file: the engine behind `reproduce`, for a grid of one's own.

grid_file.py    FILE.toml -> an exhibit without a paper; `sweep_file` runs what is missing of it
exports.py      the results for a paper of one's own: CSV, LaTeX, figures of a given size without titles
"""

from __future__ import annotations

from sparsefed.commands.sweep.exports import FigureSize, exports
from sparsefed.commands.sweep.grid_file import described, load_sweep, sweep_file

__all__ = ["FigureSize", "described", "exports", "load_sweep", "sweep_file"]
