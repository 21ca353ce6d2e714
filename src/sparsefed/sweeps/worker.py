"""A worker process that runs cells one after the other, started by `pool.py` as `python -m sparsefed.sweeps.worker`.

Each line of JSON on its standard input is a cell to run; lines of JSON on its standard output report on it. It loads
torch once, and each data set once. SIGTERM saves the cell first.

It never outlives its parent, whose process id is its argument. On Linux the kernel kills it at the parent's death, even
in the middle of a long kernel. That is of no use if the parent died before the worker could ask for it, and the end of
the input does not come if another process holds the pipe: so it also looks who its parent is, first and every second.
"""

from __future__ import annotations

import ctypes
import functools
import json
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sparsefed.core.malloc import keep_freed_memory

PDEATHSIG = 1  # of prctl(2)
PAUSE = 0.2  # seconds between two reports of rounds
LOOK = 1.0  # seconds between two looks at the parent
ABANDONED = 3  # the exit code of a worker whose parent is gone

Tell = Callable[..., None]


def main() -> None:
    """Run cells until the input ends."""
    _die_with(int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C is handled by the parent
    signal.signal(signal.SIGTERM, _interrupt)
    tell = _tell()
    jobs: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=[jobs], daemon=True).start()
    keep_freed_memory()
    import torch  # slow, so only once a parent's death would be noticed

    from sparsefed import data
    from sparsefed.sweeps import run_cell

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    load = functools.lru_cache(maxsize=4)(data.load)
    tell(event="ready")
    try:
        while True:
            job = json.loads(jobs.get())
            tell(**run_cell.attempt(job["key"], Path(job["folder"]), job["config"], load, _on_round(job["key"], tell)))
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGTERM)


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


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def _tell() -> Tell:
    """Return a writer to the original standard output, which is then redirected to standard error for stray prints."""
    out = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)

    def tell(**event: Any) -> None:
        out.write((json.dumps(event) + "\n").encode())

    return tell


def _listen(jobs: queue.SimpleQueue[bytes]) -> None:
    for line in sys.stdin.buffer:
        jobs.put(line)
    os._exit(ABANDONED)  # the parent is gone


def _on_round(key: str, tell: Tell) -> Callable[[Any], None]:
    last = 0.0

    def on_round(report: Any) -> None:
        nonlocal last
        if time.monotonic() - last >= PAUSE:
            last = time.monotonic()
            tell(event="round", key=key, round=report.state.round)

    return on_round


if __name__ == "__main__":
    main()
