"""Reproduction of the paper's tables and figures: runs what is missing of them, and judges the paper's claims."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, overload

from sparsefed.commands.reproduce.claims import Judged, judge
from sparsefed.commands.reproduce.exhibit import Exhibit, Paper
from sparsefed.commands.reproduce.grid import ExhibitPlan, plan
from sparsefed.commands.reproduce.load import load, load_paper
from sparsefed.config import resolve
from sparsefed.core.errors import RunError
from sparsefed.core.progress import OnProgress
from sparsefed.reports.result import Report
from sparsefed.sweeps import ledger as results
from sparsefed.sweeps.ledger import Ledger, Row
from sparsefed.sweeps.runner import default_jobs, failures, run_plans, working_folder

Names = list[str] | tuple[str, ...]
Folder = str | Path | None


@dataclass(frozen=True)
class ExhibitResult(Report, described_by="sparsefed.commands.reproduce.document"):
    """An exhibit at a scale: its results, the paper's numbers and the verdicts on the paper's claims."""

    exhibit: Exhibit
    scale: str
    rows: tuple[Row, ...]
    paper: Paper
    judged: tuple[Judged, ...]
    seconds: float | None  # of all its runs, where they were timed
    problem: RunError | None = None  # a sentence about runs that failed, of this exhibit or of others run with it

    def records(self) -> list[dict[str, Any]]:
        """Return one flat record per reported run: the values of the axes, attack, seed, and its measures by name."""
        reported = (row for row in self.rows if row["role"] == "result")
        return [
            {**row["cell"], "variant": row["attack"], "seed": row["seed"], "status": row["status"], **row["metrics"]}
            for row in reported
        ]

    @property
    def exact(self) -> bool:
        return self.exhibit.kind == "formula"

    @property
    def name(self) -> str:
        return f"{self.exhibit.name}.{self.scale}"


def outcome(plan: ExhibitPlan, out: Path, folder: Traversable | None = None) -> ExhibitResult:
    """Return the result of an exhibit from the results file of its plan."""
    exhibit, rows = plan.exhibit, results.read(results.path(out, plan.sweep))
    judged = judge(exhibit, rows, [group.values for group in plan.sweep.groups])
    seconds = results.seconds(out, {row["key"] for row in rows})
    paper = load_paper(exhibit, folder)
    return ExhibitResult(exhibit, plan.sweep.scale, tuple(rows), paper, tuple(judged), seconds)


@overload
def reproduce(
    names: str, *, scale: str = ..., folder: Folder = ..., jobs: int | None = ..., on_progress: OnProgress = ...
) -> ExhibitResult: ...


@overload
def reproduce(
    names: Names, *, scale: str = ..., folder: Folder = ..., jobs: int | None = ..., on_progress: OnProgress = ...
) -> list[ExhibitResult]: ...


def reproduce(
    names: str | Names,
    *,
    scale: str = "laptop",
    folder: Folder = None,
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
