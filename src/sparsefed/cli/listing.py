"""The commands that list what there is: `list`, and the data sets (`data list`, `show`, `fetch`, `check`)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rich.markup import escape

from sparsefed.cli.app import AsJson, argument, console, data_app, option, say, wrote
from sparsefed.core.errors import DataError

if TYPE_CHECKING:
    from sparsefed.data import Status


def list_(
    what: Annotated[str, argument("what", "A kind (defenses, attacks, models, ...) or a name (krum, cnn, ...).")] = "",
    as_json: AsJson = False,
) -> None:
    """List every name a config can use, a line each; with a name, its parameters, whose it is and what it needs.

    `module:function` describes one of your own, in the current folder or installed.
    """
    from sparsefed import trust
    from sparsefed.cli.catalogue import catalogue, catalogue_lines, catalogue_tables, narrowed

    if ":" in what:
        trust.import_from(Path.cwd())
    entries = catalogue()
    wanted = narrowed(entries, what)
    if as_json:
        print(json.dumps(wanted, indent=2))
    elif what in ("", *entries):
        for line in catalogue_lines(wanted):
            cut = console.is_terminal  # a line a name; programs and files get all of it
            console.print(line, highlight=False, no_wrap=cut, overflow="ellipsis" if cut else "ignore", crop=cut)
        say("\n[dim]`sparsefed list NAME` shows the parameters of one, and what it needs.[/dim]")
    else:
        for table in catalogue_tables(wanted):
            console.print(table)


def init(file: Annotated[Path, argument("FILE", "Where to write it; my.toml by default.")] = Path("my.toml")) -> None:
    """Write a config to start from: a small task under attack that runs as it is, and every other key as a comment."""
    from sparsefed.config.reference import commented
    from sparsefed.core.errors import ConfigError
    from sparsefed.runs import write_all

    if file.exists():
        raise ConfigError(f"{file} is there already; give another name, or move it away")
    write_all({file: commented(str(file))})
    wrote(file)
    say(f"Next: [bold]sparsefed audit {escape(str(file))}[/bold]")


DataSet = Annotated[str, argument("NAME", "The data set.")]


@data_app.command("list")
def data_list(as_json: AsJson = False) -> None:
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
    name: DataSet,
    partition: Annotated[str, option("How it is dealt to devices.")] = "one_class",
    devices: Annotated[int | None, option("How many devices; by default as in a config.")] = None,
    per_device: Annotated[int | None, option("How many examples each owns.")] = None,
    param: Annotated[
        list[str] | None, option("A parameter of the partition, e.g. --param alpha=0.1.", "KEY=VALUE")
    ] = None,
    seed: Annotated[int, option("The seed of the deal.")] = 0,
    out: Annotated[Path | None, option("A picture: FILE.html, .png, .svg or .pdf.")] = None,
) -> None:
    """Show who would own what: the numbers of a partition, and a picture of devices against classes and of sizes."""
    from sparsefed.reports import partitions
    from sparsefed.reports.to_terminal import rich_table

    table = {"name": name, "partition": partition, "devices": devices, "per_device": per_device}
    dealt = partitions.deal({"data": table, "seed": seed}, [f"data.{each}" for each in param or []])
    console.print(rich_table(partitions.facts_table(dealt, dealt.title)))
    if out is not None:
        wrote(partitions.save(dealt, out))


@data_app.command()
def fetch(name: DataSet) -> None:
    """Fetch a data set into the user's cache, verified; do nothing if it is there already."""
    from sparsefed import data

    _say_statuses([data.fetch(name, lambda line: say(escape(line)))])


@data_app.command()
def check(name: Annotated[str | None, argument("NAME", "The data set; by default all here.")] = None) -> None:
    """Compare every byte of the data sets on this machine with their checksums."""
    from sparsefed import data

    names = [name] if name else [status.name for status in data.listing() if status.state != "missing"]
    _say_statuses([data.check(each) for each in names])


def _how_to_get(status: Status) -> str:
    """Return a sentence with the command that fetches a data set, or that explains how to get it."""
    fetch, check = f"sparsefed data fetch {status.name}", f"sparsefed data check {status.name}"
    return f"`{fetch}` gets it" if fetch in status.problem else f"`{check}` says how to get it"


def _say_statuses(statuses: list[Status]) -> None:
    for status in statuses:
        where = f" ({status.location})" if status.location else ""
        say(f"[bold]{status.name}[/bold]: {status.state}{escape(where)}")
    if problems := [status.problem for status in statuses if status.problem]:
        raise DataError(" ".join(problems))
