"""The command `reproduce`: the paper's tables and figures."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from sparsefed.cli.app import app, console, saved_if_interrupted, say, show_and_save


class ScaleOption(StrEnum):
    smoke = "smoke"
    laptop = "laptop"
    schedule = "schedule"
    paper = "paper"


@app.command()
def reproduce(
    name: Annotated[list[str] | None, typer.Argument(metavar="NAME", help="Tables and figures: see --list.")] = None,
    scale: Annotated[
        ScaleOption,
        typer.Option(
            help="Seconds, at most an hour each, the paper's rounds with a narrower model, or all as printed."
        ),
    ] = ScaleOption.laptop,
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
    from sparsefed.commands.reproduce import load as reading
    from sparsefed.commands.reproduce.document import listing, rules
    from sparsefed.commands.reproduce.run import reproduce as reproduced
    from sparsefed.reports.progress_view import ProgressView
    from sparsefed.reports.to_terminal import rich_table

    if list_only or not (name or all_):
        console.print(rich_table(listing()))
        return
    chosen = reading.names() if all_ else name or []
    with saved_if_interrupted("Interrupted, saved. Go on with the same command."), ProgressView(console) as view:
        results = reproduced(chosen, scale=scale.value, folder=out, jobs=jobs, on_progress=view.show)
    for result in results:
        show_and_save(result, out)
    for rule in dict.fromkeys(rule for result in results for rule in rules(result)):
        say(f"[dim]{escape(rule)}[/dim]")
    for result in results:
        if result.problem is not None:
            raise result.problem
