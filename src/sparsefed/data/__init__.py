"""Data sets, where their files are looked for, and how examples are dealt to devices.

A new data set is one file that ends in a `DataSet` record, and one line in DATASETS. Every function takes a name or a
record, so that your own data set needs no line at all. Nothing here prints. No data set stands in for another.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from sparsefed.core.errors import DataError, unknown
from sparsefed.data.record import DataSet, Say, Status
from sparsefed.data.sets import cifar10 as _cifar10
from sparsefed.data.sets import cifar100 as _cifar100
from sparsefed.data.sets import digits as _digits
from sparsefed.data.sets import femnist as _femnist
from sparsefed.data.sets import fmnist as _fmnist
from sparsefed.data.sets import mnist as _mnist
from sparsefed.data.sets import mnist_by_writer as _mnist_by_writer
from sparsefed.data.sets import reddit as _reddit
from sparsefed.data.sets import shakespeare as _shakespeare
from sparsefed.data.sources import fetch as fetching
from sparsefed.data.sources import inventory

if TYPE_CHECKING:
    from sparsefed.core.types import Arrays

__all__ = [
    "DATASETS",
    "DataSet",
    "Status",
    "canonical",
    "check",
    "cifar10",
    "cifar100",
    "digits",
    "femnist",
    "fetch",
    "fmnist",
    "listing",
    "load",
    "mnist",
    "mnist_by_writer",
    "named",
    "reddit",
    "reddit_leaf",
    "shakespeare",
    "shakespeare_leaf",
    "status",
]

F = TypeVar("F", bound=Callable[..., Any])

DATASETS: dict[str, DataSet] = {
    "digits": _digits.DATASET,
    "mnist": _mnist.DATASET,
    "fmnist": _fmnist.DATASET,
    "cifar10": _cifar10.DATASET,
    "cifar100": _cifar100.DATASET,
    "femnist": _femnist.DATASET,
    "mnist_by_writer": _mnist_by_writer.DATASET,
    "reddit": _reddit.DATASET,
    "reddit_leaf": _reddit.LEAF,
    "shakespeare": _shakespeare.DATASET,
    "shakespeare_leaf": _shakespeare.LEAF,
}


class TextLoader(Protocol):
    """A function that loads a text; vocabulary and sequence length default to the data set's usual ones."""

    def __call__(self, vocabulary: int | None = None, length: int | None = None) -> Arrays: ...


def _images(name: str) -> Callable[[], Arrays]:
    def images() -> Arrays:
        return load(name)

    return _documented(images, name)


def _text(name: str) -> TextLoader:
    def text(vocabulary: int | None = None, length: int | None = None) -> Arrays:
        resized = named(name).resized
        return load(name if resized is None else resized(vocabulary, length))

    return _documented(text, name)


def _documented(loader: F, name: str) -> F:
    """Name and document a loader, which raises DataError if the data set's files are missing or damaged."""
    about = f"Load {DATASETS[name].description}."
    loader.__name__, loader.__qualname__, loader.__doc__ = name, name, about
    return loader


digits = _images("digits")
mnist = _images("mnist")
fmnist = _images("fmnist")
cifar10 = _images("cifar10")
cifar100 = _images("cifar100")
femnist = _images("femnist")
mnist_by_writer = _images("mnist_by_writer")
reddit = _text("reddit")
reddit_leaf = _text("reddit_leaf")
shakespeare = _text("shakespeare")
shakespeare_leaf = _text("shakespeare_leaf")


def named(which: str | DataSet) -> DataSet:
    """Return the record of a data set; raise DataError if the name is unknown."""
    if isinstance(which, DataSet):
        return which
    if canonical(which) not in DATASETS:
        raise DataError(unknown("data set", which, DATASETS))
    return DATASETS[canonical(which)]


def canonical(name: str) -> str:
    """Return a data set's name with dashes as underscores; `module:DATA` is left alone."""
    return name if ":" in name else name.replace("-", "_")


def load(which: str | DataSet) -> Arrays:
    """Load a data set into memory, every byte verified; raise DataError if it is missing or damaged."""
    return inventory.load(named(which))


def status(which: str | DataSet) -> Status:
    """Return whether a data set is found, missing or damaged, quickly: by presence and length of its files alone."""
    return inventory.status(named(which))


def check(which: str | DataSet) -> Status:
    """Return whether a data set is found, missing or damaged, by the checksum of every file."""
    return inventory.check(named(which))


def listing() -> list[Status]:
    """Return the status of every data set, sorted by name."""
    return [status(name) for name in sorted(DATASETS)]


def fetch(which: str | DataSet, say: Say = lambda _: None) -> Status:
    """Fetch a data set into the user's cache, unless it is here already; `say` receives progress, a line at a time."""
    return fetching.fetch(named(which), say)
