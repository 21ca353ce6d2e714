"""What a person watching a run sees: a live line for each run, and the table at the end."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from sparsefed.data import Status
from sparsefed.report.numbers import percent, times
from sparsefed.report.summary import summary
from sparsefed.simulate import RoundReport
from sparsefed.types import RunRecord


class RunView:
    """Round, accuracies and ETA of runs that follow each other; on a pipe, a line for each evaluation instead."""

    def __init__(self, console: Console, runs: Sequence[tuple[str, int]]) -> None:
        self._console = console
        self._rounds = dict(runs)
        self._progress = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("round {task.completed:>4.0f}/{task.total:.0f}"),
            TextColumn("test [green]{task.fields[test]:>6}"),
            TextColumn("attack [red]{task.fields[attack]:>6}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
            speed_estimate_period=15,
        )
        width = max((len(name) for name, _ in runs), default=0)
        self._tasks: dict[str, TaskID] = {
            name: self._progress.add_task(name.ljust(width), total=rounds, start=False, test="-", attack="-")
            for name, rounds in runs
        }
        self._current, self._began, self._first = "", 0.0, 0

    def __enter__(self) -> RunView:
        self._progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def stop(self) -> None:
        self._progress.stop()

    def begin(self, name: str, rounds_done: int) -> None:
        """The run that the following reports belong to."""
        self._current, self._began, self._first = name, time.monotonic(), rounds_done
        self._progress.update(self._tasks[name], completed=rounds_done)
        self._progress.start_task(self._tasks[name])

    def show(self, report: RoundReport) -> None:
        """One more round."""
        metrics, fields = report.metrics, {}
        if "test_accuracy" in metrics:
            fields["test"] = percent(metrics["test_accuracy"])
        if "attack_accuracy" in metrics:
            fields["attack"] = percent(metrics["attack_accuracy"])
        self._progress.update(self._tasks[self._current], completed=metrics["round"], **fields)  # type: ignore[arg-type]
        if fields and not self._console.is_terminal:
            self._console.print(self._line(metrics["round"], fields), highlight=False, soft_wrap=True)

    def _line(self, round: int, fields: dict[str, Any]) -> str:
        total = self._rounds[self._current]
        speed = (time.monotonic() - self._began) / max(round - self._first, 1)
        shown = ", ".join(f"{name} {value}" for name, value in fields.items())
        return f"{self._current}: round {round}/{total}, {shown}, {speed * (total - round):.0f} s left"


def results_table(records: Sequence[RunRecord]) -> Table:
    """How the runs ended."""
    table = Table(title="Results", title_justify="left", caption_justify="left")
    table.add_column("run")
    for heading in ("test accuracy", "attack accuracy", "mean, last tenth", "max, last tenth", "attacker / honest"):
        table.add_column(heading, justify="right")
    for row in summary(records):
        test = percent(row.test_accuracy) if row.converged else "did not converge"
        last, mean, most = percent(row.attack_accuracy), percent(row.attack_mean), percent(row.attack_max)
        table.add_row(row.name, test, last, mean, most, times(row.norm_ratio))
    return table


def data_table(found: Sequence[Status]) -> Table:
    """The data sets and where they are."""
    table = Table()
    for heading in ("data set", "what it is", "state", "where"):
        table.add_column(heading)
    for status in found:
        table.add_row(status.name, status.description, status.state, status.location or status.problem)
    return table
