"""What all ways of computing a cohort's updates share: the batch that goes in, the step a device takes, and blocks.

A device's update is `scale * (gradient of its mean loss + weight_decay * theta)`: with `scale` 1 the server owns the
learning rate (uncompressed mode), with `scale` lambda(t) the device has taken a step of its own (FedAvg mode, tau = 1).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from sparsefed.types import Batch, Block, IntArray

MEMORY_BUDGET = 2 * 2**30  # bytes that one block of clients may take


class LocalStep(NamedTuple):
    """One local step, as numbers."""

    scale: float
    weight_decay: float
    seed: int = 0  # for layers that draw (dropout)


class Cohort(NamedTuple):
    """Who takes part, without their data: an engine gathers it a block at a time."""

    ids: IntArray
    sizes: IntArray  # [len(ids)]
    gather: Callable[[IntArray], Batch]


class Engine(Protocol):
    """Computes updates: a cohort's examples in, blocks out, each freed before the next is made."""

    def __call__(self, theta: Tensor, cohort: Cohort, step: LocalStep) -> Iterator[Block]: ...


def split(cohort: Cohort, bytes_per_client: float, bytes_per_example: float, budget: int) -> list[IntArray]:
    """The ids of each block, devices of equal size side by side so that they can be computed together.

    >>> cohort = Cohort(np.array([7, 8, 9]), np.array([2, 1, 2]), lambda ids: Batch(ids, ids, ids))
    >>> [block.tolist() for block in split(cohort, 0.0, 1.0, budget=4)]
    [[8, 7], [9]]
    """
    order = np.argsort(cohort.sizes, kind="stable")
    cost = np.cumsum(bytes_per_client + bytes_per_example * cohort.sizes[order])
    blocks, first, spent = [], 0, 0.0
    for last in range(1, len(order) + 1):
        if last == len(order) or cost[last] - spent > budget:
            blocks.append(cohort.ids[order[first:last]])
            first, spent = last, cost[last - 1]
    return blocks


def example_clients(sizes: IntArray) -> Tensor:
    """For each example of a batch, the position of its client [M]."""
    return torch.from_numpy(np.repeat(np.arange(len(sizes)), sizes))
