"""A source that is a folder on a web server; the caller verifies the content, so the server need not be trusted."""

from __future__ import annotations

import http.client
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from sparsefed.data.record import DataFile, Say, Source, SourceError

CHUNK = 1 << 16
TELL_EVERY = 5.0  # seconds
T = TypeVar("T")


def mirror(base: str, suffix: str = ".gz", timeout: float = 30.0) -> Source:
    """Return a source of files at `base/name + suffix`; the timeout, in seconds, is for each wait on the network."""

    def bring(files: Sequence[DataFile], scratch: Path, say: Say) -> Iterator[tuple[DataFile, Path]]:
        for file in files:
            path = scratch / (file.name + suffix)
            say(f"  downloading {path.name}")
            # gzip adds less than a chunk: anything longer is some other file
            download(f"{base.rstrip('/')}/{path.name}", path, (file.size or 0) + CHUNK, say, timeout)
            yield file, path

    return Source(title=base, bring=bring)


def download(url: str, path: Path, limit: int, say: Say, timeout: float = 30.0) -> None:
    """Write what the server sends, at most `limit` bytes; raise SourceError if it is not the length it announced."""
    request = urllib.request.Request(url, headers={"User-Agent": "sparsefed"})
    with (
        on_network(path.name, lambda: urllib.request.urlopen(request, timeout=timeout)) as reply,
        path.open("wb") as out,
    ):
        promised = int(reply.headers.get("Content-Length") or -1)
        told = time.monotonic()
        while chunk := on_network(path.name, lambda: reply.read(CHUNK)):
            out.write(chunk)
            if out.tell() > limit:
                raise SourceError(f"{path.name} is longer than it can be")
            if time.monotonic() - told > TELL_EVERY:
                told = time.monotonic()
                say(f"    {out.tell() / 1e6:.1f} MB" + (f" of {promised / 1e6:.1f} MB" if promised > 0 else ""))
        if promised >= 0 and out.tell() != promised:
            raise SourceError(f"{path.name} broke off after {out.tell()} of {promised} bytes")


def on_network(what: str, act: Callable[[], T]) -> T:
    """Run `act` and turn network errors into SourceError; errors of writing to disk are not the mirror's fault."""
    try:
        return act()
    except (OSError, http.client.HTTPException) as error:
        raise SourceError(f"{what}: {getattr(error, 'reason', None) or error or type(error).__name__}") from error
