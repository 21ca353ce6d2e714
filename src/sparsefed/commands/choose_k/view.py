"""What a person sees while a model is trained and sampled."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from sparsefed.commands import common


class ChoiceView:
    """What is done, rounds and the time left in one line; where the output is no terminal, a line for each part."""

    def __init__(self, console: Console) -> None:
        self._console, self._doing = console, ""
        self._progress = Progress(
            TextColumn("{task.description}", style="bold"),
            BarColumn(bar_width=max(3, min(30, console.width - 70))),
            TextColumn("{task.completed:.0f}/{task.total:.0f} rounds"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task("", total=1)

    def __enter__(self) -> ChoiceView:
        self._progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._progress.stop()

    def show(self, progress: common.Progress) -> None:
        """One more round."""
        self._progress.update(self._task, description=progress.title, completed=progress.done, total=progress.total)
        if progress.title != self._doing and not self._console.is_terminal:
            self._console.print(f"{progress.title} ...", highlight=False, soft_wrap=True, markup=False)
        self._doing = progress.title
