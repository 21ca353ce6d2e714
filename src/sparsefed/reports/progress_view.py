"""The progress display of long tasks: one line for the whole, and one for each running part."""

from __future__ import annotations

import time

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as RichProgress

from sparsefed.core.progress import AtWork, Progress
from sparsefed.results.numbers import duration

_LONGEST_BAR = 24
_COLOURS = {"attack": "red", "failed": "red"}  # of fields; others are green


class ProgressView:
    """A view of `Progress` on a console: live on a terminal; elsewhere one line per event."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bars = RichProgress(
            TextColumn("{task.description}", markup=False, style="bold"),
            BarColumn(bar_width=max(3, min(_LONGEST_BAR, console.width - 84))),
            TextColumn("{task.fields[count]}"),
            TextColumn("{task.fields[what]}"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}", style="cyan"),
            console=console,
            disable=not console.is_terminal,
        )
        self._all = self._add()
        self._lines: list[TaskID] = []
        self._starts: dict[str, tuple[float, float]] = {}  # by title, "" for the whole: when first shown, and how far
        self._shown: Progress | None = None

    def _add(self) -> TaskID:
        return self._bars.add_task("", total=1, visible=False, count="", what="", left="")

    def __enter__(self) -> ProgressView:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        for line in self._lines:
            self._bars.update(line, visible=False)
        self._bars.stop()

    def show(self, progress: Progress) -> None:
        """Show the current progress."""
        if self._shown is None or progress.total != self._shown.total or progress.done < self._shown.done:
            self._starts.pop("", None)
            self._bars.reset(self._all)
        left = self._left("", progress) if progress.left is None else progress.left
        self._update(self._all, AtWork(progress.title, progress.done, progress.total, progress.fields), left)
        while len(self._lines) < len(progress.running):
            self._lines.append(self._add())
        for line in self._lines[len(progress.running) :]:
            self._bars.update(line, visible=False)
        for line, part in zip(self._lines, progress.running, strict=False):
            self._update(line, part, self._left(part.title, part))
        event = progress.numbered_line
        if event and not self._console.is_terminal and event != (self._shown and self._shown.numbered_line):
            known = "" if left is None else f"; {duration(left)} left"
            self._console.print(f"{event}{known}", highlight=False, soft_wrap=True, markup=False)
        self._shown = progress

    def _left(self, title: str, work: Progress | AtWork) -> float | None:
        """Estimate the seconds left; work done before it was first shown does not count in its speed."""
        began, first = self._starts.setdefault(title, (time.monotonic(), work.done))
        if work.done <= first:
            return None
        return (time.monotonic() - began) / (work.done - first) * max(work.total - work.done, 0)

    def _update(self, line: TaskID, part: AtWork, left: float | None) -> None:
        width = max(12, self._console.width - 62)
        title = part.title if len(part.title) <= width else f"{part.title[: width - 1]}…"
        if line != self._all and self._bars.tasks[self._bars.task_ids.index(line)].description != title:
            self._bars.reset(line)  # restarts its clock
        what = " ".join(
            f"[{_COLOURS.get(name, 'green')}]{escape(f'{name} {value}')}[/]" for name, value in part.fields.items()
        )
        self._bars.update(line, description=title, completed=part.done, total=part.total, visible=True)
        count, time_left = f"{int(part.done)}/{int(part.total)}", f"{duration(left)} left"  # a dash while unknown
        self._bars.update(line, count=count, what=what, left=time_left)
