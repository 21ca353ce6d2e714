"""The commands on runs: `run`, `resume`, `report`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sparsefed.cli.app import ConfigFile, Overrides, RunFolder, app
from sparsefed.cli.training import Plan, show_results, train_all, write_report

if TYPE_CHECKING:
    from sparsefed.config import Config


class Format(StrEnum):
    html = "html"
    png = "png"
    svg = "svg"
    pdf = "pdf"


@app.command()
def run(
    config: ConfigFile,
    set_: Overrides = None,
    out: Annotated[Path | None, typer.Option(help="The run folder; by default runs/NAME.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Start anew where there is a run already.")] = False,
    twins: Annotated[
        bool, typer.Option("--twins", help="Also without attackers, and without a defense as well; then compare.")
    ] = False,
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
    if twins:
        _run_with_twins(chosen, folder, overwrite)
        return
    runs.refuse_overwriting(folder, configs.dump(chosen), overwrite)
    train_all([Plan(chosen, folder, create=True, overwrite=overwrite)])
    show_results([folder])


def _run_with_twins(config: Config, folder: Path, overwrite: bool) -> None:
    from sparsefed import config as configs
    from sparsefed import runs

    wanted = {folder: config}
    wanted |= {folder.with_name(f"{folder.name}-{twin}"): other for twin, other in configs.twins(config).items()}
    tables = {path: configs.dump(each) for path, each in wanted.items()}
    todo = dict.fromkeys(wanted, True) if overwrite else runs.unfinished(tables)
    train_all([Plan(wanted[path], path, create, overwrite) for path, create in todo.items()])
    show_results(list(wanted))
    write_report(list(wanted), folder / "report.html", "html")


@app.command()
def resume(run: RunFolder) -> None:
    """Go on with a run that was interrupted or killed: the result is the same, bit for bit."""
    from sparsefed import config as configs
    from sparsefed import runs

    config = configs.parse(runs.load_config(run), source=str(run / runs.CONFIG))
    train_all([Plan(config, run, create=False)])
    show_results([run])


@app.command()
def report(
    run: Annotated[
        list[Path],
        typer.Argument(metavar="RUN", help="Run folders, or folders of run folders.", show_default=False),
    ],
    out: Annotated[Path | None, typer.Option(help="Where to write; by default beside the runs.")] = None,
    format: Annotated[Format, typer.Option(help="One HTML page, or a picture of each chart.")] = Format.html,
) -> None:
    """Compare runs: curves, norms and a table in one HTML file that works offline, or as pictures."""
    from sparsefed import runs

    folders = runs.find(run)
    common = run[0] if len(run) == 1 else folders[0].parent
    write_report(folders, out or common / f"report.{format.value}", format.value)
