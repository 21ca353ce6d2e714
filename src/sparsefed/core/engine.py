"""Shared vocabulary of the engines: a cohort's batch, the local step a device takes, and blocks of clients.

A device's update is `scale * (gradient of its mean loss + weight_decay * theta)`: with `scale` 1 the server owns the
learning rate (uncompressed mode), with `scale` lambda(t) the device has taken a step of its own (FedAvg mode, tau = 1).
If the plan has several local steps (FedAvg proper, McMahan et al. 2017), the device takes each at its current weights
and sends `theta - theta_local`; `scale` is then the rate of its first epoch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from sparsefed.core.rng import rng
from sparsefed.core.types import Batch, Block, IntArray

MEMORY_BUDGET = 2 * 2**30  # bytes that one block of clients may take


class LocalPlan(NamedTuple):
    """A device's local training plan, apart from the rate: by default one step on all of its examples."""

    epochs: int = 1
    batch: int | None = None  # examples per step; None: all of the device's at once
    decay: float = 1.0  # factor on the rate from one epoch to the next
    prox: float = 0.0  # FedProx's mu (Li et al. 2020): a step adds mu (theta_local - theta) to the gradient
    steps: int | None = None  # instead of epochs: steps on batches that are drawn anew for each
    momentum: float = 0.0  # beta of a device's own momentum, which starts at 0 in every round
    adam: bool = False  # steps of Adam (Kingma and Ba 2015), whose moments start at 0 in every round


ONE_STEP = LocalPlan()


class LocalStep(NamedTuple):
    """The numbers that define a device's local training in a round."""

    scale: float
    weight_decay: float
    seed: int = 0  # of the round: for random layers (dropout) and for the order of a device's examples
    plan: LocalPlan = ONE_STEP


class Turn(NamedTuple):
    """One of a device's local steps."""

    examples: IntArray | None  # indices into the device's own examples; None: all
    rate: float


def turns(step: LocalStep, device: int, size: int) -> list[Turn]:
    """Return a device's local steps in order; the last batch of an epoch may be smaller.

    The examples are reshuffled every epoch, from (seed of the round, device, epoch) alone. An epoch of one batch is
    not shuffled: a mean has no order. A plan of steps draws each batch uniformly without replacement.

    >>> plan = LocalPlan(epochs=2, batch=2, decay=0.5)
    >>> [(len(turn.examples), turn.rate) for turn in turns(LocalStep(0.1, 0.0, 7, plan), device=3, size=3)]
    [(2, 0.1), (1, 0.1), (2, 0.05), (1, 0.05)]
    """
    plan, found = step.plan, []
    if plan.steps is not None:
        return [Turn(drawn(step, device, size, number), step.scale) for number in range(plan.steps)]
    for epoch in range(plan.epochs):
        rate = step.scale * plan.decay**epoch
        if plan.batch is None or plan.batch >= size:
            found.append(Turn(None, rate))
            continue
        order = rng(step.seed, "local order", epoch, device).permutation(size)
        found += [Turn(order[low : low + plan.batch], rate) for low in range(0, size, plan.batch)]
    return found


def steps_taken(plan: LocalPlan, size: int) -> float:
    """Return a device's local steps, each counted with its share of the first one's rate.

    >>> steps_taken(LocalPlan(epochs=5, batch=10), size=48), steps_taken(LocalPlan(epochs=2, decay=0.5), size=48)
    (25.0, 1.5)
    """
    if plan.steps is not None:
        return float(plan.steps)
    batches = 1 if plan.batch is None else max(1, -(-size // plan.batch))
    if plan.decay == 1:
        return float(batches * plan.epochs)
    try:
        return batches * (1 - plan.decay**plan.epochs) / (1 - plan.decay)
    except OverflowError:  # a rate that grows from epoch to epoch
        return math.inf


def drawn(step: LocalStep, device: int, size: int, number: int) -> IntArray | None:
    """Return the examples of a device's step of this number, in ascending order; None: all of them.

    >>> drawn(LocalStep(0.1, 0.0, 7, LocalPlan(batch=2, steps=1)), device=3, size=2, number=0) is None
    True
    """
    batch = step.plan.batch
    if batch is None or batch >= size:
        return None
    return np.sort(rng(step.seed, "local batch", number, device).choice(size, batch, replace=False))


def one_step(plan: LocalPlan, sizes: IntArray) -> bool:
    """Return whether no device takes more than one step, a gradient step on all of its examples.

    FedProx's term is 0 in the first step, and momentum has no past.
    """
    if plan.adam:
        return False
    return (plan.steps or plan.epochs) == 1 and (plan.batch is None or int(sizes.max(initial=0)) <= plan.batch)


class RoundUse(NamedTuple):
    """What a round will ask of its honest updates, known beforehand, for an engine that computes on other machines."""

    round: int
    budget: float  # the l2 norm to which every update is clipped
    weights: Mapping[int, float]  # of updates, by device; empty: all weigh alike
    rows: bool  # whether attackers see the rows


class Cohort(NamedTuple):
    """The devices of a round, without their data: an engine gathers that one block at a time."""

    ids: IntArray
    sizes: IntArray  # [len(ids)]
    gather: Callable[[IntArray], Batch]
    use: RoundUse | None = None  # None: what is gathered is not what the federation's devices hold in a round


def is_one_batch(plan: LocalPlan) -> bool:
    """Return whether every device takes one gradient step on a batch that is drawn for it."""
    return plan.steps == 1 and not plan.adam


def one_batch(cohort: Cohort, step: LocalStep) -> Cohort:
    """Return a cohort of which every device has only the examples of its first step: one minibatch gradient a round."""
    most = step.plan.batch
    if most is None:
        return cohort

    def gather(ids: IntArray) -> Batch:
        batch = cohort.gather(ids)
        firsts = np.cumsum(batch.sizes) - batch.sizes
        sizes = batch.sizes.tolist()
        own = [drawn(step, device, size, 0) for device, size in zip(ids.tolist(), sizes, strict=True)]
        chosen = [np.arange(size) if some is None else some for size, some in zip(sizes, own, strict=True)]
        index = torch.from_numpy(np.concatenate([first + some for first, some in zip(firsts, chosen, strict=True)]))
        return Batch(batch.x[index], batch.y[index], np.minimum(batch.sizes, most))

    return Cohort(cohort.ids, np.minimum(cohort.sizes, most), gather)


class Engine(Protocol):
    """A function that computes updates: takes a cohort, yields blocks, each freed before the next is computed."""

    def __call__(self, theta: Tensor, cohort: Cohort, step: LocalStep) -> Iterator[Block]: ...


def split(cohort: Cohort, bytes_per_client: float, bytes_per_example: float, budget: int) -> list[IntArray]:
    """Return the ids of each block, with devices of equal size adjacent so that they can be computed together.

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
    """Return, for each example of a batch, the position of its client [M]."""
    return torch.from_numpy(np.repeat(np.arange(len(sizes)), sizes))


def few(cohort: Cohort, clients: int = 2, examples: int = 4) -> Batch:
    """Return a batch with the first examples of the largest clients, for probing a model.

    A layer that lets examples see each other shows only where a client has several, and others are there: if all have
    one, the first two of three stand together.
    """
    largest = np.argsort(-cohort.sizes, kind="stable")[: clients + 1]
    batch = cohort.gather(cohort.ids[np.sort(largest[:clients] if cohort.sizes[largest[0]] > 1 else largest)])
    if len(batch.sizes) > 2 and batch.sizes.max() == 1:
        batch = batch._replace(sizes=np.array([2, *batch.sizes[2:]]))
    client = example_clients(batch.sizes).numpy()
    first = np.concatenate([[0], np.cumsum(batch.sizes)])[client]
    keep = torch.from_numpy(np.flatnonzero(np.arange(len(client)) - first < examples))
    return Batch(batch.x[keep], batch.y[keep], np.minimum(batch.sizes, examples))
