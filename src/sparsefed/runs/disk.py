"""How run folders reach the disk: one process a folder, whole files or none, trouble in one sentence."""

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
    """One process a run; the lock goes with the process that holds it."""
    with disk(folder):
        lock = (folder / _LOCK).open("w")
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunError(f"another process is working on {folder}; wait for it, or end it first") from None
        yield


def is_locked(folder: Path) -> bool:
    """Whether some process is working on the run."""
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
    """The metrics of a run, to be added to."""
    with disk(folder):
        file = (folder / METRICS).open("ab")
    try:
        yield file
    finally:
        with disk(folder):  # closing tries again to write what a full disk refused
            file.close()


def write_atomically(path: Path, content: bytes) -> None:
    """All of it or nothing: a reader sees the old file or the new one."""
    scratch = path.with_name(path.name + ".partial")
    try:
        with scratch.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(path)
    except OSError:
        scratch.unlink(missing_ok=True)  # on a full disk every byte counts
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def write_all(texts: Mapping[Path, str]) -> list[Path]:
    """Several texts, each as a whole file, in folders that are made where they are missing; say where."""
    for path, text in texts.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text.encode())
    return list(texts)


@contextmanager
def disk(folder: Path) -> Iterator[None]:
    """A full or read-only disk in one sentence."""
    try:
        yield
    except OSError as error:
        cure = _CURES.get(error.errno or 0, "free some space or mend the disk")
        then = f"then `sparsefed resume {folder}`: nothing up to its last checkpoint is lost"
        if not (folder / CHECKPOINT).exists():
            then = "or choose another folder with --out"
        raise RunError(f"cannot write to {folder} ({error.strerror}); {cure}, {then}") from error


def line(value: Mapping[str, Any]) -> bytes:
    """A record as a line of JSON; what is not finite is null."""
    return (json.dumps({key: _finite(item) for key, item in value.items()}, allow_nan=False) + "\n").encode()


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
