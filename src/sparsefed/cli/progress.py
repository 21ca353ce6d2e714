"""What a person watching a run sees: a live line for each run, and the table at the end."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from types import TracebackType

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from sparsefed.core.round import Metrics, RoundReport, ServerState
from sparsefed.core.types import RunRecord
from sparsefed.data import Status
from sparsefed.results.numbers import duration, length, percent, points, times
from sparsefed.results.summary import SummaryRow, summary
from sparsefed.results.twins import compare

_LONGEST_NAME, _LONGEST_BAR = 24, 30


class RunView:
    """Round, accuracies and time left of runs that follow each other, a line each; where the output is no terminal, a
    line for each evaluation instead."""

    def __init__(self, console: Console, rounds: Mapping[str, int]) -> None:
        self._console, self._rounds = console, rounds
        self._progress = Progress(*_columns(console.width, rounds), console=console, disable=not console.is_terminal)
        self._tasks: dict[str, TaskID] = {
            name: self._progress.add_task(name, total=total, start=False, test="–", attack="–")
            for name, total in rounds.items()
        }
        self._current, self._began, self._first = "", 0.0, 0

    def __enter__(self) -> RunView:
        self._progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._progress.stop()

    def begin(self, name: str, state: ServerState) -> None:
        """Switch the display to this run, which starts from a state."""
        self._current, self._began, self._first = name, time.monotonic(), state.round
        self._progress.reset(self._tasks[name], completed=state.round)

    def show(self, report: RoundReport) -> None:
        """One more round."""
        metrics = report.metrics
        found = {key: percent(metrics[f"{key}_accuracy"]) for key in ("test", "attack") if f"{key}_accuracy" in metrics}
        self._progress.update(self._tasks[self._current], completed=metrics["round"], **found)  # type: ignore[arg-type]
        if found and not self._console.is_terminal:
            self._console.print(self._line(metrics, found), highlight=False, soft_wrap=True, markup=False)

    def _line(self, metrics: Metrics, found: Mapping[str, str]) -> str:
        round, total = metrics["round"], self._rounds[self._current]
        left = (time.monotonic() - self._began) / max(round - self._first, 1) * (total - round)
        shown = ", ".join(f"{key} {value}" for key, value in found.items())
        return f"{self._current}: round {round}/{total}, {shown}, {duration(left)} left"


def _columns(width: int, rounds: Mapping[str, int]) -> list[ProgressColumn]:
    """One line of at most `width` characters: name and bar share what the numbers leave."""
    digits = len(str(max(rounds.values())))
    free = width - len(" " + " round /" + " test 100.0% attack 100.0% 0:00:00 left 0:00:00") - 2 * digits
    name = max(6, min(_LONGEST_NAME, free - 4, max(map(len, rounds))))
    return [
        TextColumn(f"{{task.description:<{name}.{name}}}", style="bold", markup=False),
        BarColumn(bar_width=max(3, min(_LONGEST_BAR, free - name))),
        TextColumn(f"round {{task.completed:>{digits}.0f}}/{{task.total:.0f}}"),
        TextColumn("test [green]{task.fields[test]:>6}"),
        TextColumn("attack [red]{task.fields[attack]:>6}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    ]


def results_table(records: Sequence[RunRecord]) -> Table:
    """How the runs ended."""
    table = Table(title="Results", title_justify="left", caption_justify="left")
    table.add_column("run", overflow="fold")
    headings = (
        "test\naccuracy",
        "attack\naccuracy",
        "mean of\nlast epoch",
        "max of\nlast epoch",
        "attacker /\nhonest norm",
    )
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    rows = summary(records)
    for row in rows:
        table.add_row(*_cells(row))
    table.caption = "mean, max: of attack accuracy over the last epoch"
    if not all(row.converged for row in rows):
        table.caption += "\nDNC: did not converge, the test loss is not finite or the accuracy no better than chance"
    return table


def comparison_table(records: Sequence[RunRecord]) -> Table | None:
    """What the attacks changed, where there are runs without attackers to compare with."""
    compared = compare(records)
    if not compared:
        return None
    table = Table(title="Beside the runs without attackers", title_justify="left", caption_justify="left")
    table.add_column("run", overflow="fold")
    for heading in ("accuracy\nlost", "attack\nfor nothing", "l1 to\nunattacked", "l2 to\nunattacked", "l1 to plain"):
        table.add_column(heading, justify="right", no_wrap=True)
    for each in compared:
        apart, plain = each.to_unattacked, each.to_plain
        far = (apart.l1 if apart else None, apart.l2 if apart else None, plain.l1 if plain else None)
        told = (points(each.drop), percent(each.learned_anyway), *map(length, far))
        table.add_row(escape(each.name), *told)
    table.caption = (
        "accuracy lost: by the attack, in points; attack for nothing: attack accuracy without attackers;\n"
        "l1, l2: distance to the model trained without attackers, and to the plain one: no attackers, no defense"
    )
    return table


def _cells(row: SummaryRow) -> tuple[str, ...]:
    attack = (percent(row.attack_accuracy), percent(row.attack_mean), percent(row.attack_max))
    return escape(row.name), row.told_accuracy, *attack, times(row.norm_ratio)


def facts_table(title: str, facts: Mapping[str, str]) -> Table:
    """Named numbers."""
    table = Table(title=title, title_justify="left", show_header=False)
    table.add_column(overflow="fold")
    table.add_column(justify="right", no_wrap=True)
    for name, value in facts.items():
        table.add_row(name, value)
    return table


def data_table(found: Sequence[Status]) -> Table:
    """The data sets and where they are."""
    table = Table()
    for heading in ("data set", "what it is", "state", "where"):
        table.add_column(heading, overflow="fold")
    for status in found:
        table.add_row(status.name, status.description, status.state, escape(status.location or _how_to_get(status)))
    return table


def _how_to_get(status: Status) -> str:
    """The command that brings a data set, or that says in full how to."""
    fetch = f"sparsefed data fetch {status.name}"
    return (
        f"`{fetch}` gets it" if fetch in status.problem else f"`sparsefed data check {status.name}` says how to get it"
    )
