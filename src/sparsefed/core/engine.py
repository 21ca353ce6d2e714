"""What all ways of computing a cohort's updates share: the batch that goes in, the step a device takes, and blocks.

A device's update is `scale * (gradient of its mean loss + weight_decay * theta)`: with `scale` 1 the server owns the
learning rate (uncompressed mode), with `scale` lambda(t) the device has taken a step of its own (FedAvg mode, tau = 1).
Where the plan says so it takes several (FedAvg proper, McMahan et al. 2017), each at the weights it has come to, and
sends `theta - theta_local`; `scale` is then the rate of its first epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from sparsefed.core.rng import rng
from sparsefed.core.types import Batch, Block, IntArray

MEMORY_BUDGET = 2 * 2**30  # bytes that one block of clients may take


class LocalPlan(NamedTuple):
    """How a device trains, apart from the rate: by default one step on all of its examples."""

    epochs: int = 1
    batch: int | None = None  # examples of a step; None: all of the device's at once
    decay: float = 1.0  # the rate's factor from an epoch to the next
    prox: float = 0.0  # FedProx's mu (Li et al. 2020): a step adds mu (theta_local - theta) to the gradient


ONE_STEP = LocalPlan()


class LocalStep(NamedTuple):
    """One local step, as numbers, and how many of them."""

    scale: float
    weight_decay: float
    seed: int = 0  # of the round: for layers that draw (dropout), and for the order of a device's examples
    plan: LocalPlan = ONE_STEP


class Turn(NamedTuple):
    """One of a device's local steps."""

    examples: IntArray | None  # which of its own; None: all
    rate: float


def turns(step: LocalStep, device: int, size: int) -> list[Turn]:
    """The local steps of a device in their order; the last batch of an epoch may be smaller.

    Its examples are shuffled for every epoch, by (seed of the round, device, epoch) and nothing else. An epoch of one
    batch is not: a mean has no order.

    >>> plan = LocalPlan(epochs=2, batch=2, decay=0.5)
    >>> [(len(turn.examples), turn.rate) for turn in turns(LocalStep(0.1, 0.0, 7, plan), device=3, size=3)]
    [(2, 0.1), (1, 0.1), (2, 0.05), (1, 0.05)]
    """
    plan, found = step.plan, []
    for epoch in range(plan.epochs):
        rate = step.scale * plan.decay**epoch
        if plan.batch is None or plan.batch >= size:
            found.append(Turn(None, rate))
            continue
        order = rng(step.seed, "local order", epoch, device).permutation(size)
        found += [Turn(order[low : low + plan.batch], rate) for low in range(0, size, plan.batch)]
    return found


def one_step(plan: LocalPlan, sizes: IntArray) -> bool:
    """Whether no device takes more than one step; FedProx's term is 0 in the first."""
    return plan.epochs == 1 and (plan.batch is None or int(sizes.max(initial=0)) <= plan.batch)


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


def few(cohort: Cohort, clients: int = 2, examples: int = 4) -> Batch:
    """The first examples of the first clients."""
    batch = cohort.gather(cohort.ids[:clients])
    client = example_clients(batch.sizes).numpy()
    first = np.concatenate([[0], np.cumsum(batch.sizes)])[client]
    keep = torch.from_numpy(np.flatnonzero(np.arange(len(client)) - first < examples))
    return Batch(batch.x[keep], batch.y[keep], np.minimum(batch.sizes, examples))
