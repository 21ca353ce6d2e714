"""`reproduce`: the paper's tables and figures."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from sparsefed.cli.app import app, console, saved_if_interrupted


class Scale(StrEnum):
    smoke = "smoke"
    laptop = "laptop"
    schedule = "schedule"
    paper = "paper"


@app.command()
def reproduce(
    name: Annotated[list[str] | None, typer.Argument(metavar="NAME", help="Tables and figures: see --list.")] = None,
    scale: Annotated[
        Scale,
        typer.Option(
            help="Seconds, at most an hour each, the paper's rounds with a narrower model, or all as printed."
        ),
    ] = Scale.laptop,
    out: Annotated[Path, typer.Option(help="Where results, pages and the cells' runs go.")] = Path("results"),
    jobs: Annotated[int | None, typer.Option(metavar="N", help="Cells at a time; by default one a core.")] = None,
    all_: Annotated[bool, typer.Option("--all", help="Every table and figure.")] = False,
    list_only: Annotated[bool, typer.Option("--list", help="What there is, and nothing else.")] = False,
) -> None:
    """Run tables and figures of the paper, set our numbers beside the paper's, and judge its claims.

    Each is a grid of cells, that is, of runs. Cells run in parallel and are kept in OUT/cells: interrupted or killed,
    the same command goes on, and what is finished is never run again; a changed config is another cell. Results are in
    OUT/NAME.SCALE.jsonl, with a page and pictures beside them. A cell that fails does not stop the others; then the
    exit code is 2, and the same command tries it again.
    """
    from sparsefed.experiments import reading, runner, view
    from sparsefed.experiments.plan import plan

    if list_only or not (name or all_):
        console.print(view.list_table())
        return
    chosen = reading.names() if all_ else list(dict.fromkeys(name or []))
    plans = [plan(reading.load(each), scale.value) for each in chosen]
    with saved_if_interrupted("Interrupted, saved. Go on with the same command."), view.ReproduceView(console) as shown:
        ledger = runner.reproduce(plans, out, runner.default_jobs() if jobs is None else jobs, shown.show)
    for told in view.told(plans, out):
        console.print(told, highlight=False, soft_wrap=isinstance(told, str))
    if failed := runner.failures(ledger, out):
        raise failed
