"""What tests of partitions share: labels, who owns what, and peak memory."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from itertools import pairwise

import numpy as np

from sparsefed.core.rng import rng
from sparsefed.core.types import IntArray
from sparsefed.data.partitions.partition import Partition


def labelled(counts: list[int], seed: int = 0) -> IntArray:
    """Labels 3, 6, 9, ... with these counts, in random order."""
    labels = np.repeat(3 * np.arange(1, len(counts) + 1), counts)
    return rng(seed, "test labels").permutation(labels)


def owned(partition: Partition) -> list[list[int]]:
    """What each device owns, by a loop."""
    return [partition.examples[a:b].tolist() for a, b in pairwise(partition.offsets.tolist())]


def peak_bytes(work: Callable[[], object]) -> int:
    """The most memory that this piece of work held beyond what was there before."""
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        work()
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
