"""A search on a cluster: several trials of one study at a time, each on a machine of its own.

The study stays here: threads draw parameters, and tell results; machines only run trials. Nothing but the number of
trials at a time distinguishes it from several processes that share a database.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from sparsefed.cluster import connect
from sparsefed.cluster.rounds import remote_rounds
from sparsefed.cluster.team import workers_that_fit
from sparsefed.commands.tune import study as studies
from sparsefed.commands.tune.trials import progress
from sparsefed.core.progress import Progress

if TYPE_CHECKING:
    from sparsefed.commands.tune.optimise import TuneSearch

REFRESH = 0.25  # seconds between two looks at the threads


class StopSearchError(KeyboardInterrupt):
    """Raised in a thread whose search is to stop; its trial does not count."""


class _Count:
    """How many trials are wanted, how many threads are at one, and what went wrong."""

    def __init__(self, search: TuneSearch, wanted: int) -> None:
        self._search, self.wanted, self.lock = search, wanted, threading.Lock()
        self.active, self.stopped = 0, False
        self.errors: list[BaseException] = []

    @property
    def settled(self) -> int:
        return len(studies.in_state(self._search.study, "COMPLETE", "PRUNED"))

    def claims(self) -> bool:
        """Return whether one more trial is wanted, and count it."""
        with self.lock:
            more = not (self.stopped or self.errors) and self.settled + self.active < self.wanted
            self.active += more
            return more

    def release(self) -> None:
        with self.lock:
            self.active -= 1


def search_together(
    search: TuneSearch, wanted: int, opened: Callable[[], AbstractContextManager[Any]], *, on: str
) -> None:
    """Run trials of a study at the same time, on the machines of a cluster, until there are as many as wanted.

    Args:
        search: The search; its own study is used for counting only.
        wanted: Trials in all.
        opened: Opens the study once more: each thread has a connection of its own.
        on: "ray", or "ray:N" for N trials at a time.

    Raises:
        SparseFedError: A trial ended with it.
    """
    count = _Count(search, wanted)
    if count.settled >= wanted:
        return
    threads = int(os.environ.get("OMP_NUM_THREADS", "1"))
    fit = workers_that_fit(connect.connect(), threads, connect.workers_wanted(on))
    if search.is_missing():
        search.enqueue()
    with ExitStack() as stack:
        crew = [_crew(search, slot, stack.enter_context(opened()), count, threads) for slot in range(min(fit, wanted))]
        try:
            for thread in crew:
                thread.start()
                while thread.is_alive() and studies.in_state(search.study, "WAITING"):
                    time.sleep(REFRESH)  # SQLite would let two threads take the trial that is queued
            _wait(search, crew, count)
        finally:
            count.stopped = True
            for thread in crew:
                if thread.ident:  # it was started
                    thread.join()
    if count.errors:
        raise count.errors[0]


def _crew(search: TuneSearch, slot: int, study: Any, count: _Count, threads: int) -> threading.Thread:
    def show(_: Progress) -> None:
        if count.stopped:
            raise StopSearchError

    own = replace(search, study=study, show=show, slot=slot, rounds=partial(remote_rounds, threads=threads))
    return threading.Thread(target=_work, args=[own, count], daemon=True)


def _work(search: TuneSearch, count: _Count) -> None:
    while count.claims():
        try:
            search.one_more(progress(count.settled, count.wanted, None))
        except StopSearchError:
            pass
        except BaseException as error:
            count.errors.append(error)
        finally:
            count.release()


def _wait(search: TuneSearch, crew: list[threading.Thread], count: _Count) -> None:
    """Show how far the search is until all threads have ended; Ctrl-C is raised here."""
    while any(thread.is_alive() for thread in crew):
        result = search.result()
        search.show(progress(count.settled, count.wanted, result.strongest if result else None))
        time.sleep(REFRESH)
