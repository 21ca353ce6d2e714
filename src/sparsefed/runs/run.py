"""The single entry point for running a config, or a simulation, into a folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any, Protocol, cast

from sparsefed.core.round import RoundReport, ServerState
from sparsefed.core.types import RunRecord
from sparsefed.runs import folder as folders
from sparsefed.runs.disk import require_writable

Rounds = Callable[[ServerState], Iterator[RoundReport]]  # the reports of the rounds that follow a state


class Runnable(Protocol):
    """An object that can be run into a folder, such as the result of `config.build`."""

    @property
    def facts(self) -> Mapping[str, Any]: ...
    def begin(self) -> ServerState: ...
    def reports(self, state: ServerState) -> Iterator[RoundReport]: ...
    def privacy(self, dropped: int) -> Any: ...


def run(
    folder: Path,
    table: Mapping[str, Any],
    build: Callable[[], Runnable],
    *,
    checkpoint_every: int,
    on_round: Callable[[RoundReport], None] = lambda report: None,  # noqa: ARG005
    on_start: Callable[[ServerState], None] = lambda state: None,  # noqa: ARG005
    create: bool | None = None,
    overwrite: bool = False,
) -> RunRecord:
    """Do what is left of a run: nothing, the rounds since its last checkpoint, or all of it.

    Args:
        folder: The run folder; created if missing, after the first round.
        table: The config of the run, as `config.dump` writes it. A folder with a run of another config is refused.
        build: Builds the simulation; called only if something is left to do.
        checkpoint_every: Rounds between checkpoints.
        on_round: Called with the report of every round, after it has been written.
        on_start: Called with the state that the first round starts from.
        create: True to create the folder (an existing run is refused), False to continue its run, even if the
            manifest is lost; None to decide by its content.
        overwrite: With `create`: start over, whatever the folder holds.

    Returns:
        The run, loaded from its folder.

    Raises:
        RunError: The folder cannot be used, or holds another run.
    """
    todo = folders.unfinished({folder: table}) if create is None else {folder: create}
    if folder in todo:
        if todo[folder]:
            folders.refuse_overwriting(folder, table, overwrite)
            require_writable(folder)
        built = build()

        def reports(state: ServerState) -> Iterator[RoundReport]:
            on_start(state)
            return built.reports(state)

        def privacy() -> dict[str, str]:
            dropped = (int(row.get("dropped") or 0) for row in folders.load_run(folder).rows)
            guarantee = built.privacy(max(dropped, default=0))
            return {"privacy": guarantee.sentence} if guarantee else {}

        begin, rounds = built.begin(), cast("Rounds", reports)
        if todo[folder]:  # a run that fails in its first round leaves nothing behind
            rounds = _begun(reports(begin))
            folders.create(folder, table, overwrite)
        folders.note(folder, task=dict(built.facts))
        folders.execute(folder, begin, rounds, checkpoint_every, on_round, privacy)
    return folders.load_run(folder)


def _begun(reports: Iterator[RoundReport]) -> Rounds:
    """Run the first round, and return a function that yields its report and those of the others."""
    first = next(reports)
    return lambda _: chain([first], reports)
