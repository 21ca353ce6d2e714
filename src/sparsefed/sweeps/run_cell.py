"""One cell: its config becomes a run folder, and its outcome an event."""

from __future__ import annotations

import errno
import logging
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sparsefed import config as configs
from sparsefed import data, runs
from sparsefed.core.errors import RunError, SparseFedError
from sparsefed.core.round import RoundReport
from sparsefed.core.types import Arrays, RunRecord

PATIENCE = 20.0  # seconds that a cell's last owner may take to die
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)

Load = Callable[[data.DataSet], Arrays]
OnRound = Callable[[RoundReport], None]

logger = logging.getLogger(__name__)


def run(folder: Path, table: Mapping[str, Any], load: Load, on_round: OnRound) -> None:
    """Run what remains of a cell: nothing, the rounds after its checkpoint, or all of it."""
    config = configs.parse(table)
    every = config.checkpoint_every
    runs.run(folder, table, lambda: configs.build(config, load), checkpoint_every=every, on_round=on_round)


def attempt(key: str, folder: Path, table: Mapping[str, Any], load: Load, on_round: OnRound) -> dict[str, Any]:
    """Run a cell and return the event that describes its end: a failing cell must not stop the others."""
    began = time.monotonic()
    try:
        _await(folder)
        run(folder, table, load, on_round)
    except SparseFedError as error:
        return {"event": "failed", "key": key, "error": str(error), "disk": _disk(error), "trace": ""}
    except Exception as error:
        sentence, trace = f"{type(error).__name__}: {error}", traceback.format_exc()
        return {"event": "failed", "key": key, "error": sentence, "disk": _disk(error), "trace": trace}
    return {"event": "done", "key": key, "seconds": round(time.monotonic() - began, 3)}


def finished(folder: Path) -> RunRecord | None:
    """Return the finished run in a folder; None also if it is damaged, so that it is run again."""
    if not runs.is_run(folder):
        return None
    try:
        record = runs.load_run(folder)
    except RunError as error:
        logger.warning("%s", error)
        return None
    return record if record.manifest.get("status") == "finished" else None


def _disk(error: BaseException) -> str | None:
    """Return the reason if the disk is to blame, which is not the cell's fault and affects all others."""
    cause = error.__cause__ if isinstance(error, RunError) else error
    blamed = isinstance(cause, OSError) and (isinstance(error, RunError) or cause.errno in FULL)
    return (cause.strerror or str(cause)) if blamed and isinstance(cause, OSError) else None


def _await(folder: Path) -> None:
    """Wait for a cell's last owner, which may be about to die, to release its lock."""
    until = time.monotonic() + PATIENCE
    while folder.is_dir():
        try:
            with runs.locked(folder):
                return
        except SparseFedError as error:
            if time.monotonic() > until or error.__cause__ is not None:
                raise
            time.sleep(0.1)
