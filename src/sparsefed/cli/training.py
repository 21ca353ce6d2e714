"""Runs that several commands need: trained one after the other under one view, shown, reported."""

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
    from sparsefed.cli.progress import RunView
    from sparsefed.config import Config, Experiment
    from sparsefed.core.types import RunRecord


class Plan(NamedTuple):
    """One run to be done."""

    config: Config
    folder: Path
    create: bool  # otherwise it goes on from where its folder stands
    overwrite: bool = False

    @property
    def title(self) -> str:
        return self.config.name or self.folder.absolute().name


def train_all(plans: list[Plan], shown: Console = console) -> None:
    """Run one after the other under one progress view, after all have been built: what cannot work fails at once."""
    from sparsefed import config as configs
    from sparsefed.cli.progress import RunView

    if not plans:
        say("Everything is there already.")
        return
    reached = plans[0].folder
    try:
        with ended_politely():
            experiments = configs.build_all([plan.config for plan in plans])
            with RunView(shown, {plan.title: plan.config.rounds for plan in plans}) as view:
                for plan, experiment in zip(plans, experiments, strict=True):
                    reached = plan.folder
                    _run_one(plan, experiment, view)
    except KeyboardInterrupt:
        _say_how_to_go_on(reached, several=len(plans) > 1)
        raise typer.Exit(INTERRUPTED) from None


def run_all(wanted: Mapping[Path, Config], shown: Console = console) -> None:
    """Run every config into its folder under one progress view, those that are finished there not again."""
    from sparsefed import config as configs
    from sparsefed import runs

    todo = runs.unfinished({folder: configs.dump(config) for folder, config in wanted.items()})
    train_all([Plan(wanted[folder], folder, create) for folder, create in todo.items()], shown)


def show_results(folders: list[Path]) -> None:
    from sparsefed import runs
    from sparsefed.cli.progress import comparison_table, results_table

    records = [runs.load_run(folder) for folder in folders]
    console.print(results_table(records))
    if compared := comparison_table(records):
        console.print(compared)
    for record in records:
        if record.manifest.get("privacy"):
            say(f"{escape(record.name)}: {escape(record.manifest['privacy'])}")


def write_report(folders: list[Path], out: Path, format: str) -> None:
    from sparsefed import reports, runs

    records: list[RunRecord] = [runs.load_run(folder) for folder in folders]
    for path in reports.save(records, out, format):
        wrote(path)


def _run_one(plan: Plan, experiment: Experiment, view: RunView) -> None:
    from sparsefed import config as configs
    from sparsefed import runs

    runs.run(
        plan.folder,
        configs.dump(plan.config),
        lambda: experiment,
        checkpoint_every=plan.config.checkpoint_every,
        on_start=lambda state: view.begin(plan.title, state),
        on_round=view.show,
        create=plan.create,
        overwrite=plan.overwrite,
    )


def _say_how_to_go_on(folder: Path, several: bool) -> None:
    from sparsefed import runs

    if not runs.is_run(folder):
        say("Interrupted before anything was computed.")
        return
    again = "Go on with the same command, or with this run alone" if several else "Go on with"
    say(f"Interrupted, saved. {again}: [bold]sparsefed resume {escape(shlex.quote(str(folder)))}[/bold]")
