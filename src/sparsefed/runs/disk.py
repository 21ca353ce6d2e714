"""Disk access for run folders: one process per folder, atomic writes, and disk errors in one sentence."""

from __future__ import annotations

import errno
import fcntl
import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from sparsefed.core.errors import RunError

CONFIG, MANIFEST, METRICS, CHECKPOINT = "config.toml", "manifest.json", "metrics.jsonl", "checkpoint.safetensors"
_LOCK = ".lock"
_CURES = {
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), "make it writable"),
    **dict.fromkeys((errno.EEXIST, errno.ENOTDIR), "move away the file that is in its place"),
    errno.ENAMETOOLONG: "give it a shorter name",
}


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a run folder, or raise RunError if another process does; it ends with the process."""
    with disk(folder):
        lock = (folder / _LOCK).open("w")
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunError(f"another process is working on {folder}; wait for it, or end it first") from None
        yield


def is_locked(folder: Path) -> bool:
    """Return whether a process is working on the run."""
    path = folder / _LOCK
    if not path.exists():
        return False
    with path.open("rb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


@contextmanager
def appending(folder: Path) -> Iterator[BinaryIO]:
    """Open the metrics file of a run for appending."""
    with disk(folder):
        file = (folder / METRICS).open("ab")
    try:
        yield file
    finally:
        with disk(folder):  # closing retries a write that failed on a full disk
            file.close()


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file completely or not at all: a reader sees the old content or the new."""
    scratch = path.with_name(path.name + ".partial")
    try:
        with scratch.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(path)
    except OSError:
        scratch.unlink(missing_ok=True)  # leave no debris on a full disk
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def write_all(texts: Mapping[Path, str]) -> list[Path]:
    """Write several texts atomically, creating missing folders, and return their paths."""
    for path, text in texts.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text.encode())
    return list(texts)


@contextmanager
def disk(folder: Path) -> Iterator[None]:
    """Convert an OSError inside the context to a RunError that says what to do."""
    try:
        yield
    except OSError as error:
        cure = _CURES.get(error.errno or 0, "free some space or mend the disk")
        then = f"then `sparsefed resume {folder}`: nothing up to its last checkpoint is lost"
        if not (folder / CHECKPOINT).exists():
            then = "or choose another folder with --out"
        raise RunError(f"cannot write to {folder} ({error.strerror}); {cure}, {then}") from error


def line(value: Mapping[str, Any]) -> bytes:
    """Return a record as a line of JSON, with null for numbers that are not finite."""
    return (json.dumps({key: _finite(item) for key, item in value.items()}, allow_nan=False) + "\n").encode()


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
