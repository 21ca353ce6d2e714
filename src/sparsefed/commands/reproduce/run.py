"""Reproduction of the paper's tables and figures: runs what is missing of them, and judges the paper's claims."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, TypedDict, Unpack, overload

from sparsefed.commands.reproduce.claims import Judged, judge
from sparsefed.commands.reproduce.exhibit import Exhibit, Paper
from sparsefed.commands.reproduce.grid import ExhibitPlan, combinations, plan
from sparsefed.commands.reproduce.load import load, load_paper
from sparsefed.commands.reproduce.training import trainings
from sparsefed.config import resolve
from sparsefed.core.errors import RunError
from sparsefed.core.progress import OnProgress
from sparsefed.reports.result import Report
from sparsefed.sweeps import ledger as results
from sparsefed.sweeps.ledger import Ledger, Row
from sparsefed.sweeps.runner import default_jobs, failures, run_plans, working_folder

GENERATED, TINY = "smoke", "reproduce.tiny:"  # the scale of generated data, and where these come from
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
    ran: int | None = None  # how many of its runs were done just now; None: unknown
    problem: RunError | None = None  # a sentence about runs that failed, of this exhibit or of others run with it
    missing: int = 0  # runs that have no result yet

    def records(self) -> list[dict[str, Any]]:
        """Return one flat record per reported run: the values of the axes, attack, seed, and its measures by name."""
        reported = (row for row in self.rows if row["role"] == "result")
        return [
            {**row["cell"], "variant": row["attack"], "seed": row["seed"], "status": row["status"], **row["metrics"]}
            for row in reported
        ]

    @property
    def generated(self) -> bool:
        """Return whether the numbers are of generated data, which say nothing about the paper."""
        if self.exact or self.scale != GENERATED:
            return False
        names = (str(each.table.get("data", {}).get("name")) for each in combinations(self.exhibit, self.scale))
        return any(TINY in name for name in names)

    @property
    def exact(self) -> bool:
        return self.exhibit.kind == "formula"

    @property
    def name(self) -> str:
        return f"{self.exhibit.name}.{self.scale}" if self.scale else self.exhibit.name


def outcome(plan: ExhibitPlan, out: Path, folder: Traversable | None = None) -> ExhibitResult:
    """Return the result of an exhibit from the results file of its plan."""
    exhibit, rows = plan.exhibit, results.read(results.path(out, plan.sweep))
    paper, missing = load_paper(exhibit, folder), results.missing(plan.sweep, rows)
    judged = judge(exhibit, rows, [group.values for group in plan.sweep.groups], trainings(plan, rows), paper)
    seconds = results.seconds(out, {row["key"] for row in rows})
    return ExhibitResult(exhibit, plan.sweep.scale, tuple(rows), paper, tuple(judged), seconds, missing=missing)


class ReproduceOptions(TypedDict, total=False):
    """The keyword arguments of `reproduce`, which it takes for one name and for several alike."""

    scale: str
    folder: Folder
    jobs: int | None
    on: str | None
    on_progress: OnProgress


@overload
def reproduce(names: str, **options: Unpack[ReproduceOptions]) -> ExhibitResult: ...
@overload
def reproduce(names: Names, **options: Unpack[ReproduceOptions]) -> list[ExhibitResult]: ...
def reproduce(
    names: str | Names,
    *,
    scale: str = "laptop",
    folder: Folder = None,
    jobs: int | None = None,
    on: str | None = None,
    on_progress: OnProgress = lambda _: None,
) -> ExhibitResult | list[ExhibitResult]:
    """Run tables and figures of the paper, compare our numbers with the paper's, and judge its claims.

    Args:
        names: One exhibit, or several, which share runs that are equal; `sparsefed reproduce --list` shows them.
        scale: "smoke" takes seconds, "laptop" at most an hour each, "paper" is everything as printed.
        folder: Where results and runs go and finished ones are found; by default a temporary folder.
        jobs: How many runs at a time; by default one per core.
        on: "ray" to run them on the machines of a Ray cluster, with the same results.
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
        before = [_done(each, out) for each in plans]
        ledger = run_exhibits(plans, out, default_jobs(on) if jobs is None else jobs, on_progress, on)
        problem = failures(ledger, out)
        done = [
            replace(outcome(each, out), problem=problem, ran=len(_done(each, out) - there))
            for each, there in zip(plans, before, strict=True)
        ]
    return done[0] if isinstance(names, str) else done


def _done(plan: ExhibitPlan, out: Path) -> set[str]:
    """Return the keys of the runs whose results are there."""
    rows = results.read(results.path(out, plan.sweep))
    return {row["key"] for row in rows if row["status"] == "done" and row["key"]}


def run_exhibits(
    plans: Sequence[ExhibitPlan], out: Path, jobs: int, on_progress: OnProgress = lambda _: None, on: str | None = None
) -> Ledger:
    """Run what is missing of exhibits and write the rows of formulas; return the ledger of every cell."""
    runs = [each.sweep for each in plans if each.exhibit.kind == "runs"]
    ledger = run_plans(runs, out, jobs, on_progress, on=on)
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
