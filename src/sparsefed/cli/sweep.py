"""The command that runs a grid of one's own: `sweep`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from rich.markup import escape

from sparsefed.cli.app import argument, option, progress_shown, say, show_and_save, wrote


def sweep(
    file: Annotated[Path, argument("FILE", "A sweep's file in TOML: a config, what is varied, seeds, claims.")],
    out: Annotated[Path | None, option("Where results, page and runs go; by default runs/NAME-sweep.")] = None,
    jobs: Annotated[int | None, option("Runs at a time; by default one a core.", "N")] = None,
    csv: Annotated[bool, option("Also NAME.csv, a line per run.", name="--csv")] = False,
    latex: Annotated[bool, option("Also NAME.tex, the table of means for a paper.", name="--latex")] = False,
    figures: Annotated[
        str | None, option("Also a figure per metric, without a title, in these formats.", "pdf,svg,png")
    ] = None,
    size: Annotated[str | None, option("Of these: inches, and points of text.", "3.3x2.2,8")] = None,
    dry_run: Annotated[bool, option("Say what would be run, and run nothing.", name="--dry-run")] = False,
) -> None:
    """Run every combination of FILE's settings, with its seeds, and judge its claims: docs/sweep.md.

    A sweep's file names a config and what is varied; it may ask for the strongest attack in each cell, for twins
    without attackers, and for claims to be judged. Runs are kept in OUT/cells: interrupted or killed, the same command
    goes on, and what is finished is never run again. A run that fails does not stop the others; then the exit code
    is 2.
    """
    from sparsefed.commands import sweep as sweeping
    from sparsefed.commands.reproduce.document import rules
    from sparsefed.reports.pictures import write

    exhibit = sweeping.load_sweep(file)
    wanted = [kind.strip() for kind in figures.split(",")] if figures else []
    given = None if size is None else sweeping.FigureSize.parse(size)
    if dry_run:
        say(escape(sweeping.described(exhibit)))
        return
    folder = out or Path("runs") / f"{exhibit.name}-sweep"
    with progress_shown() as show:
        result = sweeping.sweep_file(file, folder=folder, jobs=jobs, on_progress=show)
    show_and_save(result, folder)
    for name, data in sweeping.exports(result, csv=csv, latex=latex, figures=wanted, size=given).items():
        wrote(write(folder / name, data))
    for rule in rules(result):
        say(f"[dim]{escape(rule)}[/dim]")
    if result.problem is not None:
        raise result.problem
