"""The commands on runs: `run`, `resume`, `report`; and the training, which other commands need too."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from sparsefed.cli.app import (
    INTERRUPTED,
    ConfigFile,
    Overrides,
    Trust,
    argument,
    console,
    ended_politely,
    errors,
    option,
    say,
    wrote,
)

if TYPE_CHECKING:
    from sparsefed.config import Config
    from sparsefed.core.progress import Progress

Format = StrEnum("Format", ["html", "png", "svg", "pdf"])


def run(
    config: ConfigFile,
    set_: Overrides = None,
    out: Annotated[Path | None, option("The run folder; by default runs/NAME.")] = None,
    overwrite: Annotated[bool, option("Start anew where there is a run already.", name="--overwrite")] = False,
    twins: Annotated[
        bool, option("Also without attackers, and without a defense as well; then compare.", name="--twins")
    ] = False,
    _trust: Trust = False,
) -> None:
    """Train once as CONFIG says, into a run folder that can be resumed and reported.

    With --twins also what the attack is measured against: the same run without attackers (NAME-unattacked), and without
    attackers and defense (NAME-plain), in folders beside it; those that are finished are not trained again.

    Ctrl-C saves the state and says how to go on (exit code 130).
    """
    from sparsefed import config as configs
    from sparsefed import runs

    chosen = configs.read(config, set_ or [])
    folder = out or Path("runs") / chosen.name
    others = configs.twins(chosen) if twins else {}
    wanted = {folder: chosen} | {folder.with_name(f"{folder.name}-{name}"): twin for name, twin in others.items()}
    if not twins:
        runs.refuse_overwriting(folder, configs.dump(chosen), overwrite)
    if overwrite or not twins:
        train(wanted, dict.fromkeys(wanted, True), overwrite)
    else:
        train_unfinished(wanted)
    _show_results(list(wanted))
    if twins:
        _write_report(list(wanted), folder / "report.html", Format.html)


def resume(run: Annotated[Path, argument("RUN", "A run folder.")], _trust: Trust = False) -> None:
    """Go on with a run that was interrupted or killed: the result is the same, bit for bit."""
    from sparsefed import config as configs
    from sparsefed import runs

    config = configs.of_run(runs.load_config(run), run)
    train({run: config}, {run: False})
    _show_results([run])


def report(
    run: Annotated[list[Path], argument("RUN", "Run folders, or folders of run folders.")],
    out: Annotated[Path | None, option("Where to write; by default beside the runs.")] = None,
    format: Annotated[Format, option("One HTML page, or a picture of each chart.")] = Format.html,
) -> None:
    """Compare runs: curves, norms and a table in one HTML file that works offline, or as pictures."""
    from sparsefed import runs

    folders = runs.find(run)
    common = run[0] if len(run) == 1 else folders[0].parent
    _write_report(folders, out or common / f"report.{format.value}", format)


def train_unfinished(wanted: Mapping[Path, Config]) -> None:
    """Run every config into its folder under one progress view, skipping finished ones."""
    from sparsefed import config as configs
    from sparsefed import runs

    todo = runs.unfinished({folder: configs.dump(config) for folder, config in wanted.items()})
    train({folder: wanted[folder] for folder in todo}, todo)


def train(wanted: Mapping[Path, Config], create: Mapping[Path, bool], overwrite: bool = False) -> None:
    """Run configs into folders to create or to continue, under one progress view; Ctrl-C saves and explains."""
    from sparsefed.commands.common import run_each
    from sparsefed.reports.progress_view import ProgressView

    if not wanted:
        say("Everything is there already.", errors)
        return
    started = [next(iter(wanted))]
    try:
        with ended_politely(), ProgressView(errors) as view:

            def on_start(folder: Path, progress: Progress) -> None:
                started.append(folder)
                view.show(progress)

            run_each(wanted, create, view.show, on_start, overwrite)
    except KeyboardInterrupt:
        _say_how_to_go_on(started[-1], several=len(wanted) > 1)
        raise typer.Exit(INTERRUPTED) from None


def _say_how_to_go_on(folder: Path, several: bool) -> None:
    from sparsefed import runs

    if not runs.is_run(folder):
        say("Interrupted before anything was computed.", errors)
        return
    again = "Go on with the same command, or with this run alone" if several else "Go on with"
    command = escape(f"sparsefed resume {shlex.quote(str(folder))}")
    say(f"Interrupted, saved. {again}: [bold]{command}[/bold]", errors)


def _show_results(folders: list[Path]) -> None:
    from sparsefed import runs
    from sparsefed.reports.run_report import results
    from sparsefed.reports.to_terminal import show

    show(results([runs.load_run(folder) for folder in folders]), console)


def _write_report(folders: list[Path], out: Path, format: Format) -> None:
    from sparsefed import reports, runs

    for path in reports.save([runs.load_run(folder) for folder in folders], out, format.value):
        wrote(path)
