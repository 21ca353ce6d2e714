"""The pool of worker processes, as seen by their parent; each gets its share of the cores.

Messages are lines of JSON. A worker that ends before its cell does has failed that cell, and another takes its place.
"""

from __future__ import annotations

import functools
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from sparsefed.sweeps.cells import SweepCell

GOODBYE = 60.0  # seconds in which a worker may finish its round and save
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")  # read when torch loads


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True)
class Event:
    """An event of a cell: a round, its end, or why it failed."""

    kind: str  # 'round', 'done' or 'failed'
    key: str
    round: int = 0
    seconds: float = 0.0
    error: str = ""
    trace: str = ""
    disk: str | None = None  # the reason, where the disk is to blame


class _Worker:
    """A worker process, the cell that it runs, and a thread that puts its messages into the queue."""

    def __init__(self, threads: int, messages: queue.SimpleQueue[tuple[_Worker, dict[str, Any] | None]]) -> None:
        self.cell: SweepCell | None = None
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        environment = {**os.environ, **dict.fromkeys(THREADS, str(threads))}
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "sparsefed.sweeps.worker", str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=environment,
        )
        threading.Thread(target=self._carry, args=[messages], daemon=True).start()

    def _carry(self, messages: queue.SimpleQueue[tuple[_Worker, dict[str, Any] | None]]) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            messages.put((self, json.loads(line)))
        messages.put((self, None))

    def give(self, cell: SweepCell, folder: Path) -> None:
        assert self.process.stdin is not None
        self.cell = cell
        job = {"key": cell.key, "folder": str(folder), "config": cell.table}
        with suppress(BrokenPipeError):  # it has died, and its thread will report that
            self.process.stdin.write((json.dumps(job) + "\n").encode())
            self.process.stdin.flush()

    def obituary(self) -> tuple[str, str]:
        """Return how the process ended, in a sentence, and what it last wrote to its standard error."""
        code = self.process.wait()
        self._errors.seek(0)
        words = self._errors.read().decode(errors="replace")
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        cure = "; is there enough memory? fewer --jobs need less" if code == -signal.SIGKILL else ""
        return f"the process that ran it {how}{cure}", words

    def close(self) -> None:
        for stream in (self.process.stdin, self.process.stdout, self._errors):
            with suppress(OSError):
                if stream is not None:
                    stream.close()


class Pool:
    """A pool of up to `jobs` workers, started when there is work for them."""

    def __init__(self, jobs: int) -> None:
        self.jobs, self._threads = jobs, max(1, cores() // jobs)
        self._messages: queue.SimpleQueue[tuple[_Worker, dict[str, Any] | None]] = queue.SimpleQueue()
        self._workers: list[_Worker] = []

    @property
    def free(self) -> int:
        """Return how many more cells can be started."""
        return self.jobs - len(self.running)

    @property
    def running(self) -> list[SweepCell]:
        return [worker.cell for worker in self._workers if worker.cell is not None]

    def start(self, cell: SweepCell, folder: Path) -> None:
        """Give a cell to an idle worker."""
        idle = next((worker for worker in self._workers if worker.cell is None), None)
        if idle is None:
            idle = _Worker(self._threads, self._messages)
            self._workers.append(idle)
        idle.give(cell, folder)

    def events(self, patience: float) -> Iterator[Event]:
        """Yield what has happened since the last call; wait for the first event at most that many seconds."""
        with suppress(queue.Empty):
            event = self._read(*self._messages.get(timeout=patience))
            while True:
                if event is not None:
                    yield event
                event = self._read(*self._messages.get_nowait())

    def _read(self, worker: _Worker, message: Mapping[str, Any] | None) -> Event | None:
        cell = worker.cell
        if message is None:
            self._workers.remove(worker)
            sentence, words = worker.obituary()
            worker.close()
            return None if cell is None else Event("failed", cell.key, error=sentence, trace=words)
        if message["event"] == "ready":
            return None
        if message["event"] in ("done", "failed"):
            worker.cell = None
        return Event(message["event"], **{key: item for key, item in message.items() if key != "event"})

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

    def __init__(self) -> None:
        from sparsefed import data

        self.jobs = 1
        self._job: tuple[SweepCell, Path] | None = None
        self._load = functools.lru_cache(maxsize=4)(data.load)

    @property
    def free(self) -> int:
        return self.jobs - len(self.running)

    @property
    def running(self) -> list[SweepCell]:
        return [] if self._job is None else [self._job[0]]

    def start(self, cell: SweepCell, folder: Path) -> None:
        """Accept a cell; it is run when its events are read."""
        self._job = cell, folder

    def events(self, _: float) -> Iterator[Event]:
        """Run the accepted cell, if any, and yield how it ended."""
        from sparsefed.sweeps import run_cell

        if self._job is None:
            return
        cell, folder = self._job
        end = run_cell.attempt(cell.key, folder, cell.table, self._load, lambda _: None)
        self._job = None
        yield Event(end.pop("event"), **end)

    def close(self) -> None:
        """Forget the accepted cell."""
        self._job = None


Workers = Pool | LocalPool


@contextmanager
def pool(jobs: int, in_this_process: bool = False) -> Iterator[Workers]:
    """Yield workers that are stopped when the block is left, for whatever reason."""
    workers = LocalPool() if in_this_process else Pool(jobs)
    try:
        yield workers
    finally:
        workers.close()
