"""Work on other machines that reports while it goes on: a run, whose rounds are told one by one.

The work is a function `work(emit, is_stopped, *given)` of an importable module; whatever it emits arrives here in
order. It runs in a thread of its own, so that its process can hand over what it emits, and hear that it is to stop.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

from sparsefed.cluster.connect import lost
from sparsefed.cluster.team import THREADS, WorkerLostError, said
from sparsefed.core.errors import SparseFedError

Emit = Callable[[Any], None]
Work = Callable[..., None]  # (emit, is_stopped, *given)
SAVING = 60.0  # seconds in which work that is to stop may save


class StoppedError(KeyboardInterrupt):
    """Work that is to stop; a run treats it as Ctrl-C, and saves."""


def produced(work: Work, threads: int, *given: Any) -> Iterator[Any]:
    """Run the work in a thread and yield what it emits; raise what it raises."""
    import torch

    emitted: queue.SimpleQueue[tuple[bool, Any]] = queue.SimpleQueue()
    stop = threading.Event()

    def run() -> None:
        torch.set_num_threads(threads)  # holds for the thread that sets it
        try:
            work(lambda item: emitted.put((True, item)), stop.is_set, *given)
            emitted.put((False, None))
        except BaseException as error:
            emitted.put((False, error))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        while (item := emitted.get())[0]:
            yield item[1]
    finally:
        stop.set()
        thread.join(SAVING)
    if item[1] is not None:
        raise item[1]


class Stream:
    """Work on another machine, and what it has emitted."""

    def __init__(self, ray: Any, threads: int, work: Work, *given: Any) -> None:
        self._ray = ray
        task = ray.remote(produced).options(
            num_cpus=threads,
            num_returns="streaming",
            max_retries=0,  # whoever started it decides: a run goes on from its folder
            runtime_env={"env_vars": dict.fromkeys(THREADS, str(threads))},
        )
        self.ref = task.remote(work, threads, *given)

    def __iter__(self) -> Iterator[Any]:
        """Yield what is emitted, until the work ends.

        Raises:
            WorkerLostError: The machine or the process is gone.
            SparseFedError: The work ended with it.
        """
        while True:
            ended, item = self.take()
            if ended:
                return
            yield item

    def take(self) -> tuple[bool, Any]:
        """Return whether the work has ended, and if not, what it emitted next; wait for it."""
        try:
            return False, self._ray.get(next(self.ref))
        except StopIteration:
            return True, None
        except SparseFedError as error:
            raise type(getattr(error, "cause", None) or error)(said(error)) from None
        except lost(self._ray) as error:
            raise WorkerLostError from error

    def stop(self) -> None:
        """Ask the work to save and to end."""
        self._ray.cancel(self.ref, force=False)


def ready(ray: Any, streams: list[Stream], patience: float) -> list[Stream]:
    """Return the streams that have something to take; wait for the first at most so many seconds."""
    refs = [stream.ref for stream in streams]
    first, _ = ray.wait(refs, num_returns=1, timeout=patience, fetch_local=False)
    if not first:
        return []
    every, _ = ray.wait(refs, num_returns=len(refs), timeout=0, fetch_local=False)
    return [stream for stream in streams if stream.ref in every]
