"""What a person watching a search sees."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from sparsefed.commands.tune.optimise import TuneProgress
from sparsefed.commands.tune.trials import Trial
from sparsefed.results.numbers import duration, percent

_NOTHING = "–"


class TuneView:
    """Trials done, the best so far and the time left in one line; where the output is no terminal, a line a trial."""

    def __init__(self, console: Console, trials: int) -> None:
        self._console, self._began, self._first = console, 0.0, -1
        digits = len(str(trials))
        beside = len("trial /  best attack 100.0% test 100.0% 0:00:00 left 0:00:00 ") + 2 * digits
        self._progress = Progress(
            TextColumn(f"trial {{task.fields[done]:>{digits}}}/{{task.total:.0f}}", style="bold"),
            BarColumn(bar_width=max(3, min(30, console.width - beside))),
            TextColumn("best {task.fields[best]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task("", total=trials, done=0, best=_NOTHING)

    def __enter__(self) -> TuneView:
        self._progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._progress.stop()

    def show(self, progress: TuneProgress) -> None:
        """How far the search is now."""
        if self._first < 0:  # trials of earlier calls took none of this one's time
            self._began, self._first = time.monotonic(), progress.done
            self._progress.reset(self._task, completed=progress.done, done=progress.done, best=_NOTHING)
        best = _brief(progress.best) if progress.best else _NOTHING
        self._progress.update(self._task, completed=progress.done + progress.share, done=progress.done, best=best)
        if progress.ended and not self._console.is_terminal:
            line = self._line(progress, progress.ended, best)
            self._console.print(line, highlight=False, soft_wrap=True, markup=False)

    def _line(self, progress: TuneProgress, ended: Trial, best: str) -> str:
        new = max(progress.done - self._first, 1)
        left = (time.monotonic() - self._began) / new * max(progress.total - progress.done, 0)
        come = _brief(ended) if ended.state == "finished" else ended.state
        return f"trial {progress.done}/{progress.total}: {come}; best {best}; {duration(left)} left"


def _brief(trial: Trial) -> str:
    attack = "" if trial.attack_accuracy is None else f"attack {percent(trial.attack_accuracy)} "
    return attack + (f"test {percent(trial.test_accuracy)}" if trial.converged else "DNC")
