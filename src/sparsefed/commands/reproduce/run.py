"""Reproduction of the paper's tables and figures: runs what is missing of them, and judges the paper's claims."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, overload

from sparsefed.commands.reproduce.comparison import ExhibitResult, outcome
from sparsefed.commands.reproduce.exhibit import Exhibit
from sparsefed.commands.reproduce.grid import ExhibitPlan, plan
from sparsefed.commands.reproduce.load import load
from sparsefed.config import resolve
from sparsefed.core.progress import OnProgress
from sparsefed.sweeps import ledger as results
from sparsefed.sweeps.ledger import Ledger, Row
from sparsefed.sweeps.runner import default_jobs, failures, run_plans, working_folder


@overload
def reproduce(
    names: str,
    *,
    scale: str = "laptop",
    folder: str | Path | None = None,
    jobs: int | None = None,
    on_progress: OnProgress = ...,
) -> ExhibitResult: ...


@overload
def reproduce(
    names: list[str] | tuple[str, ...],
    *,
    scale: str = "laptop",
    folder: str | Path | None = None,
    jobs: int | None = None,
    on_progress: OnProgress = ...,
) -> list[ExhibitResult]: ...


def reproduce(
    names: str | list[str] | tuple[str, ...],
    *,
    scale: str = "laptop",
    folder: str | Path | None = None,
    jobs: int | None = None,
    on_progress: OnProgress = lambda _: None,
) -> ExhibitResult | list[ExhibitResult]:
    """Run tables and figures of the paper, compare our numbers with the paper's, and judge its claims.

    Args:
        names: One exhibit, or several, which share runs that are equal; `sparsefed reproduce --list` shows them.
        scale: "smoke" takes seconds, "laptop" at most an hour each, "paper" is everything as printed.
        folder: Where results and runs go and finished ones are found; by default a temporary folder.
        jobs: How many runs at a time; by default one per core.
        on_progress: Called with a `Progress` whenever something has changed.

    Returns:
        A result for each name, in their order; not a list where `names` is one name. `problem` describes failed runs.

    Raises:
        ConfigError: If there is no such exhibit or scale.
        RunError: If the folder cannot be used.
    """
    chosen = [names] if isinstance(names, str) else list(dict.fromkeys(names))
    plans = [plan(load(name), scale) for name in chosen]
    with working_folder(folder) as out:
        ledger = run_exhibits(plans, out, default_jobs() if jobs is None else jobs, on_progress)
        problem = failures(ledger, out)
        done = [replace(outcome(each, out), problem=problem) for each in plans]
    return done[0] if isinstance(names, str) else done


def run_exhibits(
    plans: Sequence[ExhibitPlan], out: Path, jobs: int, on_progress: OnProgress = lambda _: None
) -> Ledger:
    """Run what is missing of exhibits and write the rows of formulas; return the ledger of every cell."""
    ledger = run_plans([each.sweep for each in plans if each.exhibit.kind == "runs"], out, jobs, on_progress)
    for each in plans:
        if each.exhibit.kind == "formula":
            results.write(out, each.sweep, formula_rows(each.exhibit, each.sweep.scale))
    return ledger


def formula_rows(exhibit: Exhibit, scale: str) -> list[Row]:
    """Return the results of a formula, as lines of results."""
    head = {"exhibit": exhibit.name, "scale": scale}
    tail: dict[str, Any] = {"attack": None, "role": "result", "seed": 0, "key": None, "twins": [], "status": "done"}
    rows = resolve("formula", exhibit.formula, {})()
    return [{**head, "cell": row["cell"], **tail, "metrics": row["metrics"]} for row in rows]
