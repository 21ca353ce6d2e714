"""The decompressed content of a file, plain, gzipped or xz, verified against its known length and checksum.

Everything goes through `verified`, which hashes as it reads: SHA-256 costs a tenth of decompressing, so even a load
compares every byte and wrong data never gets further than here.
"""

from __future__ import annotations

import gzip
import hashlib
import lzma
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, BinaryIO, cast

import numpy as np

from sparsefed.data import limits
from sparsefed.data.limits import GuardedStream
from sparsefed.data.record import DamagedError, DataFile

if TYPE_CHECKING:
    from sparsefed.core.types import UInt8Array

GZIP_MAGIC = b"\x1f\x8b"
XZ_MAGIC, XZ_END = b"\xfd7zXZ\x00", b"YZ"
CHUNK = 1 << 20


def glance(path: Path, file: DataFile) -> None:
    """Raise DamagedError if the length is wrong, without reading the content."""
    try:
        with path.open("rb") as stream:
            start = stream.read(len(XZ_MAGIC))
            stream.seek(-min(4, path.stat().st_size), os.SEEK_END)
            tail = stream.read(4)
    except OSError as error:
        raise DamagedError(f"cannot be read ({error.strerror})") from error
    if file.size is None:
        if not tail:
            raise DamagedError("is empty")
        return
    if start == XZ_MAGIC:  # the length is in an index that only decompressing checks: see that the end is there
        if not tail.endswith(XZ_END):
            raise DamagedError("is cut short: its xz data end too early")
        return
    zipped = start.startswith(GZIP_MAGIC)
    # A gzip member ends with the length of its content modulo 2^32.
    seen = int.from_bytes(tail, "little") if zipped else path.stat().st_size
    if seen != (file.size % 2**32 if zipped else file.size):
        raise DamagedError(f"is damaged or cut short: its content should have {file.size} bytes")


def verify(path: Path, file: DataFile) -> None:
    """Raise DamagedError unless every byte is right."""
    for _ in verified(path, file):
        pass


def read(path: Path, file: DataFile) -> UInt8Array:
    """Read the whole content into memory, verified and writable: [size]."""
    if file.size is None:
        raise ValueError(f"the content of {file.name} is not known beforehand: it can only be decoded")
    content = np.empty(file.size, dtype=np.uint8)
    start = 0
    for chunk in verified(path, file):
        content[start : start + len(chunk)] = np.frombuffer(chunk, dtype=np.uint8)
        start += len(chunk)
    return content


def install(source: Path, file: DataFile, folder: Path) -> None:
    """Put the verified content of `source` into `folder`, decompressed, all at once or not at all.

    Of content that is not known beforehand only the size is limited.
    `source` lies in a scratch folder inside `folder`, so the last step is a rename on one file system.
    """
    part = source.with_name(f"{file.name}.part")
    with part.open("wb") as stream:
        for chunk in verified(source, file):
            stream.write(chunk)
        stream.flush()
        os.fsync(stream.fileno())
    part.replace(folder / file.name)


def verified(path: Path, file: DataFile) -> Iterator[bytes]:
    """Yield the content chunk by chunk; use it only once it was read to its end without DamagedError."""
    digest, seen = hashlib.sha256(), 0
    size = limits.LARGEST if file.size is None else file.size
    with opened(path) as stream:
        while chunk := stream.read(CHUNK):
            seen += len(chunk)
            if seen > size:
                raise DamagedError(f"is longer than the {size} bytes it should have")
            digest.update(chunk)
            yield chunk
    if file.size is None:
        return
    if seen < size:
        raise DamagedError(f"is cut short: {seen} of {size} bytes")
    if digest.hexdigest() != file.sha256:
        raise DamagedError("has the right length but other content (its SHA-256 differs)")


@contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """Open the decompressed stream; reading it raises DamagedError for whatever goes wrong, other errors pass.

    The first bytes decide whether it is compressed, not the name: browsers unzip files and keep their names.
    """
    try:
        raw = path.open("rb")
    except OSError as error:
        raise _explained(error) from error
    with raw:
        start = GuardedStream(raw, None, _explained).read(len(XZ_MAGIC))
        raw.seek(0)
        with _plain(raw, start) as stream:
            limit = None if stream is raw else limits.most(path.stat().st_size)
            yield cast("IO[bytes]", GuardedStream(cast("IO[bytes]", stream), limit, _explained))


def _explained(error: Exception) -> DamagedError:
    if isinstance(error, EOFError):
        return DamagedError("is cut short: its compressed data end too early")
    if isinstance(error, lzma.LZMAError):
        return DamagedError(f"is damaged: its xz data are wrong ({error})")
    if isinstance(error, gzip.BadGzipFile | zlib.error):
        return DamagedError(f"is damaged: its gzip data are wrong ({error})")
    if isinstance(error, MemoryError):
        return DamagedError("needs more memory than there is")
    return DamagedError(f"cannot be read ({getattr(error, 'strerror', None) or error})")


def _plain(raw: BinaryIO, start: bytes) -> BinaryIO | gzip.GzipFile | lzma.LZMAFile:
    if start == XZ_MAGIC:
        return lzma.LZMAFile(raw)
    return gzip.GzipFile(fileobj=raw) if start.startswith(GZIP_MAGIC) else raw
