"""Bucketing, a pre-aggregation for any rule.

Byzantine-Robust Learning on Heterogeneous Datasets via Bucketing (Karimireddy, He, Jaggi 2022, Algorithm 1): with a
random permutation pi of the n updates and buckets of s,

    y_i  =  (1/s) sum_{k = s(i-1)+1 .. min(n, si)}  x_pi(k)        i = 1 .. ceil(n/s)

The means differ less from each other than the updates did, so that a rule which compares them rejects fewer honest
ones; f attackers spoil f buckets at most.

*Departures.* A last bucket of r < s updates is their mean (1/r): divided by s it would be short. The permutation
depends on seed, round and the senders alone, not on the order in which updates arrive.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
from torch import Tensor

from sparsefed.core.rng import mixed, rng
from sparsefed.core.types import Context, IntArray
from sparsefed.defenses.combine import Pre, Stack
from sparsefed.defenses.pipeline import require


def bucketing(size: Annotated[int, "s, how many updates are averaged into one"] = 2) -> Pre:
    """Average the updates in random buckets of `size`; the last one may be smaller."""
    require(size >= 1, f"size is {size}, but a bucket holds at least one update: choose size >= 1 (the paper has 2)")

    def buckets_of(n: int) -> int:
        return -(-n // size)

    def into_buckets(stack: Stack, context: Context) -> Stack:
        order = shuffled(stack.senders, context)
        buckets = [order[first : first + size] for first in range(0, len(order), size)]
        means = stack.rows.new_empty(len(buckets), stack.rows.shape[1])
        for mean, bucket in zip(means, buckets, strict=True):
            _write_mean(mean, stack.rows, bucket)
        return Stack(means, np.arange(len(buckets)), buckets_of(stack.received), stack.stats)

    return Pre(into_buckets, buckets_of)


def shuffled(senders: IntArray, context: Context) -> IntArray:
    """Return the senders' positions in the order of a keyed hash: it depends on the senders, not on arrival order."""
    keys = rng(context.seed, "bucketing", context.round).integers(2**64, size=2, dtype=np.uint64)
    words = senders.astype(np.uint64)
    for key in keys:
        words = mixed(words ^ key)
    return np.argsort(words, kind="stable")


def _write_mean(mean: Tensor, rows: Tensor, bucket: IntArray) -> None:
    """Write a bucket's mean into `mean`, a row of a fresh tensor, without copying the bucket's rows."""
    first, *others = bucket.tolist()
    mean.copy_(rows[first])
    for other in others:
        mean.add_(rows[other])
    mean.div_(len(bucket))
