"""The nouns of the data layer: what a data set is made of, where it comes from, how it fares on this machine.

Knows nothing of folders, networks or image formats. It does not import `sparsefed.types` when run, so that listing the
data sets does not cost the import of torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from sparsefed.errors import DataError

if TYPE_CHECKING:
    from sparsefed.types import Arrays, UInt8Array

Say = Callable[[str], None]  # takes one line for the person who waits
State = Literal["built in", "found", "missing", "damaged"]


class DamagedError(DataError):
    """Content that is not what it should be. The message is a predicate ("is cut short"); the caller names the file."""


class SourceError(DataError):
    """One source that could not deliver; the next one is tried."""


@dataclass(frozen=True)
class DataFile:
    """One file, known by its *decompressed* content, so that plain and gzipped copies are the same file."""

    name: str  # without .gz
    size: int  # bytes
    sha256: str


@dataclass(frozen=True)
class Source:
    """One way to get files: `bring(files, scratch, say)` yields each, unverified, as it arrives in scratch."""

    title: str
    bring: Callable[[Sequence[DataFile], Path, Say], Iterator[tuple[DataFile, Path]]]


Content = Callable[[str], "UInt8Array"]  # a file's name -> its verified content, [size]


@dataclass(frozen=True)
class DataSet:
    """All that is known about one data set. One without files is built in: a dependency carries it."""

    name: str
    description: str
    read: Callable[[Content], Arrays]
    files: tuple[DataFile, ...] = ()
    folders: tuple[str, ...] = ()  # its usual sub-folders of a root, ours first
    sources: tuple[Source, ...] = ()  # in the order in which `fetch` tries them
    carried_by: str = ""  # the dependency that a built-in set comes with


@dataclass(frozen=True)
class Status:
    """How a data set fares on this machine."""

    name: str
    description: str
    state: State
    location: str  # the folder, or folders; empty if nothing was found
    size: int  # bytes on disk
    problem: str = ""  # what is wrong and what to do; empty if nothing is
