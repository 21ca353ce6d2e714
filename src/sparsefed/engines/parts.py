"""Cohorts in parts of a fixed number of devices: what machines can share without changing a bit.

Which devices are computed together changes the last bits of their updates. So a part is cut by a value of the config,
never by the memory or the number of machines, and one process that computes part after part gives the same bits as any
number of machines that compute them in any order.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from torch import Tensor

from sparsefed.core.engine import Cohort, Engine, LocalStep
from sparsefed.core.rng import integer_seed
from sparsefed.core.types import Block


def in_parts(engine: Engine, size: int | None, random_layers: bool = False) -> Engine:
    """Return an engine that computes `size` devices at a time; None: as many as it takes by itself.

    Args:
        engine: computes one part.
        size: devices of a part.
        random_layers: whether the model draws, so that each part needs a seed of its own.
    """
    if size is None:
        return engine

    def compute(theta: Tensor, cohort: Cohort, step: LocalStep) -> Iterator[Block]:
        for number, part in enumerate(parts(cohort, size)):
            yield from engine(theta, part, part_step(step, number, random_layers))

    return compute


def parts(cohort: Cohort, size: int | None) -> list[Cohort]:
    """Cut a cohort into parts of `size` devices, those of equal numbers of examples together.

    >>> cohort = Cohort(np.array([7, 8, 9]), np.array([2, 1, 2]), lambda ids: ids)
    >>> [part.ids.tolist() for part in parts(cohort, 2)]
    [[8, 7], [9]]
    """
    if size is None:
        return [cohort]
    order = np.argsort(cohort.sizes, kind="stable")
    cuts = [order[low : low + size] for low in range(0, len(order), size)]
    return [cohort._replace(ids=cohort.ids[cut], sizes=cohort.sizes[cut]) for cut in cuts]


def part_step(step: LocalStep, number: int, random_layers: bool) -> LocalStep:
    """Return the local step of a part; where layers draw, parts after the first draw from seeds of their own."""
    if not random_layers or number == 0:
        return step
    return step._replace(seed=integer_seed(step.seed, "part", number))
