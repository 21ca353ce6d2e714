"""The cells of a sweep on the machines of a Ray cluster, in the place of `pool.Pool`.

A cell is a task that continues from its run folder. Where machines share the folder of the sweep, a cell is run in it;
elsewhere in a folder of the machine, whose files come here with every checkpoint. A cell whose machine dies is given to
another one, with what is saved of it.
"""

from __future__ import annotations

import os
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparsefed import runs
from sparsefed.cluster import connect
from sparsefed.cluster.greeting import Greeting, load, run_greeting, run_refusal
from sparsefed.cluster.streams import StoppedError, Stream, ready
from sparsefed.cluster.team import IDLE, WorkerLostError, workers_that_fit
from sparsefed.core.errors import SparseFedError
from sparsefed.core.round import RoundReport
from sparsefed.sweeps.cells import Event, SweepCell, attempt

RETRIES = 20  # of a cell whose machine died
TOKEN = ".cluster"  # a file by which machines recognise a shared folder
SAVED = ("config.toml", "metrics.jsonl", "previous.safetensors", "checkpoint.safetensors", "manifest.json")

Files = dict[str, bytes]


@dataclass(frozen=True)
class CellJob:
    """A cell to be run by another machine."""

    key: str
    folder: str
    table: Mapping[str, Any]
    token: str  # of the sweep's folder
    saved: Files  # of the cell so far, for a machine that does not share the folder
    expected: Greeting  # the driver's


def run_cell(emit: Callable[[Any], None], is_stopped: Callable[[], bool], job: CellJob) -> None:
    """Run what is left of a cell on this machine; emit its events, and its files if nobody else sees them."""
    sentence = run_refusal(job.expected, job.table)
    if sentence is not None:
        emit(Event("failed", job.key, error=sentence))
        return
    folder = Path(job.folder)
    if _token(folder.parent.parent) == job.token:
        emit(_attempted(emit, is_stopped, job, folder, lambda: None))
        return
    with tempfile.TemporaryDirectory(prefix="sparsefed-cell-") as temporary:
        own = Path(temporary) / job.key
        _put(own, job.saved)
        emit(_attempted(emit, is_stopped, job, own, lambda: emit(_files(own))))


def _attempted(
    emit: Callable[[Any], None], is_stopped: Callable[[], bool], job: CellJob, folder: Path, send: Callable[[], None]
) -> Event:
    every = int(job.table["checkpoint_every"])

    def on_round(report: RoundReport) -> None:
        if report.state.round % every == 0:
            send()
        emit(Event("round", job.key, report.state.round))
        if is_stopped():
            raise StoppedError

    try:
        return attempt(job.key, folder, job.table, load, on_round)
    finally:
        send()


def _token(out: Path) -> str:
    with suppress(OSError):
        return (out / TOKEN).read_text(encoding="utf-8")
    return ""


def _files(folder: Path) -> Files:
    return {name: (folder / name).read_bytes() for name in SAVED if (folder / name).is_file()}


def _put(folder: Path, files: Files) -> None:
    """Write the files of a run so that it can be resumed from whichever were written: the manifest comes last."""
    if files:
        folder.mkdir(parents=True, exist_ok=True)
    for name in SAVED:
        if name in files:
            runs.write_atomically(folder / name, files[name])


@dataclass
class _Running:
    """A cell that some machine runs."""

    cell: SweepCell
    folder: Path
    stream: Stream
    tries: int = 0


class ClusterPool:
    """A pool of as many cells at a time as the cluster has room for."""

    def __init__(self, on: str, jobs: int | None = None) -> None:
        self._threads = int(os.environ.get("OMP_NUM_THREADS", "1"))  # as in `pool.Pool`
        wanted = connect.workers_wanted(on)
        self._ray = connect.connect()
        IDLE.end(self._ray)
        fit = workers_that_fit(self._ray, self._threads, wanted)
        self.jobs = fit if jobs is None else min(jobs, fit)
        self._token = uuid.uuid4().hex
        self._running: dict[str, _Running] = {}

    @property
    def running(self) -> list[SweepCell]:
        return [each.cell for each in self._running.values()]

    def start(self, cell: SweepCell, folder: Path) -> None:
        """Give a cell to whichever machine has room."""
        (folder.parent.parent / TOKEN).write_text(self._token, encoding="utf-8")
        self._running[cell.key] = _Running(cell, folder, self._begun(cell, folder))

    def _begun(self, cell: SweepCell, folder: Path) -> Stream:
        place, saved = str(folder.resolve()), _files(folder)
        job = CellJob(cell.key, place, cell.table, self._token, saved, run_greeting(cell.config, self._threads))
        return Stream(self._ray, self._threads, run_cell, job)

    def events(self, patience: float) -> Iterator[Event]:
        """Yield what has happened since the last call; wait for the first event at most that many seconds."""
        by_stream = {each.stream: each for each in self._running.values()}
        for stream in ready(self._ray, list(by_stream), patience):
            event = self._next(by_stream[stream])
            if event is not None:
                yield event

    def _next(self, each: _Running) -> Event | None:
        """Return a cell's next event; None if it was not one."""
        key = each.cell.key
        try:
            ended, item = each.stream.take()
        except WorkerLostError as error:
            return self._again(each, error)
        except SparseFedError as error:
            ended, item = False, Event("failed", key, error=str(error))
        if isinstance(item, dict):
            _put(each.folder, item)
            return None
        if ended or item.kind != "round":
            del self._running[key]
        return None if ended else item

    def _again(self, each: _Running, error: Exception) -> Event | None:
        """Give a cell whose machine died to another one."""
        each.tries += 1
        if each.tries > RETRIES:
            del self._running[each.cell.key]
            cause = str(error.__cause__ or error).partition("\n")[0]
            return Event("failed", each.cell.key, error=f"its machine or process died {each.tries} times ({cause})")
        each.stream = self._begun(each.cell, each.folder)
        return None

    def close(self) -> None:
        """Ask every machine to save its cell, and wait for what it saved."""
        for each in self._running.values():
            each.stream.stop()
        for each in self._running.values():
            with suppress(WorkerLostError, SparseFedError, self._ray.exceptions.RayError):
                for item in each.stream:
                    if isinstance(item, dict):
                        _put(each.folder, item)
        for out in {each.folder.parent.parent for each in self._running.values()}:
            (out / TOKEN).unlink(missing_ok=True)
        self._running.clear()
