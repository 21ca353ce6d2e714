"""Runs that several commands need: trained one after the other under one progress view, shown, reported."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import typer
from rich.console import Console
from rich.markup import escape

from sparsefed.cli.app import INTERRUPTED, console, ended_politely, say, wrote

if TYPE_CHECKING:
    from sparsefed.config import BuiltSimulation, Config
    from sparsefed.core.round import RoundReport, ServerState
    from sparsefed.core.types import RunRecord
    from sparsefed.reports.progress_view import ProgressView


class Plan(NamedTuple):
    """One run to be done."""

    config: Config
    folder: Path
    create: bool  # otherwise it resumes from its folder
    overwrite: bool = False

    @property
    def title(self) -> str:
        return self.config.name or self.folder.absolute().name


def train_all(plans: list[Plan], shown: Console = console) -> None:
    """Run plans one after the other under one progress view; all are built first, so that errors appear at once."""
    from sparsefed import config as configs
    from sparsefed.reports.progress_view import ProgressView

    if not plans:
        say("Everything is there already.")
        return
    reached = plans[0].folder
    try:
        with ended_politely():
            experiments = configs.build_all([plan.config for plan in plans])
            with ProgressView(shown) as view:
                following = _Following(view, {plan.title: plan.config.rounds for plan in plans})
                for plan, experiment in zip(plans, experiments, strict=True):
                    reached = plan.folder
                    _run_one(plan, experiment, following)
    except KeyboardInterrupt:
        _say_how_to_go_on(reached, several=len(plans) > 1)
        raise typer.Exit(INTERRUPTED) from None


def run_all(wanted: Mapping[Path, Config], shown: Console = console) -> None:
    """Run every config into its folder under one progress view, skipping finished ones."""
    from sparsefed import config as configs
    from sparsefed import runs

    todo = runs.unfinished({folder: configs.dump(config) for folder, config in wanted.items()})
    train_all([Plan(wanted[folder], folder, create) for folder, create in todo.items()], shown)


def show_results(folders: list[Path]) -> None:
    from sparsefed import runs
    from sparsefed.reports.run_report import results
    from sparsefed.reports.to_terminal import show

    show(results([runs.load_run(folder) for folder in folders]), console)


def write_report(folders: list[Path], out: Path, format: str) -> None:
    from sparsefed import reports, runs

    records: list[RunRecord] = [runs.load_run(folder) for folder in folders]
    for path in reports.save(records, out, format):
        wrote(path)


def _run_one(plan: Plan, experiment: BuiltSimulation, following: _Following) -> None:
    from sparsefed import config as configs
    from sparsefed import runs

    runs.run(
        plan.folder,
        configs.dump(plan.config),
        lambda: experiment,
        checkpoint_every=plan.config.checkpoint_every,
        on_start=lambda state: following.begin(plan.title, state),
        on_round=following.show,
        create=plan.create,
        overwrite=plan.overwrite,
    )


class _Following:
    """The progress of consecutive runs, for the progress view."""

    def __init__(self, view: ProgressView, rounds: Mapping[str, int]) -> None:
        self._view, self._rounds, self._current = view, rounds, ""
        self._reached: dict[str, int] = {}
        self._measured: dict[str, dict[str, str]] = {}

    def begin(self, name: str, state: ServerState) -> None:
        """Switch the progress view to this run, which starts from a state."""
        self._current, self._reached[name] = name, state.round
        self._show("")

    def show(self, report: RoundReport) -> None:
        """Show one more round."""
        from sparsefed.results.numbers import percent

        metrics, name = report.metrics, self._current
        new = {key: percent(metrics[f"{key}_accuracy"]) for key in ("test", "attack") if f"{key}_accuracy" in metrics}
        self._reached[name] = int(metrics["round"])
        self._measured[name] = self._measured.get(name, {}) | new
        values = ", ".join(f"{key} {value}" for key, value in new.items())
        self._show(f"{name}: round {metrics['round']}/{self._rounds[name]}, {values}" if new else "")

    def _show(self, line: str) -> None:
        from sparsefed.core.progress import AtWork, Progress

        parts = [
            AtWork(name, self._reached[name], self._rounds[name], self._measured.get(name, {}))
            for name in self._rounds
            if name in self._reached
        ]
        total = sum(self._rounds.values())
        self._view.show(Progress("rounds", sum(self._reached.values()), total, parts, line=line))


def _say_how_to_go_on(folder: Path, several: bool) -> None:
    from sparsefed import runs

    if not runs.is_run(folder):
        say("Interrupted before anything was computed.")
        return
    again = "Go on with the same command, or with this run alone" if several else "Go on with"
    say(f"Interrupted, saved. {again}: [bold]sparsefed resume {escape(shlex.quote(str(folder)))}[/bold]")
