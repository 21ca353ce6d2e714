"""A source that is one archive (.tar.gz) on a web server; the files in it are verified by the caller."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from sparsefed.data import limits
from sparsefed.data.formats import tar
from sparsefed.data.record import DamagedError, DataFile, Say, Source, SourceError
from sparsefed.data.sources import content
from sparsefed.data.sources.mirror import CHUNK, download


def archive(url: str, timeout: float = 30.0) -> Source:
    """Return a source of the files inside the archive, in whatever folder of it they lie."""

    def bring(files: Sequence[DataFile], scratch: Path, say: Say) -> Iterator[tuple[DataFile, Path]]:
        path = scratch / url.rpartition("/")[2]
        say(f"  downloading {path.name}")
        # The archive's length is unknown. What it holds besides these files is small, and they do not grow when
        # packed; where only some are wanted, the others are as large.
        limit = CHUNK + 8 * sum(file.size or limits.LARGEST // 8 for file in files)
        download(url, path, limit, say, timeout)
        yield from unpacked(path, files, scratch)

    return Source(title=url, bring=bring)


def unpacked(path: Path, files: Sequence[DataFile], scratch: Path) -> Iterator[tuple[DataFile, Path]]:
    """Yield those files of an archive one at a time; each is deleted when the next is requested."""
    wanted = {file.name: file for file in files}
    try:
        with content.opened(path) as stream, tar.members(stream) as found:
            for member in found:
                file = wanted.pop(member.name, None)
                if file is None:
                    continue
                copy = scratch / f"unpacked-{file.name}"
                tar.copy(member, limits.LARGEST if file.size is None else file.size, copy)
                yield file, copy
                copy.unlink()
    except DamagedError as error:
        raise SourceError(f"{path.name} {error}") from error
