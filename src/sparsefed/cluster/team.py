"""The workers of a run: who is free, who is lost, and who takes over.

A worker that dies is restarted by Ray, on whichever machine has room, and greets again. What it was asked is asked of
another one meanwhile; every answer is the same from any of them.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import Any, NamedTuple

from sparsefed.cluster.connect import lost
from sparsefed.cluster.requests import WorkerOrder
from sparsefed.cluster.worker import NotGreetedError, Worker
from sparsefed.core.errors import ConfigError, RunError

START, ENOUGH = 120.0, 30.0  # seconds that the first worker may take to start, and all of them
KEPT = 20.0  # seconds that idle workers are kept
PATIENCE = 600.0  # seconds without any worker after which a run ends, saved
LOOK = 0.3  # seconds between two looks for workers that come back
IN_FLIGHT = 2  # requests a worker at a time: one that it computes, one that waits
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")

log = logging.getLogger(__name__)


class PendingAnswer(NamedTuple):
    """A request that a worker was given."""

    ref: Any
    worker: int


class WorkerLostError(Exception):
    """A worker died before it answered; whoever asked may ask another one."""


class Team:
    """The workers of a run, made of one order."""

    def __init__(self, ray: Any, order: WorkerOrder, theta: Any, wanted: int | None) -> None:
        self._ray = ray
        self._lost: tuple[type[Exception], ...] = (*lost(ray), NotGreetedError)
        count = workers_that_fit(ray, order.threads, wanted)
        self._given, self._threads = (ray.put(order), theta), order.threads
        self._actors = IDLE.taken(ray, order.threads, count)
        self._asked: list[set[Any]] = [set() for _ in self._actors]  # requests that were not answered yet
        self._greeted_at = [0.0] * count
        self._coming = {number: self._greeted(number) for number in range(count)}  # greetings of those not at work
        self._out: dict[int, str] = {}  # refused for good, and why
        self._await_start()

    def __len__(self) -> int:
        return len(self._actors)

    @property
    def ready(self) -> list[int]:
        """Return the workers that are at work."""
        return [i for i in range(len(self._actors)) if i not in self._coming and i not in self._out]

    def _greeted(self, number: int) -> Any:
        """Ask a worker to greet; while it is restarted, that fails at once."""
        self._greeted_at[number] = time.monotonic()
        return self._actors[number].greet.remote(*self._given)

    def _await_start(self) -> None:
        """Wait for all workers to greet; after ENOUGH seconds, for one."""
        began = time.monotonic()
        while self._coming and time.monotonic() < began + (ENOUGH if self.ready else START):
            refs = list(self._coming.values())
            self._ray.wait(refs, num_returns=len(refs), timeout=LOOK)
            self._welcome(strict=True)
        if not self.ready:
            raise ConfigError(
                f"no worker of the Ray cluster has started within {START:.0f} s; is it busy? `ray status` shows what "
                "is free"
            )

    def _welcome(self, strict: bool = False) -> None:
        """Put to work whoever has greeted since the last look; a worker that is refused stays out."""
        if not self._coming:
            return
        now = time.monotonic()
        numbers = {
            ref: number for number, ref in self._coming.items() if strict or now > self._greeted_at[number] + LOOK
        }
        came, _ = self._ray.wait(list(numbers), num_returns=len(numbers), timeout=0) if numbers else ([], [])
        for ref in came:
            number = numbers[ref]
            try:
                self._ray.get(ref)
                del self._coming[number]
            except self._lost as error:
                if isinstance(error, self._ray.exceptions.ActorDiedError):  # Ray does not restart it
                    self._actors[number] = new_worker(self._ray, self._threads)
                self._coming[number] = self._greeted(number)
            except ConfigError as error:
                sentence = said(error)
                if strict:
                    raise ConfigError(sentence) from None
                log.warning("%s; going on without it", sentence)
                del self._coming[number]
                self._out[number] = sentence

    def free(self, at_most: int = IN_FLIGHT) -> int | None:
        """Return a worker with fewest requests, fewer than `at_most`; None if there is none."""
        self._welcome()
        each = [(len(self._asked[i]), i) for i in self.ready if len(self._asked[i]) < at_most]
        return min(each)[1] if each else None

    def someone(self, liked: int | None = None) -> int:
        """Return a worker, the one that is liked if it is at work; wait for one if there is none."""
        until = time.monotonic() + PATIENCE
        while True:
            self._welcome()
            if liked is not None and liked in self.ready:
                return liked
            if (number := self.free(1 << 30)) is not None:
                return number
            if len(self._out) == len(self._actors):
                sentence = list(self._out.values())[-1]
                raise RunError(f"{sentence}. No other worker is left; the run is saved: go on with `sparsefed resume`")
            if time.monotonic() > until:
                raise RunError(
                    f"no worker of the Ray cluster has answered for {PATIENCE:.0f} s; the run is saved: go on with "
                    "the same command, or `sparsefed resume`, when the cluster is there again"
                )
            time.sleep(LOOK)

    def ask(self, worker: int, method: str, *given: Any) -> PendingAnswer:
        """Give a request to a worker."""
        ref = self.begun(worker, method, *given)
        self._asked[worker].add(ref)
        return PendingAnswer(ref, worker)

    def begun(self, worker: int, method: str, *given: Any) -> Any:
        """Return a reference to an answer that only another request will read."""
        return getattr(self._actors[worker], method).remote(*given)

    def answered(self, tasks: list[PendingAnswer], timeout: float) -> list[PendingAnswer]:
        """Return those of the tasks that have ended; wait for one at most so many seconds."""
        done, _ = self._ray.wait([task.ref for task in tasks], num_returns=1, timeout=timeout)
        return [task for task in tasks if task.ref in done]

    def answer(self, task: PendingAnswer) -> Any:
        """Return the answer to a request.

        Raises:
            WorkerLostError: The worker is gone; ask another one.
        """
        try:
            return self._ray.get(task.ref)
        except self._lost as error:
            self._mourn(task.worker)
            raise WorkerLostError from error
        except ConfigError as error:
            raise ConfigError(said(error)) from None
        finally:
            self._asked[task.worker].discard(task.ref)

    def _mourn(self, worker: int) -> None:
        if worker not in self._coming and worker not in self._out:
            log.info("worker %d is lost; others take over", worker)
            self._coming[worker] = self._greeted(worker)
        self._asked[worker].clear()

    def look(self) -> None:
        """Find out who is lost: a request that needs answers of several workers does not say which."""
        refs = {self._actors[i].greet.remote(*self._given): i for i in self.ready}
        done, late = self._ray.wait(list(refs), num_returns=len(refs), timeout=START) if refs else ([], [])
        for ref in done:
            try:
                self._ray.get(ref)
            except self._lost:
                self._mourn(refs[ref])
        for ref in late:
            self._mourn(refs[ref])

    def close(self) -> None:
        """Release the workers; the next run of this process may take them."""
        IDLE.kept(self._ray, self._threads, self._actors)
        self._actors = []


class Idle:
    """Workers whose run has ended, for the next one of this process: their libraries are loaded. Not kept for long."""

    def __init__(self) -> None:
        self._actors: dict[tuple[str, int], list[Any]] = {}  # by connection and threads
        self._lock, self._timer = threading.Lock(), threading.Timer(0, lambda: None)

    def taken(self, ray: Any, threads: int, count: int) -> list[Any]:
        """Return so many workers, those that are idle and new ones; end the idle ones that are left."""
        key = (_connection(ray), threads)
        with self._lock:
            idle = self._actors.pop(key, [])
            actors, self._actors[key] = idle[:count], idle[count:]
        self.end(ray)
        return [*actors, *(new_worker(ray, threads) for _ in range(count - len(actors)))]

    def kept(self, ray: Any, threads: int, actors: list[Any]) -> None:
        """Keep workers for KEPT seconds."""
        with self._lock:
            self._actors.setdefault((_connection(ray), threads), []).extend(actors)
        self._timer.cancel()
        self._timer = threading.Timer(KEPT, self.end, [ray])
        self._timer.daemon = True
        self._timer.start()

    def end(self, ray: Any) -> None:
        """End all that are idle."""
        with self._lock:
            known, self._actors = self._actors, {}
        here = _connection(ray) if ray.is_initialized() else None
        for (connection, _), actors in known.items():
            for actor in actors if connection == here else ():  # those of an earlier connection ended with it
                ray.kill(actor)


def _connection(ray: Any) -> str:
    return str(ray.get_runtime_context().get_job_id())


IDLE = Idle()


def new_worker(ray: Any, threads: int) -> Any:
    """Start a worker, on whichever machine has room."""
    kind = ray.remote(Worker).options(
        num_cpus=threads,
        max_restarts=-1,
        max_task_retries=0,  # asked of another worker instead, which is sooner
        runtime_env={"env_vars": dict.fromkeys(THREADS, str(threads))},
    )
    return kind.remote()


def said(error: Exception) -> str:
    """Return the sentence of an error that a worker raised; Ray wraps it in a traceback."""
    return str(getattr(error, "cause", None) or error)


def workers_that_fit(ray: Any, threads: int, wanted: int | None) -> int:
    """Return how many workers of so many threads to start; refuse what no machine of the cluster has room for.

    Room is what machines have, not what is free: what others use now may be free later.
    """
    rooms = [int(node["Resources"].get("CPU", 0)) // threads for node in ray.nodes() if node["Alive"]]
    if sum(rooms) == 0:
        raise ConfigError(
            f"no machine of the Ray cluster has {threads} processors for a worker of {threads} threads; a run computes "
            "with as many threads as it began with, and the bits depend on it: set OMP_NUM_THREADS=1 and start it anew"
        )
    if wanted is not None and wanted > sum(rooms):
        raise ConfigError(
            f"--on ray:{wanted} asks for {wanted} workers of {threads} threads, but the cluster has room for "
            f"{sum(rooms)}; set OMP_NUM_THREADS to fewer threads, or ask for fewer workers"
        )
    return wanted or sum(rooms)
