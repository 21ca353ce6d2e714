"""Every table, figure and text claim of the paper as data, and what runs it: grids, cells, results, verdicts.

exhibits/NAME.toml  what is asked, the grid, its scales, its claims, its chart      (record.py, reading.py)
paper/NAME.json     the paper's numbers, and where they stand
grid.py, plan.py    combinations of the axes -> configs -> cells, known by their config alone
runner.py           runs the cells in workers (pool.py, worker.py, cells.py) and keeps the results (results.py)
claims.py           what the paper says, and whether it holds here
outcome.py, charts.py, page.py, view.py   for a reader
"""

from __future__ import annotations

from sparsefed.experiments.outcome import Outcome, outcome, rules, summary, what_was_scaled
from sparsefed.experiments.page import html, save
from sparsefed.experiments.plan import Plan, plan
from sparsefed.experiments.reading import load, names
from sparsefed.experiments.runner import default_jobs, failures, reproduce
from sparsefed.experiments.view import ReproduceView, list_table, told

__all__ = [
    "Outcome",
    "Plan",
    "ReproduceView",
    "default_jobs",
    "failures",
    "html",
    "list_table",
    "load",
    "names",
    "outcome",
    "plan",
    "reproduce",
    "rules",
    "save",
    "summary",
    "told",
    "what_was_scaled",
]
