"""Nearest-neighbour mixing: every update becomes the mean of those around it, before any rule sees it.

Fixing by Mixing: A Recipe for Optimal Byzantine ML under Heterogeneity (Allouah et al. 2023, Algorithm 2):

    y_i  =  the mean of the n - f updates nearest to u_i, u_i itself among them

Defined for f < n; the paper's guarantee is for f < n / 2.

*Departures.* Where several updates are equally far from u_i and not all of them find a place among the n - f, they
share the places that are left equally. The paper leaves such ties open; this way the order of clients decides nothing.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sparsefed.core.types import Context
from sparsefed.defenses.combine import Pre, Stack, Tolerance
from sparsefed.defenses.parameter_types import Attackers
from sparsefed.kernels.compilation import warm_up
from sparsefed.kernels.distances import rehearse, squared_distances


def nnm(f: Attackers) -> Pre:
    """Replace each update by the mean of the n - f updates nearest to it."""
    tolerance = Tolerance("nnm", f, lambda n: n - 1)
    warm_up(rehearse)  # a pre-aggregation has no init of its own, so its kernels are compiled when it is built

    def mix(given: Stack, context: Context) -> Stack:  # noqa: ARG001
        bears = tolerance.among(given)
        if bears < 0:
            return given
        weights = mixing(squared_distances(given.rows), len(given.rows) - bears)
        return given._replace(
            rows=weights.to(torch.float32) @ given.rows, stats={**given.stats, **tolerance.stats(bears)}
        )

    return Pre(mix, tolerance.same_size)


def mixing(distances: Tensor, k: int) -> Tensor:
    """Return the weight of row j in the new row i, float64 [n, n]: 1/k for each of the k nearest, ties share.

    >>> mixing(torch.tensor([[0.0, 1.0, 1.0], [1.0, 0.0, 4.0], [1.0, 4.0, 0.0]]), 2)
    tensor([[0.5000, 0.2500, 0.2500],
            [0.5000, 0.5000, 0.0000],
            [0.5000, 0.0000, 0.5000]], dtype=torch.float64)
    """
    limit = distances.kthvalue(k, dim=1, keepdim=True).values
    nearer, level = distances < limit, distances == limit
    share = (k - nearer.sum(1, keepdim=True)) / level.sum(1, keepdim=True)
    return (nearer + level * share.double()) / k
