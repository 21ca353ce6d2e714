"""Tar archives, read as a stream: only regular files, by base name, and with short headers."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, NamedTuple

from sparsefed.data import limits
from sparsefed.data.record import DamagedError

LONGEST = 1 << 16  # bytes of an extended header
EXTENDED = (
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
)


class Member(NamedTuple):
    """One regular file of an archive, to be read before the next."""

    name: str
    size: int  # bytes
    stream: IO[bytes]


class _Entry(tarfile.TarInfo):
    """An entry whose stated sizes are checked before any of it is read."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> _Entry:
        entry = super().frombuf(buf, encoding, errors)
        if entry.size < 0 or (entry.type in EXTENDED and entry.size > LONGEST):
            raise DamagedError(f"is damaged: it has a header that states a size of {entry.size} bytes")
        return entry


@contextmanager
def members(stream: IO[bytes]) -> Iterator[Iterator[Member]]:
    """Iterate over the files in a tar stream; raise DamagedError for whatever is wrong with it, but let OSError pass.

    Errors in reading the stream must be DamagedError already, so that an OSError is one of writing what was read.
    """
    try:
        with limits.guarded(OSError, tarfile.TarError), tarfile.open(fileobj=stream, mode="r|", tarinfo=_Entry) as tar:
            each = ((entry, tar.extractfile(entry)) for entry in tar if entry.isfile() and not entry.issparse())
            yield (Member(PurePosixPath(e.name).name, e.size, found) for e, found in each if found is not None)
    except tarfile.TarError as error:
        raise DamagedError(f"is no archive, or is cut short ({error})") from error


def copy(member: Member, most: int, path: Path) -> None:
    """Write a file of an archive to disk; raise DamagedError if it has more than `most` bytes."""
    if member.size > most:
        raise DamagedError(f"holds a {member.name} of {member.size} bytes; at most {most} are expected")
    with path.open("wb") as out:
        while chunk := member.stream.read(limits.CHUNK):
            out.write(chunk)
