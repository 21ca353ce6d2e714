"""A driver with a cluster of its own, in a process of its own: a round for each line that is asked, and what it held.

The private memory of the driver and the shared memory of the object stores are looked at all through a round.
A fresh process that returns freed memory at once (see `ENVIRONMENT`), because what a process holds depends on all that
it did before.
"""

from __future__ import annotations

import json
import os
import re
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.workers import serve
from sparsefed import config
from sparsefed.cluster.connect import connect
from sparsefed.cluster.engine import on_cluster
from sparsefed.core.round import run_round, start

ENVIRONMENT = {
    "MALLOC_MMAP_THRESHOLD_": "1000000",  # vectors go back to the system when they are freed
    "OMP_NUM_THREADS": "1",
    "RAY_ADDRESS": "local",
}
STATUS = Path("/proc/self/status")


def private_bytes(status: str) -> int:
    """Return the memory that a process shares with nobody, from the system's account of it.

    >>> private_bytes("VmRSS:\\t 900 kB\\nRssAnon:\\t     20 kB\\nRssShmem:\\t 700 kB\\n")
    20480
    """
    match = re.search(r"^RssAnon:\s*(\d+) kB", status, re.MULTILINE)
    assert match is not None
    return int(match[1]) * 1024


def store_bytes() -> int:
    """Return the shared memory in use: pages that object stores have ever touched, which they do not give back."""
    shared = os.statvfs("/dev/shm")  # where Ray keeps its stores
    return (shared.f_blocks - shared.f_bfree) * shared.f_frsize


def spilled_bytes() -> int:
    """Return the size of what object stores have put on disk and not yet removed."""
    files = Path(os.environ["RAY_TMPDIR"]).glob("ray/session_*/ray_spilled_objects*/**/*")
    return sum(path.stat().st_size for path in files if path.is_file())


class Highest:
    """The largest value of something, looked at every few milliseconds while a block runs."""

    def __init__(self, look: Callable[[], int], pause: float) -> None:
        self._look, self._pause, self._done = look, pause, threading.Event()
        self.first = self.value = look()

    def __enter__(self) -> Highest:
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._done.wait(self._pause):
            self.value = max(self.value, self._look())


def main() -> None:
    """Arguments: a run's config as JSON, and the workers to use, such as ray:2."""
    built = config.build(config.parse(json.loads(sys.argv[1])))
    before, began = store_bytes(), time.perf_counter()
    away = on_cluster(built, sys.argv[2])
    connect()
    connected = time.perf_counter() - began
    state = start(away.setup, away.theta)
    first = run_round(away.setup, state).seconds

    def one_round() -> dict[str, Any]:
        with (
            Highest(lambda: private_bytes(STATUS.read_text()), 0.001) as own,
            Highest(store_bytes, 0.01) as store,
            Highest(spilled_bytes, 0.1) as spilled,
        ):
            took = run_round(away.setup, state).seconds
        grown = own.value - own.first
        return {"seconds": took, "grown": grown, "store": store.value - before, "spilled": spilled.value}

    serve({"connected": connected, "first round": first, "d": len(away.theta)}, {"round": one_round})


if __name__ == "__main__":
    main()
