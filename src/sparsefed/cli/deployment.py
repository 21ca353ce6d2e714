"""The commands of a deployment: `watch` a run as it goes on, and `deploy` a config as an app of Flower."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from sparsefed.cli.app import (
    AsJson,
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
from sparsefed.core.errors import SparseFedError

if TYPE_CHECKING:
    from sparsefed.commands.watch import RunWatcher, WatchResult

ALERT = 3  # exit code: a round had more refused replies than --most-refused
EVERY = 1.0  # seconds between two looks at the folder
PATIENCE = 30  # looks at a folder that cannot be read


def watch(
    run: Annotated[Path, argument("RUN", "A run folder: of `sparsefed run`, or of a deployment.")],
    port: Annotated[int, option("The page's port on this machine; by default any free one.", "PORT")] = 0,
    page: Annotated[bool, option("Serve the page; --no-page for the terminal alone.")] = True,
    once: Annotated[bool, option("Show the run as it stands, and end.", name="--once")] = False,
    to_end: Annotated[bool, option("End when no process works on the run any more.", name="--to-end")] = False,
    most_refused: Annotated[
        int | None, option("Refused or missing replies that a round may have; more is an alert, exit code 3.", "N")
    ] = None,
    as_json: AsJson = False,
    out: Annotated[Path | None, option("With --once: also as a page.", "PAGE.html")] = None,
) -> None:
    """Watch a run as it goes on: accuracy, norms, and who is refused, late or clipped, on a page of this machine.

    The run may be a simulation or a deployment (Flower), running or not; its folder is only read. The page follows it
    until Ctrl-C. With --most-refused, a round with more refused or missing replies is one line on stderr, and the exit
    code is 3 at the end; with --once at once, for a monitor that asks every few minutes.
    """
    from sparsefed.commands import watch as watching

    if once or as_json:
        _show_once(watching.watch(run, most_refused=most_refused), as_json, out)
        return
    if not page:
        _follow(watching.RunWatcher(run, most_refused), to_end)
        return
    with watching.LivePage(run, port=port, most_refused=most_refused) as live:
        say(f"[bold]{live.address}[/bold] shows {escape(str(run))}; end with Ctrl-C.")
        _follow(live.watcher, to_end)


def _show_once(result: WatchResult, as_json: bool, out: Path | None) -> None:
    from sparsefed.reports.pictures import write
    from sparsefed.reports.to_terminal import show

    if as_json:
        print(result.to_json(), end="")
    else:
        show(result.document(), console)
    if out is not None:
        wrote(write(out, result.to_html().encode()), errors if as_json else console)
    if result.alerts:
        raise typer.Exit(ALERT)


def _follow(watcher: RunWatcher, to_end: bool) -> None:
    """Show the progress of a run, and each alert as one line, until Ctrl-C or, if wanted, until the run ends."""
    from sparsefed.reports.progress_view import ProgressView

    known: set[int] = set()
    try:
        with ended_politely(), ProgressView(errors) as view:
            while True:
                state = _readable_state(watcher)
                view.show(state.progress())
                for round in sorted(state.alerts.keys() - known):
                    say(f"[bold red]alert:[/bold red] {escape(state.alerts[round])}", errors)
                known |= state.alerts.keys()
                if to_end and state.status != "running":
                    break
                time.sleep(EVERY)
    except KeyboardInterrupt:
        pass
    if known:
        raise typer.Exit(ALERT)


def _readable_state(watcher: RunWatcher) -> WatchResult:
    """Return the run as it stands; a folder that cannot be read may be one that is being copied or resumed."""
    for _ in range(PATIENCE):
        with suppress(SparseFedError):
            return watcher.state()
        time.sleep(EVERY)
    return watcher.state()


def deploy(
    config: ConfigFile,
    out: Annotated[Path, option("The app's folder.")],
    nodes: Annotated[int | None, option("How many nodes there are; by default the config's devices.", "N")] = None,
    without_attack: Annotated[
        bool, option("Leave out the attackers that CONFIG simulates.", name="--without-attack")
    ] = False,
    run_folder: Annotated[
        Path | None, option("Where the server keeps the run; by default runs/NAME here.", "FOLDER")
    ] = None,
    least_nodes: Annotated[
        int | None, option("Connected nodes with which a round begins; by default all of them.", "N")
    ] = None,
    deadline: Annotated[
        float | None, option("Seconds that a round waits for replies; by default an hour.", "S")
    ] = None,
    quorum: Annotated[int | None, option("Fewest usable replies; by default more than half of a cohort.", "N")] = None,
    spare: Annotated[int | None, option("Nodes asked beyond the cohort; by default none.", "N")] = None,
    overwrite: Annotated[bool, option("Replace an app that is there.", name="--overwrite")] = False,
    set_: Overrides = None,
    _trust: Trust = False,
) -> None:
    """Write CONFIG, for instance the recommended.toml of an audit, as a Flower app that `flwr run` takes as it is.

    Each node plays a device of CONFIG's federation, number for number as the simulation does; the app's README says how
    a node trains on data of its own. Needs no Flower here, only where the app runs.
    """
    from sparsefed import config as configs
    from sparsefed.commands.deploy import deploy as deployed

    given = {"deadline": deadline, "quorum": quorum, "spare": spare}
    app = deployed(
        configs.read(config, set_ or []),
        out,
        nodes=nodes,
        least_nodes=least_nodes,
        without_attack=without_attack,
        run_folder=run_folder,
        overwrite=overwrite,
        **{name: value for name, value in given.items() if value is not None},
    )
    for path in app.files:
        wrote(path)
    for note in app.notes:
        say(f"Note: {escape(note)}.")
    say(f"Run it with [bold]flwr run {escape(str(app.folder))}[/bold]; see its README.md.")
