"""Reproducing tables and figures of the paper: runs what is missing of them, and judges what the paper says."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sparsefed.commands.reproduce.exhibit import Exhibit
from sparsefed.commands.reproduce.grid import ExhibitPlan
from sparsefed.config import resolve
from sparsefed.core.progress import OnProgress
from sparsefed.sweeps import ledger as results
from sparsefed.sweeps.ledger import Ledger, Row
from sparsefed.sweeps.runner import run_plans


def run_exhibits(
    plans: Sequence[ExhibitPlan], out: Path, jobs: int, on_progress: OnProgress = lambda _: None
) -> Ledger:
    """Run what is missing of exhibits and write the rows of formulas; return what is known of every cell."""
    ledger = run_plans([plan.sweep for plan in plans if plan.exhibit.kind == "runs"], out, jobs, on_progress)
    for plan in plans:
        if plan.exhibit.kind == "formula":
            results.write(out, plan.sweep, formula_rows(plan.exhibit, plan.sweep.scale))
    return ledger


def formula_rows(exhibit: Exhibit, scale: str) -> list[Row]:
    """Return what a formula gives, as lines of results."""
    head = {"exhibit": exhibit.name, "scale": scale}
    tail: dict[str, Any] = {"attack": None, "role": "result", "seed": 0, "key": None, "twins": [], "status": "done"}
    rows = resolve("formula", exhibit.formula, {})()
    return [{**head, "cell": row["cell"], **tail, "metrics": row["metrics"]} for row in rows]
