"""What a person sees of exhibits: one progress view while they run, then tables, verdicts and what was scaled."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Literal

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from sparsefed.arithmetic import has_bfloat16
from sparsefed.experiments.claims import HOLDS, NOT, PART, UNTESTED, Judged
from sparsefed.experiments.outcome import Column, Outcome, body, columns, outcome, rules, what_was_scaled
from sparsefed.experiments.page import save
from sparsefed.experiments.plan import Plan
from sparsefed.experiments.reading import load, names
from sparsefed.experiments.record import Exhibit, ScaleName
from sparsefed.experiments.runner import Running, Standing
from sparsefed.report.numbers import duration

COLOURS = {HOLDS: "green", PART: "yellow", NOT: "red", UNTESTED: "dim"}
MOST_SHOWN = 3  # of the comparisons against a claim
HOURS = 100  # from so many minutes on they are told as hours
SLOWER = "Minutes are those of a processor with bfloat16. This one has none: expect twice as long, or more."


class _Left(ProgressColumn):
    """The time left, as the runner estimates it from seconds a round."""

    def render(self, task: Task) -> Text:
        left = task.fields.get("left")
        return Text("" if left is None else f"{duration(left)} left", style="cyan")


class ReproduceView:
    """Cells done and the time left in one line, a line below for each cell at work; where the output is no terminal, a
    line for each cell that ends."""

    def __init__(self, console: Console) -> None:
        self._console, self._began = console, time.monotonic()
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=max(5, min(24, console.width - 90))),
            TextColumn("{task.completed:.0f}/{task.total:.0f}"),
            TextColumn("{task.fields[what]}"),
            TimeElapsedColumn(),
            _Left(),
            console=console,
            disable=not console.is_terminal,
        )
        self._all = self._progress.add_task("cells", total=1, what="", left=None)
        self._lines = [self._progress.add_task("", total=1, visible=False, what="rounds", left=None)]

    def __enter__(self) -> ReproduceView:
        self._progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for line in self._lines:
            self._progress.update(line, visible=False)
        self._progress.stop()

    def show(self, standing: Standing) -> None:
        """How far everything is now."""
        done, failed = standing.done + standing.failed, f"[red]{standing.failed} failed" if standing.failed else ""
        self._progress.update(self._all, completed=done, total=standing.total, what=failed, left=standing.left)
        self._show_running(standing.running)
        if standing.ended and not self._console.is_terminal:
            left = "" if standing.left is None else f"; {duration(standing.left)} left"
            line = f"cell {done}/{standing.total}: {standing.ended}{left}"
            self._console.print(line, highlight=False, soft_wrap=True, markup=False)

    def _show_running(self, running: Sequence[Running]) -> None:
        while len(self._lines) < len(running):
            self._lines.append(self._progress.add_task("", total=1, visible=False, what="rounds", left=None))
        width = max(20, self._console.width - 66)
        for i, line in enumerate(self._lines):
            if i < len(running):
                self._show_cell(line, running[i], width)
            else:
                self._progress.update(line, visible=False)

    def _show_cell(self, line: TaskID, cell: Running, width: int) -> None:
        shown = "  " + (cell.title if len(cell.title) <= width else f"{cell.title[: width - 1]}…")
        if self._progress.tasks[self._progress.task_ids.index(line)].description != shown:
            self._progress.reset(line, description=shown)  # its clock starts anew
        self._progress.update(line, completed=cell.round, total=cell.rounds, visible=True)


def list_table() -> Table:
    """What there is to reproduce."""
    table = Table(caption=None if has_bfloat16() else SLOWER, caption_justify="left")
    for heading in ("name", "in the paper", "what it is", "at scale laptop", "at scale schedule"):
        table.add_column(heading, overflow="fold")
    for name in names():
        exhibit = load(name)
        table.add_row(
            name, escape(exhibit.where), escape(exhibit.title), _cost(exhibit, "laptop"), _cost(exhibit, "schedule")
        )
    return table


def _cost(exhibit: Exhibit, name: ScaleName) -> str:
    if exhibit.kind == "formula":
        return "a formula"
    if name not in exhibit.scales:
        return "not at this scale"
    minutes = exhibit.scales[name].est_minutes
    if minutes is None:
        return ""
    return f"about {minutes:.0f} min on 2 cores" if minutes < HOURS else f"about {minutes / 60:.0f} h on 2 cores"


def told(plans: Sequence[Plan], out: Path) -> Iterator[Table | str]:
    """What exhibits came to, after their pages and pictures are written: tables, and lines with markup."""
    by: dict[str, None] = {}
    for plan in plans:
        found = outcome(plan, out)
        yield outcome_table(found)
        yield from verdicts(found.judged)
        if changed := what_was_scaled(found):
            yield f"[dim]Scale {found.scale}: {escape('; '.join(line.strip() for line in changed))}[/dim]"
        yield f"wrote [bold]{escape(', '.join(map(str, save(found, out))))}[/bold]\n"
        by |= dict.fromkeys(rules(found))
    yield from (f"[dim]{escape(rule)}[/dim]" for rule in by)


def outcome_table(found: Outcome) -> Table:
    """Ours beside the paper's; what is the same in every row stands below."""
    exhibit, heads, lines = found.exhibit, columns(found), body(found)
    table = Table(title=f"{exhibit.where}: {escape(exhibit.title)}", title_justify="left", caption_justify="left")
    same = [
        i for i, head in enumerate(heads) if head.ours is None and len({line[i] for line in lines}) == 1 < len(lines)
    ]
    for i, head in enumerate(heads):
        if i not in same and head.ours is not False:
            paper = "\n(paper)" if _has_paper(heads, i) else ""
            justify: Literal["left", "right"] = "left" if head.ours is None else "right"
            table.add_column(escape(head.title) + paper, justify=justify, overflow="fold")
    for line in lines:
        table.add_row(*(escape(_beside(heads, line, i)) for i in range(len(heads)) if _shown(heads, same, i)))
    table.caption = "; ".join(f"{heads[i].title}: {lines[0][i]}" for i in same) or None
    return table


def _has_paper(heads: Sequence[Column], i: int) -> bool:
    return i + 1 < len(heads) and heads[i + 1].ours is False


def _shown(heads: Sequence[Column], same: Sequence[int], i: int) -> bool:
    return i not in same and heads[i].ours is not False


def _beside(heads: Sequence[Column], line: Sequence[str], i: int) -> str:
    return f"{line[i]}\n({line[i + 1]})" if _has_paper(heads, i) else line[i]


def verdicts(judged: Iterable[Judged]) -> Iterator[str]:
    """A line for each claim, and below it where it fails."""
    for each in judged:
        told = f"[{COLOURS[each.verdict]}]{each.verdict}[/]"
        yield f"{told}: {escape(each.claim.text)} [dim]({escape(each.claim.where)})[/dim]"
        against = [comparison.told for comparison in each.comparisons if not comparison.holds]
        shown = {PART: MOST_SHOWN, NOT: MOST_SHOWN, UNTESTED: 1}.get(each.verdict, 0)
        yield from (f"    [dim]{escape(line)}[/dim]" for line in against[:shown])
        if shown and len(against) > shown:
            yield f"    [dim]and at {len(against) - shown} more[/dim]"
