"""Shared parts of all commands: the application, its consoles, common arguments, and the handling of interruptions."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from sparsefed import trust
from sparsefed.cli.printable import PrintableConsole

if TYPE_CHECKING:
    from sparsefed.core.progress import OnProgress
    from sparsefed.reports.result import Report

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    help="""Can a handful of compromised devices poison a federated model, and what stops them?

Start with `sparsefed demo`: the same model under attack, undefended and with three defenses. Then write a config
(`sparsefed init` makes one to start from) and `sparsefed run` it, or `sparsefed audit` it; `sparsefed list` shows every
name a config can use, `sparsefed list bases` the paper's settings to start from (`base = "fmnist/cross-device"`).

Exit codes: 0 done, 1 an audit that is not as required (`--require`), 2 something to mend first (one sentence says
what), 130 interrupted after saving.""",
)
data_app = typer.Typer(no_args_is_help=True, help="Data sets: what there is, where it is, how to get it.")
app.add_typer(data_app, name="data")

INTERRUPTED = 130  # the shells' exit code for "ended by Ctrl-C"

console = PrintableConsole()
errors = PrintableConsole(stderr=True)


def argument(metavar: str, help: str) -> Any:
    """Return the description of an argument, for `Annotated`."""
    return typer.Argument(metavar=metavar, help=help, show_default=False)


def option(help: str, metavar: str | None = None, name: str | None = None) -> Any:
    """Return the description of an option, for `Annotated`; its name may differ from the parameter's."""
    return typer.Option(*([name] if name else []), metavar=metavar, help=help)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"sparsefed {version('sparsefed')}")
        raise typer.Exit


@app.callback()
def every_command(
    _version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
    _debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error, too.")] = False,
) -> None:
    """Accept the options that belong to no command."""


ConfigFile = Annotated[Path, argument("CONFIG", "A config file in TOML.")]
Overrides = Annotated[
    list[str] | None, option("Change a value of the config, e.g. --set defense.k=500.", "KEY=VALUE", "--set")
]
Trust = Annotated[
    bool,
    typer.Option(
        "--trust", help="Import code (module:function) that a file written elsewhere names.", callback=trust.allow
    ),
]
OnCluster = Annotated[
    str | None, option("Compute on the machines of a Ray cluster: ray, or ray:N for N workers.", "ray[:N]", "--on")
]
AsJson = Annotated[bool, option("For programs.", name="--json")]


def say(line: str, shown: Console = console) -> None:
    """Print a line for the user; markup is allowed."""
    shown.print(line, highlight=False, soft_wrap=True)


def wrote(path: Path, shown: Console = console) -> None:
    """Print the path of a file that was written."""
    shown.print(f"wrote [bold]{escape(str(path))}[/bold]", highlight=False, soft_wrap=True)


def show_and_save(result: Report, folder: Path) -> None:
    """Show a result on the terminal, write its files, and print their paths."""
    from sparsefed.reports.to_terminal import show

    show(result.document(), console)
    for path in result.save(folder):
        wrote(path)


@contextmanager
def ended_politely() -> Iterator[None]:
    """Treat SIGTERM, and a terminal that goes away, like Ctrl-C: the state is saved first."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    polite = [sig for sig in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(sig) is not signal.SIG_IGN]  # nohup
    before = {sig: signal.signal(sig, interrupt) for sig in polite}
    try:
        yield
    finally:
        for sig, handler in before.items():
            signal.signal(sig, handler)


@contextmanager
def progress_shown(sentence: str = "Interrupted, saved. Go on with the same command.") -> Iterator[OnProgress]:
    """Show the progress of work that loses nothing when interrupted; then print a sentence on how to continue."""
    from sparsefed.reports.progress_view import ProgressView

    try:
        with ended_politely(), ProgressView(errors) as view:
            yield view.show
    except KeyboardInterrupt:
        say(sentence, errors)
        raise typer.Exit(INTERRUPTED) from None
