"""The pool of worker processes, as seen by their parent.

Each computes with one thread, or as many as OMP_NUM_THREADS says, whatever the number of workers: torch's sums depend
on the number of threads, and how many cells run at a time must not change a bit. Messages are lines of JSON. A worker
that ends before its cell does has failed that cell, and another takes its place.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import IO, Protocol

from sparsefed import trust
from sparsefed.sweeps.cells import Event, SweepCell, attempt, cached_load

GOODBYE = 60.0  # seconds in which a worker may finish its round and save
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")  # read when torch loads


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class _Worker:
    """A worker process, the cell that it runs, and a thread that puts its events, and None at its end, into a queue."""

    def __init__(self, events: queue.SimpleQueue[tuple[_Worker, Event | None]]) -> None:
        self.cell: SweepCell | None = None
        self._events = events
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "sparsefed.sweeps.worker", str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=dict.fromkeys(THREADS, "1") | os.environ,
        )
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._events.put((self, Event(**json.loads(line))))
        self._events.put((self, None))

    def give(self, cell: SweepCell, folder: Path) -> None:
        assert self.process.stdin is not None
        self.cell = cell
        job = {"key": cell.key, "folder": str(folder), "config": cell.table, "code": trust.code_folders()}
        with suppress(BrokenPipeError):  # it has died, and its thread will report that
            self.process.stdin.write((json.dumps(job) + "\n").encode())
            self.process.stdin.flush()

    def obituary(self, key: str) -> Event:
        """Return how the process ended, in a sentence, and what it last wrote to its standard error."""
        code = self.process.returncode
        self._errors.seek(0)
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        cure = "; is there enough memory? fewer --jobs need less" if code == -signal.SIGKILL else ""
        trace = self._errors.read().decode(errors="replace")
        return Event("failed", key, error=f"the process that ran it {how}{cure}", trace=trace)

    def close(self) -> None:
        for stream in (self.process.stdin, self.process.stdout, self._errors):
            with suppress(OSError):
                if stream is not None:
                    stream.close()


class Pool:
    """A pool of up to `jobs` workers, started when there is work for them."""

    def __init__(self, jobs: int) -> None:
        self.jobs = jobs
        self._events: queue.SimpleQueue[tuple[_Worker, Event | None]] = queue.SimpleQueue()
        self._workers: list[_Worker] = []

    @property
    def running(self) -> list[SweepCell]:
        return [worker.cell for worker in self._workers if worker.cell is not None]

    def start(self, cell: SweepCell, folder: Path) -> None:
        """Give a cell to an idle worker."""
        idle = next((worker for worker in self._workers if worker.cell is None), None)
        if idle is None:
            idle = _Worker(self._events)
            self._workers.append(idle)
        idle.give(cell, folder)

    def events(self, patience: float) -> Iterator[Event]:
        """Yield what has happened since the last call; wait for the first event at most that many seconds."""
        with suppress(queue.Empty):
            worker, event = self._events.get(timeout=patience)
            while True:
                if event is None:
                    event = self._buried(worker)
                elif event.kind != "round":
                    worker.cell = None
                if event is not None:
                    yield event
                worker, event = self._events.get_nowait()

    def _buried(self, worker: _Worker) -> Event | None:
        """Remove a worker that has ended; return the failure of its cell, if it had one."""
        self._workers.remove(worker)
        worker.process.wait()
        event = None if worker.cell is None else worker.obituary(worker.cell.key)
        worker.close()
        return event

    def close(self) -> None:
        """Ask every worker to checkpoint and exit; kill those that have not after GOODBYE seconds."""
        for worker in self._workers:
            if worker.cell is None:
                worker.process.kill()  # nothing to save, and torch is slow to exit
            else:
                worker.process.terminate()
        for worker in self._workers:
            try:
                worker.process.wait(GOODBYE)
            except (subprocess.TimeoutExpired, KeyboardInterrupt):
                worker.process.kill()
                worker.process.wait()
            worker.close()
        self._workers.clear()


class LocalPool:
    """A substitute for `Pool` that runs one cell at a time in this process, for configs that hold live objects."""

    jobs = 1

    def __init__(self) -> None:
        self._accepted: dict[Path, SweepCell] = {}  # one at most, run when its events are read
        self._load = cached_load()

    @property
    def running(self) -> list[SweepCell]:
        return list(self._accepted.values())

    def start(self, cell: SweepCell, folder: Path) -> None:
        self._accepted = {folder: cell}

    def events(self, _: float) -> Iterator[Event]:
        """Run the accepted cell, if any, and yield how it ended."""
        for folder, cell in list(self._accepted.items()):
            end = attempt(cell.key, folder, cell.table, self._load, lambda _: None)
            self.close()
            yield end

    def close(self) -> None:
        self._accepted = {}


class Workers(Protocol):
    """Whoever runs cells: worker processes, this process, or the machines of a cluster."""

    jobs: int

    @property
    def running(self) -> list[SweepCell]: ...
    def start(self, cell: SweepCell, folder: Path) -> None: ...
    def events(self, patience: float, /) -> Iterator[Event]: ...
    def close(self) -> None: ...


def pool(jobs: int, in_this_process: bool = False, on: str | None = None) -> closing[Workers]:
    """Return workers that are stopped when the `with` block is left, for whatever reason.

    Args:
        jobs: how many cells run at a time, at most.
        in_this_process: whether cells hold objects of this process.
        on: "ray" for the machines of a Ray cluster.
    """
    if on is not None and not in_this_process:
        from sparsefed.sweeps.cluster_pool import ClusterPool

        return closing(ClusterPool(on, jobs))
    return closing(LocalPool() if in_this_process else Pool(jobs))
