"""The command line: parse -> config -> build -> loop. Holds no logic; errors a user can mend are one sentence."""

from __future__ import annotations

import json
import logging
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.logging import RichHandler

from sparsefed.errors import DataError, SparseFedError
from sparsefed.memory import keep_freed_memory

if TYPE_CHECKING:
    from sparsefed.config import Config
    from sparsefed.types import RunRecord

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help="""Can a handful of compromised devices poison a federated model, and what stops them?

Start with [bold]sparsefed demo[/bold]: the same model trained three times under attack, undefended, with clipping, with
SparseFed. Then write a config (TOML) and [bold]sparsefed run[/bold] it; [bold]sparsefed list[/bold] shows every name a
config can use.""",
)
data_app = typer.Typer(no_args_is_help=True, help="Data sets: what there is, where it is, how to get it.")
app.add_typer(data_app, name="data")

console = Console()
errors = Console(stderr=True)

ConfigFile = Annotated[Path, typer.Argument(help="A config file in TOML.", show_default=False)]
RunFolder = Annotated[Path, typer.Argument(help="A run folder.", show_default=False)]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a value of the config, e.g. --set defense.k=500."),
]


class Format(StrEnum):
    html = "html"
    png = "png"
    svg = "svg"
    pdf = "pdf"


def main() -> None:
    """Entry point: a `SparseFedError` is a sentence on stderr and exit code 2, never a traceback."""
    logging.basicConfig(
        level=logging.WARNING, format="%(message)s", handlers=[RichHandler(console=errors, show_path=False)]
    )
    keep_freed_memory()
    try:
        app()
    except SparseFedError as error:
        errors.print(f"[bold red]error:[/bold red] {_plain(str(error))}", soft_wrap=True, highlight=False)
        sys.exit(2)


def _plain(text: str) -> str:
    return text.replace("[", r"\[")


# --- runs ------------------------------------------------------------------------------------------------------------


@app.command()
def run(
    config: ConfigFile,
    set_: Overrides = None,
    out: Annotated[Path | None, typer.Option(help="The run folder; by default runs/NAME.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Start anew where there is a run already.")] = False,
) -> None:
    """Train once as CONFIG says, into a run folder that can be resumed and reported."""
    from sparsefed import config as configs

    chosen = configs.read(config, set_ or [])
    folder = out or Path("runs") / chosen.name
    _run_all([(chosen, folder)], overwrite=overwrite)


@app.command()
def resume(run: RunFolder) -> None:
    """Go on with a run that was interrupted or killed: the result is the same, bit for bit."""
    from sparsefed import config as configs
    from sparsefed import runs

    _run_all([(configs.parse(runs.load_config(run)), run)], resuming=True)


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Where the three runs and the report go.")] = Path("runs/demo"),
    set_: Overrides = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Start anew instead of continuing.")] = False,
) -> None:
    """Train the same model three times with 2 % of 10 000 devices colluding: undefended, clipping, SparseFed."""
    from sparsefed import config as configs

    chosen = configs.demo(set_ or [])
    pairs = [(config, out / config.name) for config in chosen]
    if _run_all(pairs, overwrite=fresh, continuing=not fresh):
        _write_report([folder for _, folder in pairs], out / "report.html", "html")


def _run_all(
    pairs: list[tuple[Config, Path]], overwrite: bool = False, resuming: bool = False, continuing: bool = False
) -> bool:
    """Run configs one after the other under one progress view; False where Ctrl-C ended it."""
    from sparsefed import config as configs
    from sparsefed import runs
    from sparsefed.progress import RunView, results_table
    from sparsefed.simulate import simulate, start

    with _terminate_as_interrupt(), RunView(console, [(c.name, c.rounds) for c, _ in pairs]) as view:
        for config, folder in pairs:
            going_on = resuming or (continuing and runs.can_continue(folder, configs.dump(config)))
            experiment = configs.build(config)
            if not going_on:
                runs.create(folder, configs.dump(config), overwrite=overwrite or continuing)

            def reports(state: Any, experiment: Any = experiment, config: Config = config) -> Iterator[Any]:
                protocol = experiment.protocol
                begin = state or start(protocol, experiment.theta)
                view.begin(config.name, begin.round)
                return simulate(protocol, begin, config.rounds, experiment.evaluate, config.evaluate_every)

            if runs.execute(folder, reports, config.checkpoint_every, view.show) == "interrupted":
                view.stop()
                console.print(f"Interrupted, nothing lost. Go on with: [bold]sparsefed resume {folder}[/bold]")
                return False
    records = [runs.load_run(folder) for _, folder in pairs]
    console.print(results_table(records))
    return True


@contextmanager
def _terminate_as_interrupt() -> Iterator[None]:
    """A polite kill is treated like Ctrl-C: the state is saved first."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@app.command()
def report(
    run: Annotated[list[Path], typer.Argument(help="Run folders, or folders of run folders.", show_default=False)],
    out: Annotated[Path | None, typer.Option(help="Where to write; by default beside the runs.")] = None,
    format: Annotated[Format, typer.Option(help="One HTML page, or a picture of each chart.")] = Format.html,
) -> None:
    """Compare runs: curves, norms and a table in one HTML file that works offline, or as pictures."""
    from sparsefed import runs

    folders = runs.find(run)
    common = run[0] if len(run) == 1 else folders[0].parent
    _write_report(folders, out or common / f"report.{format.value}", format.value)


def _write_report(folders: list[Path], out: Path, format: str) -> None:
    from sparsefed import report as reports
    from sparsefed import runs

    records: list[RunRecord] = [runs.load_run(folder) for folder in folders]
    for path in reports.save(records, out, format):
        console.print(f"wrote [bold]{path}[/bold]", highlight=False, soft_wrap=True)


# --- what there is ---------------------------------------------------------------------------------------------------


@app.command("list")
def list_(
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Every name a config can use, with its parameters."""
    from sparsefed.catalogue import catalogue, catalogue_tables

    entries = catalogue()
    if as_json:
        print(json.dumps(entries, indent=2))
        return
    for table in catalogue_tables(entries):
        console.print(table)


@data_app.command("list")
def data_list(as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False) -> None:
    """The data sets, and whether they are on this machine."""
    from dataclasses import asdict

    from sparsefed import data
    from sparsefed.progress import data_table

    found = data.listing()
    if as_json:
        print(json.dumps([asdict(status) for status in found], indent=2))
    else:
        console.print(data_table(found))


@data_app.command()
def fetch(name: Annotated[str, typer.Argument(help="The data set.", show_default=False)]) -> None:
    """Bring a data set into the user's cache, verified; does nothing where it is there already."""
    from sparsefed import data

    _say_status(lambda: data.fetch(name, lambda line: console.print(line, highlight=False, soft_wrap=True)))


@data_app.command()
def check(name: Annotated[str | None, typer.Argument(help="The data set; by default all here.")] = None) -> None:
    """Compare every byte of the data sets on this machine with their checksums."""
    from sparsefed import data

    names = [name] if name else [status.name for status in data.listing() if status.state != "missing"]
    for each in names:
        _say_status(lambda each=each: data.check(each))  # type: ignore[misc]


def _say_status(act: Callable[[], Any]) -> None:
    status = act()
    if status.state in ("missing", "damaged"):
        raise DataError(status.problem)
    where = f" in {status.location}" if status.location else ""
    console.print(f"[bold]{status.name}[/bold]: {status.state}{where}", highlight=False, soft_wrap=True)


if __name__ == "__main__":
    main()
