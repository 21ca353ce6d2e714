"""The records of the data layer: the parts of a data set, its sources, and its status on this machine.

This file knows no folders, networks or image formats. It does not import `sparsefed.core.types` when run, so that
listing the data sets does not cost the import of torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Literal, Protocol

from sparsefed.core.errors import DataError, printable

if TYPE_CHECKING:
    from sparsefed.core.types import Arrays, UInt8Array

Say = Callable[[str], None]  # takes one line of progress for the user
State = Literal["built in", "found", "missing", "damaged"]


class DamagedError(DataError):
    """An error for damaged content; the message is a predicate ("is cut short"), and the caller names the file."""

    def __init__(self, message: str) -> None:
        super().__init__(printable(message))


class SourceError(DataError):
    """An error for one source that could not deliver; the next one is tried."""

    def __init__(self, message: str) -> None:
        super().__init__(printable(message))


@dataclass(frozen=True)
class DataFile:
    """One file, identified by its *decompressed* content, so that plain, gzipped and xz copies are the same.

    Where the bytes cannot be known beforehand (an archive packed anew, a script's output), size and sum are left out,
    and the reader of the file compares what it decodes. A name with a `*` stands for one file or more.
    """

    name: str  # without .gz or .xz
    size: int | None = None  # bytes
    sha256: str = ""


@dataclass(frozen=True)
class Source:
    """One way to get files: `bring(files, scratch, say)` yields each, unverified, as it arrives in scratch."""

    title: str
    bring: Callable[[Sequence[DataFile], Path, Say], Iterator[tuple[DataFile, Path]]]


class Content(Protocol):
    """The files of a layout on this machine; a missing or damaged one raises a DataError that says what to do."""

    def __call__(self, name: str) -> UInt8Array: ...  # the whole content of a file with a known sum, verified: [size]

    def paths(self, name: str) -> Sequence[Path]: ...  # path of the file, or of all files that a name with a * matches

    def open(self, path: Path) -> AbstractContextManager[IO[bytes]]: ...

    # The decompressed stream, for what is too large to hold twice. Unverified: the reader compares what it decodes and
    # raises DamagedError inside the block, which then becomes a sentence that names the file.


Read = Callable[[Content], "Arrays"]


@dataclass(frozen=True)
class Layout:
    """One form in which a data set is passed on: its files, and how to read them."""

    files: tuple[DataFile, ...]
    read: Read


@dataclass(frozen=True)
class DataSet:
    """The record of one data set; a set without files is built in: a dependency ships it.

    `files` is the form that `fetch` downloads; `also` are other forms that give exactly the same arrays.
    """

    name: str
    description: str
    read: Read
    files: tuple[DataFile, ...] = ()
    folders: tuple[str, ...] = ()  # its usual sub-folders of a root, ours first
    sources: tuple[Source, ...] = ()  # in the order in which `fetch` tries them
    carried_by: str = ""  # the dependency that ships a built-in set
    also: tuple[Layout, ...] = ()
    loose: bool = True  # whether files may lie in a root itself; false where their names are too common
    by_hand: str = ""  # for a set that cannot be fetched: a sentence on how to get it
    resized: Callable[[int | None, int | None], DataSet] | None = None  # text: another vocabulary and sequence length

    @property
    def layouts(self) -> tuple[Layout, ...]:
        return (Layout(self.files, self.read), *self.also)


@dataclass(frozen=True)
class Status:
    """The status of a data set on this machine."""

    name: str
    description: str
    state: State
    location: str  # the folder, or folders; empty if nothing was found
    size: int  # bytes on disk
    problem: str = ""  # what is wrong and what to do; empty if all is well
