"""FLAME (Nguyen et al. 2022, FLAME: Taming Backdoors in Federated Learning, Algorithm 1): cluster, clip, add noise.

    c_ij  =  1 - cos(W_i, W_j)                      W_i = theta - u_i, the local models
    B     =  the majority cluster of HDBSCAN(c, min_cluster_size = n // 2 + 1, min_samples = 1)
    S     =  median(||u_1||, ..., ||u_n||)          over all n, not only the cluster
    u     =  (1 / |B|) sum_{i in B} u_i min(1, S / ||u_i||)  +  N(0, (lambda S)^2)

With more than half of the points as the least cluster, HDBSCAN has a short form: no split of its tree leaves two
clusters, so the root is the only one, and the points that stay in it longest are labelled. They are the first connected
component with more than n / 2 points when pairs are joined in the order of their distances; such a component is unique.
The core distance with min_samples = 1 is never more than a pair's own distance, so it changes nothing. This file
implements that short form, in n^2 steps, and the tests compare it with scikit-learn's HDBSCAN.

*Departures.* Pairs that tie (nine digits) with the last one that was needed are joined too, and directions that float32
cannot tell apart (a distance of 1e-14) are the same: so the order of the clients never decides. A vector of norm 0 has
the distance 0 to another one of norm 0, and 1 to everything else. Where the model is not known, the updates themselves
are compared, as many implementations do; `compare = "updates"` asks for that. In mode "uncompressed" an update is a
gradient, and the W_i are the models after a step of rate 1. The noise is drawn for the aggregated update, before
momentum and the learning rate.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Literal, Unpack, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sparsefed.core.errors import ConfigError, unknown
from sparsefed.core.types import Block, Context, State
from sparsefed.defenses.combine import accepted, stack
from sparsefed.defenses.dp_noise import normal
from sparsefed.defenses.options import CommonKeywords
from sparsefed.defenses.pipeline import Combine, Flow, clip_factors, no_state, require
from sparsefed.defenses.rule import rule
from sparsefed.kernels.rows import row_norms, weighted_sum

Compare = Literal["models", "updates"]
Doubles = npt.NDArray[np.float64]
Edge = tuple[float, int, int]  # distance, and the two rows it joins

SAME = 1e-14  # half the square of float32's relative precision: a smaller angle is indistinguishable from rounding
TIE = 1 + 1e-9
TILE_NUMBERS = 1 << 18  # float64 numbers, over all rows, held at a time


@rule(
    paper="Nguyen et al. 2022, FLAME: Taming Backdoors in Federated Learning", needs=("all rows", "model"), audit=True
)
def flame(
    noise: Annotated[float, "lambda: the noise's standard deviation as a share of the median norm; 0 is none"] = 0.001,
    compare: Annotated[Compare, "whose angles are clustered: the local models' (the paper) or the updates'"] = "models",
    **_: Unpack[CommonKeywords],
) -> Combine:
    """The majority cluster by angle, clipped to the median norm, averaged, with a little Gaussian noise."""
    require(0 <= noise < math.inf, f"noise is {noise}, but it is a share of the median norm: choose noise >= 0")
    if compare not in get_args(Compare):
        raise ConfigError(unknown("compare", compare, get_args(Compare)))

    def step(state: State, blocks: Iterable[Block], context: Context) -> Flow:
        rows, senders, *_ = stack(blocks, context)
        if not len(rows):
            return Flow(state, rows.new_zeros(rows.shape[1]), {"selected": 0.0})
        admitted = _admitted(rows, context.theta if compare == "models" else None)
        norms = row_norms(rows)
        median = float(norms.quantile(0.5))
        vector = weighted_sum(rows, admitted * clip_factors(norms, median) / admitted.sum())
        noised = normal(context, "flame", vector).mul_(noise * median).add_(vector) if noise else vector
        return Flow(state, noised, {"selected": float(admitted.sum())}, accepted(senders, admitted))

    return Combine(no_state, step)


def _admitted(rows: Tensor, theta: Tensor | None) -> Tensor:
    return torch.from_numpy(majority(cosine_distances(rows, theta).cpu().numpy())).to(rows.device)


def cosine_distances(rows: Tensor, theta: Tensor | None = None) -> Tensor:
    """Return 1 - cos(w_i, w_j), float64 [n, n], for the models w = theta - u, or without theta for the rows u.

    With v_i = w_i / ||w_i|| - c this is |v_i - v_j|^2 / 2, whatever c is. A centre c among the v_i keeps small angles
    from drowning in 1 - cos: the direction of theta, or that of the row of median norm, which huge rows cannot become.
    """
    norms = row_norms(rows) if theta is None else _model_norms(rows, theta)
    scales = torch.where(norms > 0, 1 / norms, 0.0)[:, None]
    middle = int(norms.argsort()[len(rows) // 2])
    length = 0.0 if theta is None else float(row_norms(theta[None]))
    products = rows.new_zeros((len(rows), len(rows)), dtype=torch.float64)
    for wide, at in _tiles(rows, theta):
        units = wide.mul_(scales)  # a tile is a copy of its own
        units -= units[middle].clone() if at is None else at / (length or 1.0)
        products += units @ units.T
    squares = products.diagonal()
    distances = ((squares[:, None] + squares - 2 * products) / 2).clamp_(min=0)
    empty = norms == 0
    distances[empty[:, None] | empty] = 1.0
    distances[empty[:, None] & empty] = 0.0
    return distances.fill_diagonal_(0)


def _model_norms(rows: Tensor, theta: Tensor) -> Tensor:
    return sum((wide.square().sum(1) for wide, _ in _tiles(rows, theta)), torch.zeros(())).sqrt()


def _tiles(rows: Tensor, theta: Tensor | None) -> Iterator[tuple[Tensor, Tensor | None]]:
    """Yield the compared vectors (and theta) a few columns at a time, in float64."""
    width = max(1, TILE_NUMBERS // len(rows))
    for start in range(0, rows.shape[1], width):
        part = rows[:, start : start + width].double()
        if theta is None:
            yield part, None
        else:
            at = theta[start : start + width].to(part)
            yield at - part, at


def majority(distances: Doubles) -> npt.NDArray[np.bool_]:
    """Return the first component of more than half of the points when pairs are joined by distance, ties included.

    >>> majority(np.abs(np.subtract.outer([0.0, 1.0, 2.0, 9.0], [0.0, 1.0, 2.0, 9.0])))
    array([ True,  True,  True, False])
    """
    labels, inside, radius = np.arange(len(distances)), 0, math.inf
    for distance, i, j in sorted(_spanning_tree(distances)):
        if distance > radius:
            break
        labels[labels == labels[j]] = labels[i]
        if math.isinf(radius) and 2 * np.count_nonzero(labels == labels[i]) > len(labels):
            inside, radius = i, distance * TIE + SAME
    members: npt.NDArray[Any] = labels == labels[inside]
    return members


def _spanning_tree(distances: Doubles) -> Iterator[Edge]:
    """Yield the n - 1 edges of a minimum spanning tree (Prim): below any radius it joins what all pairs would."""
    outside = np.arange(1, len(distances))
    nearest, source = distances[0, 1:].copy(), np.zeros(len(outside), np.int64)
    while len(outside):
        at = int(nearest.argmin())
        new = int(outside[at])
        yield float(nearest[at]), int(source[at]), new
        outside, nearest, source = np.delete(outside, at), np.delete(nearest, at), np.delete(source, at)
        closer = distances[new, outside] < nearest
        nearest[closer], source[closer] = distances[new, outside[closer]], new
