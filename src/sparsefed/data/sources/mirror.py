"""A source that is a folder on a web server; the caller verifies the content, so the server need not be trusted."""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from sparsefed.data import limits
from sparsefed.data.record import DataFile, Say, Source, SourceError

CHUNK = 1 << 16
TELL_EVERY = 5.0  # seconds
GRACE, SLOWEST = 60.0, 1024  # seconds after which a server must have sent so many bytes a second
T = TypeVar("T")


def mirror(base: str, suffix: str = ".gz", timeout: float = 30.0) -> Source:
    """Return a source of files at `base/name + suffix`; the timeout, in seconds, is for each wait on the network."""

    def bring(files: Sequence[DataFile], scratch: Path, say: Say) -> Iterator[tuple[DataFile, Path]]:
        for file in files:
            path = scratch / (file.name + suffix)
            say(f"  downloading {path.name}")
            # gzip adds less than a chunk: anything longer is some other file
            limit = limits.LARGEST if file.size is None else file.size + CHUNK
            download(f"{base.rstrip('/')}/{path.name}", path, limit, say, timeout)
            yield file, path

    return Source(title=base, bring=bring)


def download(url: str, path: Path, limit: int, say: Say, timeout: float = 30.0) -> None:
    """Write what the server sends, at most `limit` bytes; raise SourceError if it is not the length it announced."""
    request = urllib.request.Request(url, headers={"User-Agent": "sparsefed"})
    with (
        on_network(path.name, lambda: urllib.request.urlopen(request, timeout=timeout)) as reply,
        path.open("wb") as out,
    ):
        promised, began = _promised(reply.headers.get("Content-Length")), time.monotonic()
        reported = began
        while out.tell() != promised and (chunk := on_network(path.name, lambda: reply.read1(CHUNK))):
            if max(out.tell() + len(chunk), promised or 0) > limit:
                raise SourceError(f"{path.name} is longer than it can be: more than {limit} bytes")
            out.write(chunk)
            now = time.monotonic()
            if now - began > GRACE and out.tell() < SLOWEST * (now - began):
                raise SourceError(f"{path.name} came too slowly: {out.tell()} bytes in {now - began:.0f} s")
            if now - reported > TELL_EVERY:
                reported = now
                say(f"    {out.tell() / 1e6:.1f} MB" + (f" of {promised / 1e6:.1f} MB" if promised else ""))
        if promised is not None and out.tell() != promised:
            raise SourceError(f"{path.name} broke off after {out.tell()} of {promised} bytes")


def _promised(stated: str | None) -> int | None:
    """Return the length that a server announces; None if it announces none, or something that is no length.

    >>> _promised("112"), _promised(None), _promised("-1"), _promised("9" * 5000)
    (112, None, None, None)
    """
    return int(stated) if stated and stated.isascii() and stated.isdigit() and len(stated) < 16 else None


def on_network(what: str, act: Callable[[], T]) -> T:
    """Run `act` and turn any error into SourceError; errors of writing to disk are not the mirror's fault."""
    try:
        return act()
    except Exception as error:  # a server can make urllib raise ValueError and others, besides errors of the network
        raise SourceError(f"{what}: {getattr(error, 'reason', None) or error or type(error).__name__}") from error
