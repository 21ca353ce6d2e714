"""A worker process that runs cells one after the other, started by `pool.py` as `python -m sparsefed.sweeps.worker`.

Each line of JSON on its standard input is a cell to run; lines of JSON on its standard output are its events. It loads
torch once, and each data set once. SIGTERM saves the cell first.

It never outlives its parent, whose process id is its argument. On Linux the kernel kills it at the parent's death, even
in the middle of a long kernel. That is of no use if the parent died before the worker could ask for it, and the end of
the input does not come if another process holds the pipe: so it also looks who its parent is, first and every second.
"""

from __future__ import annotations

import ctypes
import json
import os
import queue
import signal
import sys
import threading
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sparsefed.core.malloc import keep_freed_memory

PDEATHSIG = 1  # of prctl(2)
PAUSE = 0.2  # seconds between two reports of rounds
LOOK = 1.0  # seconds between two looks at the parent
ABANDONED = 3  # the exit code of a worker whose parent is gone


def main() -> None:
    """Run cells until the input ends."""
    _die_with(int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C is handled by the parent
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    events = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # what is printed by accident goes to standard error
    jobs: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=[jobs], daemon=True).start()
    keep_freed_memory()
    try:
        _work(jobs, events)
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGTERM)


def _work(jobs: queue.SimpleQueue[bytes], events: Any) -> None:
    """Run the cells of the queue for ever; torch is slow to load, so only once a parent's death would be noticed."""
    import torch

    from sparsefed import trust
    from sparsefed.sweeps.cells import Event, attempt, cached_load

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    load, last = cached_load(), 0.0

    def report(event: Event) -> None:
        events.write((json.dumps(asdict(event)) + "\n").encode())

    def on_round(ended: Any) -> None:
        nonlocal last
        if time.monotonic() - last >= PAUSE:
            last = time.monotonic()
            report(Event("round", job["key"], ended.state.round))

    while True:
        job = json.loads(jobs.get())
        for folder in job["code"]:
            trust.import_from(Path(folder))
        report(attempt(job["key"], Path(job["folder"]), job["config"], load, on_round))


def _die_with(parent: int) -> None:
    """Bind this process to its parent, and exit at once if that is already gone."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:
        os._exit(ABANDONED)
    threading.Thread(target=_watch, args=[parent], daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(LOOK)
    os._exit(ABANDONED)


def _listen(jobs: queue.SimpleQueue[bytes]) -> None:
    for line in sys.stdin.buffer:
        jobs.put(line)
    os._exit(ABANDONED)  # the parent is gone


if __name__ == "__main__":
    main()
