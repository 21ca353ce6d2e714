"""Data sets, where their files are looked for, and how examples are dealt to devices.

A new data set is one file that ends in a `DataSet` record, and one line in DATASETS. Every function takes a name or a
record, so that a data set of one's own needs no line at all. Nothing here prints. No data set stands in for another.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparsefed.core.errors import DataError, unknown
from sparsefed.data.record import DataSet, Say, Status
from sparsefed.data.sets import cifar10, cifar100, digits, femnist, fmnist, mnist, mnist_by_writer, reddit, shakespeare
from sparsefed.data.sources import fetch as fetching
from sparsefed.data.sources import inventory

if TYPE_CHECKING:
    from sparsefed.core.types import Arrays

__all__ = ["DATASETS", "DataSet", "Status", "canonical", "check", "fetch", "listing", "load", "named", "status"]

DATASETS: dict[str, DataSet] = {
    "digits": digits.DATASET,
    "mnist": mnist.DATASET,
    "fmnist": fmnist.DATASET,
    "cifar10": cifar10.DATASET,
    "cifar100": cifar100.DATASET,
    "femnist": femnist.DATASET,
    "mnist_by_writer": mnist_by_writer.DATASET,
    "reddit": reddit.DATASET,
    "reddit_leaf": reddit.LEAF,
    "shakespeare": shakespeare.DATASET,
    "shakespeare_leaf": shakespeare.LEAF,
}


def named(which: str | DataSet) -> DataSet:
    """The record of a data set."""
    if isinstance(which, DataSet):
        return which
    if canonical(which) not in DATASETS:
        raise DataError(unknown("data set", which, DATASETS))
    return DATASETS[canonical(which)]


def canonical(name: str) -> str:
    """Dashes are as good as underscores in the names of ours; `module:DATA` is left alone."""
    return name if ":" in name else name.replace("-", "_")


def load(which: str | DataSet) -> Arrays:
    """The data set in memory, every byte verified; raises DataError if it is missing or damaged."""
    return inventory.load(named(which))


def status(which: str | DataSet) -> Status:
    """Found where, missing or damaged, by presence and length alone: quick."""
    return inventory.status(named(which))


def check(which: str | DataSet) -> Status:
    """The same, with the checksum of every file."""
    return inventory.check(named(which))


def listing() -> list[Status]:
    """The status of every data set, by name."""
    return [status(name) for name in sorted(DATASETS)]


def fetch(which: str | DataSet, say: Say = lambda _: None) -> Status:
    """Bring a data set into the user's cache, unless it is here already; `say` is given a line at a time."""
    return fetching.fetch(named(which), say)
