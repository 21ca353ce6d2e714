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
    OnCluster,
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

MOST_SEEDS = 1000
Format = StrEnum("Format", ["html", "png", "svg", "pdf"])


def run(
    config: ConfigFile,
    set_: Overrides = None,
    seeds: Annotated[int | None, option("So many runs, with CONFIG's seed and those after it.", "N")] = None,
    out: Annotated[Path | None, option("The run folder; by default runs/NAME, with what --set changes.")] = None,
    overwrite: Annotated[bool, option("Start anew where there is a run already.", name="--overwrite")] = False,
    twins: Annotated[
        bool, option("Also without attackers, and without a defense as well; then compare.", name="--twins")
    ] = False,
    on: OnCluster = None,
    _trust: Trust = False,
) -> None:
    """Train once as CONFIG says, into a run folder that can be resumed and reported.

    The folder is runs/NAME, with --set seed=1 runs/NAME-seed=1. Several values between commas (--set defense.k=10,100),
    or --seeds, are several runs, each in its folder, and a report on all of them; finished ones are not repeated.

    With --twins also what the attack is measured against: the same run without attackers (NAME-unattacked), and without
    attackers and defense (NAME-plain), in folders beside it; those that are finished are not trained again.

    With --on ray the devices' updates are computed on a Ray cluster, a part of train.block devices at a time: bit for
    bit the same run (docs/cluster.md).

    Ctrl-C saves the state and says how to go on (exit code 130).
    """
    from sparsefed import config as configs
    from sparsefed import runs

    chosen = _chosen(config, set_ or [], seeds, out)
    wanted = dict(chosen)
    if twins:
        for folder, own in chosen.items():
            wanted |= {folder.with_name(f"{folder.name}-{name}"): twin for name, twin in configs.twins(own).items()}
    if not (overwrite or out):
        wanted = {_free(folder, own): own for folder, own in wanted.items()}
    (first, own), *others = wanted.items()
    if not others:
        runs.refuse_overwriting(first, configs.dump(own), overwrite)
    if overwrite or not others:
        train(wanted, dict.fromkeys(wanted, True), overwrite, on)
    else:
        train_unfinished(wanted, on)
    _show_results(list(wanted))
    if others:
        page = first / "report.html" if len(chosen) == 1 else first.with_name(f"{own.name}-runs.html")
        _write_report(list(wanted), page, Format.html)


def _chosen(file: Path, overrides: list[str], seeds: int | None, out: Path | None) -> dict[Path, Config]:
    """Return the configs to run, one for each combination of values and each seed, by the folders of their runs."""
    from sparsefed import config as configs
    from sparsefed import runs
    from sparsefed.core.errors import ConfigError

    several = configs.several(overrides)
    if seeds is not None:
        if not 1 <= seeds <= MOST_SEEDS:
            raise ConfigError(f"--seeds is {seeds}; use 1 to {MOST_SEEDS}")
        begin = configs.read(file, several[0]).seed
        several = [[*each, f"seed={begin + i}"] for each in several for i in range(seeds)]
    chosen = {}
    for each in several:
        config = configs.read(file, each)
        name = runs.named_after(config.name, each)
        chosen[out if out and len(several) == 1 else (out or Path("runs")) / name] = config
    return chosen


def _free(folder: Path, config: Config) -> Path:
    """Return a folder for the run: another one, with a word, where this one holds a run of another config."""
    from sparsefed import config as configs
    from sparsefed import runs

    free = runs.free_folder(folder, configs.dump(config))
    if free != folder:
        held = f"{folder} holds a run of another config, so this one goes into"
        say(f"{escape(held)} [bold]{escape(str(free))}[/bold]", errors)
    return free


def resume(run: Annotated[Path, argument("RUN", "A run folder.")], on: OnCluster = None, _trust: Trust = False) -> None:
    """Go on with a run that was interrupted or killed, here or on a cluster: the result is the same, bit for bit."""
    from sparsefed import config as configs
    from sparsefed import runs

    config = configs.of_run(runs.load_config(run), run)
    train({run: config}, {run: False}, on=on)
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


def train_unfinished(wanted: Mapping[Path, Config], on: str | None = None) -> None:
    """Run every config into its folder under one progress view, skipping finished ones."""
    from sparsefed import config as configs
    from sparsefed import runs

    todo = runs.unfinished({folder: configs.dump(config) for folder, config in wanted.items()})
    train({folder: wanted[folder] for folder in todo}, todo, on=on)


def train(
    wanted: Mapping[Path, Config], create: Mapping[Path, bool], overwrite: bool = False, on: str | None = None
) -> None:
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

            run_each(wanted, create, view.show, on_start, overwrite, on)
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
