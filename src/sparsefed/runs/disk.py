"""Disk access for run folders: one process per folder, atomic writes, and disk errors in one sentence."""

from __future__ import annotations

import errno
import fcntl
import json
import math
import os
import re
import stat
import tempfile
import time
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from sparsefed.core.errors import RunError

CONFIG, MANIFEST, METRICS, CHECKPOINT = "config.toml", "manifest.json", "metrics.jsonl", "checkpoint.safetensors"
TEXT_LIMIT = 2**26  # bytes of a config, a manifest or one line of the metrics: a thousand times what runs write
_LOCK = ".lock"
_PATIENCE = 1.0  # seconds that a lock is waited for
_CURES = {
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), "make it writable"),
    **dict.fromkeys((errno.EEXIST, errno.ENOTDIR), "move away the file that is in its place"),
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EFBIG), "free some space"),
    errno.EIO: "mend the disk",
    errno.ENAMETOOLONG: "give it a shorter name",
}


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a run folder, or raise RunError if another process does; it ends with the process.

    It is given a moment: who only looks whether a run goes on holds the lock meanwhile, and so does the child of a
    killed process until it runs its own program.
    """
    with disk(folder):
        lock = open_plain(folder / _LOCK, os.O_RDWR | os.O_CREAT)
    with lock:
        end = time.monotonic() + _PATIENCE
        while not _taken(lock, fcntl.LOCK_EX):
            if time.monotonic() > end:
                raise RunError(f"another process is working on {folder}; wait for it, or end it first")
            time.sleep(0.01)
        yield


def _taken(lock: IO[bytes], kind: int) -> bool:
    try:
        fcntl.flock(lock, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_locked(folder: Path) -> bool:
    """Return whether a process is working on the run."""
    path = folder / _LOCK
    if not path.exists():
        return False
    with open_plain(path) as lock:
        return not _taken(lock, fcntl.LOCK_SH)


@contextmanager
def appending(folder: Path) -> Iterator[IO[bytes]]:
    """Open the metrics file of a run for appending."""
    with disk(folder):
        file = open_plain(folder / METRICS, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        yield file
    finally:
        with disk(folder):  # closing retries a write that failed on a full disk
            file.close()


def open_plain(path: Path, flags: int = os.O_RDONLY) -> IO[bytes]:
    """Open a file of a run folder; refuse links, pipes and devices, which would lead out of the folder or never end.

    Raises:
        RunError: The path is no plain file.
        OSError: It cannot be opened.
    """
    try:
        number = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):
            raise RunError(_not_plain(path)) from error
        raise
    if not stat.S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        raise RunError(_not_plain(path))
    mode = "rb" if flags & os.O_ACCMODE == os.O_RDONLY else "ab" if flags & os.O_APPEND else "rb+"
    return os.fdopen(number, mode)


def _not_plain(path: Path) -> str:
    return f"{path} is a link, a pipe or a device where a run has a plain file; put the file itself there, or remove it"


def read_bytes(path: Path, limit: int | None = TEXT_LIMIT) -> bytes:
    """Return the content of a plain file of a run folder; refuse one that is larger than `limit` bytes."""
    with open_plain(path) as file:
        size = os.fstat(file.fileno()).st_size
        if limit is not None and size > limit:
            raise RunError(f"{path} has {size:,} bytes, which no run writes; put back what it was, or remove it")
        return file.read()


def write_atomically(path: Path, content: bytes, keep: Path | None = None) -> None:
    """Write a file completely or not at all: a reader sees the old content or the new.

    With `keep`, the file that was there is kept under that name; killed in between, a process leaves only that one.
    """
    scratch = path.with_name(path.name + ".partial")
    try:
        scratch.unlink(missing_ok=True)  # debris of a killed process, or a link that somebody put there
        with open_plain(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if keep is not None and os.path.lexists(path):
            path.replace(keep)
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
        cure = _CURES.get(error.errno or 0, "make sure that files can be written there")
        then = f"then `sparsefed resume {folder}`: nothing up to its last checkpoint is lost"
        if not (folder / CHECKPOINT).exists():
            then = "or choose another folder with --out"
        raise RunError(f"cannot write to {folder} ({error.strerror}); {cure}, {then}") from error


def require_writable(folder: Path) -> None:
    """Raise RunError if a folder could not be made or written to; nothing is left behind."""
    with disk(folder):
        nearest = next(path for path in (folder, *folder.absolute().parents) if path.exists())
        with tempfile.TemporaryFile(dir=nearest):
            pass


def line(value: Mapping[str, Any]) -> bytes:
    """Return a record as a line of JSON that ends in a checksum, with null for numbers that are not finite.

    >>> line({"round": 1})
    b'{"round": 1, "crc32": "d9f40321"}\\n'
    """
    text = json.dumps({key: _finite(item) for key, item in value.items()}, allow_nan=False, ensure_ascii=False)
    return f'{text[:-1]}, "crc32": "{zlib.crc32(text.encode()):08x}"}}\n'.encode()


_SUM = re.compile(rb', "crc32": "([0-9a-f]{8})"\}\n\Z')


def record_of(line: bytes) -> tuple[dict[str, Any], bool] | None:
    """Return the record of a line of JSON, and whether it has a checksum; None if the line is damaged or cut off."""
    checked = _SUM.search(line)
    text = line[: checked.start()] + b"}" if checked else line
    if not line.endswith(b"\n") or (checked and zlib.crc32(text) != int(checked[1], 16)):
        return None
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return (record, checked is not None) if isinstance(record, dict) and "crc32" not in record else None


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
