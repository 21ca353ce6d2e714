"""The commands that list what there is: `list`, and the data sets (`data list`, `show`, `fetch`, `check`)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from sparsefed.cli.app import app, console, data_app, say, wrote
from sparsefed.core.errors import DataError

if TYPE_CHECKING:
    from sparsefed.data import Status


@app.command("list")
def list_(
    what: Annotated[
        str,
        typer.Argument(help="A kind (defenses, attacks, models, ...) or a name (krum, cnn, ...)."),
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """List every name a config can use, with its parameters: what it is, whose it is, what it needs."""
    from sparsefed.cli.catalogue import catalogue, catalogue_tables, narrowed

    entries = narrowed(catalogue(), what)
    if as_json:
        print(json.dumps(entries, indent=2))
        return
    for table in catalogue_tables(entries):
        console.print(table)


@data_app.command("list")
def data_list(as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False) -> None:
    """List the data sets, and whether they are on this machine."""
    from dataclasses import asdict

    from sparsefed import data
    from sparsefed.reports.document import table
    from sparsefed.reports.to_terminal import rich_table

    statuses = data.listing()
    if as_json:
        print(json.dumps([asdict(status) for status in statuses], indent=2))
        return
    rows = ((each.name, each.description, each.state, each.location or _how_to_get(each)) for each in statuses)
    console.print(rich_table(table("", ("data set", "what it is", "state", "where"), rows, "prose")))


@data_app.command()
def show(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The data set.", show_default=False)],
    partition: Annotated[str, typer.Option(help="How it is dealt to devices.")] = "one_class",
    devices: Annotated[int | None, typer.Option(help="How many devices; by default as in a config.")] = None,
    per_device: Annotated[int | None, typer.Option(help="How many examples each owns.")] = None,
    param: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="A parameter of the partition, e.g. --param alpha=0.1."),
    ] = None,
    seed: Annotated[int, typer.Option(help="The seed of the deal.")] = 0,
    out: Annotated[Path | None, typer.Option(help="A picture: FILE.html, .png, .svg or .pdf.")] = None,
) -> None:
    """Show who would own what: the numbers of a partition, and a picture of devices against classes and of sizes."""
    from sparsefed.reports import partitions
    from sparsefed.reports.to_terminal import rich_table

    asked = {"name": name, "partition": partition, "devices": devices, "per_device": per_device}
    dealt = partitions.deal({"data": asked, "seed": seed}, [f"data.{each}" for each in param or []])
    console.print(rich_table(partitions.facts_table(dealt, dealt.title)))
    if out is not None:
        wrote(partitions.save(dealt, out))


@data_app.command()
def fetch(name: Annotated[str, typer.Argument(metavar="NAME", help="The data set.", show_default=False)]) -> None:
    """Fetch a data set into the user's cache, verified; do nothing if it is there already."""
    from sparsefed import data

    _say_statuses([data.fetch(name, lambda line: say(escape(line)))])


@data_app.command()
def check(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="The data set; by default all here.")] = None,
) -> None:
    """Compare every byte of the data sets on this machine with their checksums."""
    from sparsefed import data

    names = [name] if name else [status.name for status in data.listing() if status.state != "missing"]
    _say_statuses([data.check(each) for each in names])


def _how_to_get(status: Status) -> str:
    """Return a sentence with the command that fetches a data set, or that explains how to get it."""
    fetch = f"sparsefed data fetch {status.name}"
    return (
        f"`{fetch}` gets it" if fetch in status.problem else f"`sparsefed data check {status.name}` says how to get it"
    )


def _say_statuses(statuses: list[Status]) -> None:
    for status in statuses:
        where = f" ({status.location})" if status.location else ""
        say(f"[bold]{status.name}[/bold]: {status.state}{escape(where)}")
    if problems := [status.problem for status in statuses if status.problem]:
        raise DataError(" ".join(problems))
