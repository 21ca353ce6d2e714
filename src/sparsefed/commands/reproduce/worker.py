"""A process that does cells one after the other: `python -m sparsefed.commands.reproduce.worker`, started by `pool.py`.

A line of JSON on its standard input is a cell to do; lines of JSON on its standard output tell of it. It loads torch
once, and each data set once. It ends with whoever started it: when its input is closed, and, where the system can do
that, with the very death of its parent. A polite kill saves the cell first.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import json
import os
import queue
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sparsefed.core.errors import RunError, SparseFedError
from sparsefed.core.malloc import keep_freed_memory

PDEATHSIG = 1  # of prctl(2)
PAUSE = 0.2  # seconds between two words about rounds
PATIENCE = 20.0  # seconds that a cell's last owner may take to die
ABANDONED = 3  # the exit code of a worker whose parent is gone
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)

Tell = Callable[..., None]


def main() -> None:
    """Do cells until the input ends."""
    _die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C: the parent decides what becomes of it
    signal.signal(signal.SIGTERM, _interrupt)
    tell = _tell()
    jobs: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=[jobs], daemon=True).start()
    keep_freed_memory()
    import torch  # the long part of starting: whoever died meanwhile has been noticed

    from sparsefed import data

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    load = functools.lru_cache(maxsize=4)(data.load)
    tell(event="ready")
    try:
        while True:
            _do(json.loads(jobs.get()), load, tell)
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGTERM)


def _die_with_parent() -> None:
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def _tell() -> Tell:
    """Writes lines to what was the standard output; that is now the standard error, for those who print."""
    out = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)

    def tell(**event: Any) -> None:
        out.write((json.dumps(event) + "\n").encode())

    return tell


def _listen(jobs: queue.SimpleQueue[bytes]) -> None:
    for line in sys.stdin.buffer:
        jobs.put(line)
    os._exit(ABANDONED)  # nobody is there to be told anything


def _do(job: dict[str, Any], load: Any, tell: Tell) -> None:
    from sparsefed.commands.reproduce import cells

    key, folder, began = job["key"], Path(job["folder"]), time.monotonic()
    try:
        _await(folder)
        cells.run(folder, job["config"], load, _watch(key, tell))
    except SparseFedError as error:
        tell(event="failed", key=key, error=str(error), disk=_disk(error), trace="")
    except Exception as error:  # a cell that fails must not end the others
        sentence = f"{type(error).__name__}: {error}"
        tell(event="failed", key=key, error=sentence, disk=_disk(error), trace=traceback.format_exc())
    else:
        tell(event="done", key=key, seconds=round(time.monotonic() - began, 3))


def _disk(error: BaseException) -> str | None:
    """What the disk said, if it is to blame: that is no fault of the cell's, and will not spare the others."""
    cause = error.__cause__ if isinstance(error, RunError) else error
    blamed = isinstance(cause, OSError) and (isinstance(error, RunError) or cause.errno in FULL)
    return (cause.strerror or str(cause)) if blamed and isinstance(cause, OSError) else None


def _watch(key: str, tell: Tell) -> Callable[[Any], None]:
    last = 0.0

    def watch(report: Any) -> None:
        nonlocal last
        if time.monotonic() - last >= PAUSE:
            last = time.monotonic()
            tell(event="round", key=key, round=report.state.round)

    return watch


def _await(folder: Path) -> None:
    """Wait for a cell's last owner, which may be about to die, to let go of it."""
    from sparsefed import runs

    until = time.monotonic() + PATIENCE
    while folder.is_dir():
        try:
            with runs.locked(folder):
                return
        except SparseFedError as error:
            if time.monotonic() > until or error.__cause__ is not None:
                raise
            time.sleep(0.1)


if __name__ == "__main__":
    main()
