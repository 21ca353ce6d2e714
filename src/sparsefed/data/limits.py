"""Limits for content that came from elsewhere, and the one place where a library's exceptions become sentences.

Files and servers state sizes; none is believed before it is compared with the bytes that are there. What is unpacked
may be RATIO times as long as what it is unpacked from, beyond ROOM bytes that are always allowed: about what JSON full
of ones reaches, and a tenth of what a file made to fill a disk does.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO, TypeVar

from sparsefed.core.errors import SparseFedError
from sparsefed.data.record import DamagedError

ROOM = 64 << 20  # bytes
RATIO = 100
LARGEST = 1 << 30  # bytes of a file or package of which nothing is known beforehand
CHUNK = 1 << 20  # bytes read at a time, however many a file says there are
T = TypeVar("T")


def most(size: int) -> int:
    """Return the most bytes that so many packed bytes may unpack to."""
    return ROOM + RATIO * size


def check(unpacked: int, size: int, what: str) -> None:
    """Raise DamagedError if so many packed bytes cannot honestly hold what they are said to unpack to."""
    if not 0 <= unpacked <= most(size):
        raise DamagedError(f"is not to be unpacked: {what} would take {unpacked} bytes, from {size}")


@contextmanager
def guarded(*passing: type[Exception]) -> Iterator[None]:
    """Turn whatever a library raises about content into DamagedError; our own errors and those in `passing` pass."""
    clear: tuple[type[Exception], ...] = (SparseFedError, *passing)
    try:
        yield
    except clear:
        raise
    except MemoryError as error:
        raise DamagedError("needs more memory than there is") from error
    except RecursionError as error:
        raise DamagedError("is nested too deeply") from error
    except Exception as error:
        raise DamagedError(f"is damaged or of another kind ({type(error).__name__}: {error})") from error


class GuardedStream(io.BufferedIOBase):
    """A stream to read whose errors are all DamagedError, and that ends in one where its content exceeds a limit."""

    def __init__(self, stream: IO[bytes], limit: int | None, explained: Callable[[Exception], DamagedError]) -> None:
        self._stream, self._limit, self._explained = stream, limit, explained

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._stream.tell()

    def read(self, size: int | None = -1) -> bytes:
        left = sys.maxsize if size is None or size < 0 else size
        chunks = [self._guard(self._stream.read, min(CHUNK, left))]
        while chunks[-1] and (left := left - len(chunks[-1])):
            chunks.append(self._guard(self._stream.read, min(CHUNK, left)))
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    def readline(self, size: int | None = -1) -> bytes:
        return self._guard(self._stream.readline, -1 if size is None else size)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        if whence == os.SEEK_END and self._limit is not None:  # by reading, which keeps to the limit
            while self.read(CHUNK):
                pass
            whence, offset = os.SEEK_SET, self.tell() + offset
        return self._guard(self._stream.seek, offset, whence)

    def _guard(self, act: Callable[..., T], *arguments: int) -> T:
        try:
            result = act(*arguments)
        except Exception as error:
            raise self._explained(error) from error
        if self._limit is not None and self._stream.tell() > self._limit:
            raise DamagedError(f"is not to be unpacked: it holds more than {self._limit} bytes")
        return result
