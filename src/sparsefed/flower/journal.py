"""The run folder of a deployment: that of a simulation, with the roster and an account of every refusal beside it.

config.toml, manifest.json, metrics.jsonl, checkpoint.safetensors    as `sparsefed run` writes them
roster.json       which node is which device
refusals.jsonl    one line for each refused reply: round, node, device, reason, detail
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from sparsefed import runs
from sparsefed.core.errors import RunError
from sparsefed.core.round import RoundReport, ServerState
from sparsefed.core.types import State
from sparsefed.flower.replies import RefusedReply
from sparsefed.flower.roster import Roster
from sparsefed.runs.disk import disk, open_plain, read_bytes, write_atomically
from sparsefed.server import Server

REFUSALS, COHORTS = "refusals.jsonl", "cohorts.jsonl"


class Journal:
    """The run folder of a deployment, or nothing at all if it has none."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder

    def open(self, table: Mapping[str, Any], rounds: int, facts: Mapping[str, Any]) -> Roster:
        """Create the folder, or check that the run in it is of this config, and return its roster.

        Raises:
            RunError: The folder cannot be used, or holds a run of another config.
        """
        if self.folder is None:
            return Roster()
        if not runs.is_run(self.folder):
            runs.create(self.folder, table)
        elif (held := runs.load_config(self.folder)) != table:
            raise RunError(f"{self.folder} holds a run of another config ({_difference(held, table)}); choose another")
        runs.note(self.folder, rounds=rounds, task=dict(facts))
        return Roster.load(self.folder)

    def run(
        self,
        begin: ServerState,
        reports: Callable[[ServerState], Iterator[RoundReport]],
        checkpoint_every: int,
        watch: Callable[[RoundReport], None],
    ) -> None:
        """Do the rounds that are left, from the last checkpoint on; without a folder, all."""
        if self.folder is None:
            for report in reports(begin):
                watch(report)
            return
        runs.execute(self.folder, begin, reports, checkpoint_every, watch)

    def enrol(self, roster: Roster) -> None:
        """Save the roster."""
        if self.folder is not None:
            roster.save(self.folder)

    def forget_after(self, round: int) -> None:
        """Remove what was written on rounds that are run again."""
        for name in (REFUSALS, COHORTS):
            if self.folder is not None and (self.folder / name).exists():
                kept = (runs.line(row) for row in _lines(self.folder / name) if row["round"] <= round)
                with disk(self.folder):
                    write_atomically(self.folder / name, b"".join(kept))

    def refuse(self, refused: Iterable[RefusedReply]) -> None:
        """Add refused replies to the account."""
        self._append(REFUSALS, ({**one._asdict(), "node": str(one.node)} for one in refused))

    def used(self, round: int, asked: Iterable[int], used: Iterable[int], clipped: Iterable[int]) -> None:
        """Add the cohort of a round that is done: the devices that were asked, used and clipped."""
        self._append(COHORTS, [{"round": round, "asked": list(asked), "used": list(used), "clipped": list(clipped)}])

    def _append(self, name: str, rows: Iterable[Mapping[str, Any]]) -> None:
        content = b"".join(map(runs.line, rows))
        if self.folder is None or not content:
            return
        with disk(self.folder), open_plain(self.folder / name, os.O_WRONLY | os.O_APPEND | os.O_CREAT) as file:
            file.write(content)


def refusals(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the refused replies of a deployment's run folder, up to an incomplete line."""
    return _lines(folder / REFUSALS)


def cohorts(folder: Path) -> dict[int, dict[str, list[int]]]:
    """Return the devices asked and used in each round of a deployment's run folder."""
    return {int(row["round"]): {key: row[key] for key in ("asked", "used")} for row in _lines(folder / COHORTS)}


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    if not path.exists():
        return
    for line in read_bytes(path, limit=None).splitlines(keepends=True):
        if (record := runs.record_of(line)) is None:
            return
        yield record[0]


def state_of(server: Server) -> ServerState:
    """Return a server's state as a run folder keeps it."""
    return ServerState(server.round, server.theta, _memory(server.state_dict()))


def restore(server: Server, state: ServerState) -> None:
    """Put a server into a state of a run folder."""
    memory = {f"defense.{name}": tensor for name, tensor in state.defense.items()}
    server.load_state_dict({"theta": state.theta, **memory, "round": torch.tensor(state.round)})


def _memory(tensors: State) -> State:
    return {name.removeprefix("defense."): t for name, t in tensors.items() if name.startswith("defense.")}


def _difference(held: Mapping[str, Any], table: Mapping[str, Any]) -> str:
    differing = sorted(key for key in held.keys() | table.keys() if held.get(key) != table.get(key))
    return f"it differs in {', '.join(differing)}"
