"""A new centre of the rows and every row's distance from it, in one sweep over the rows.

Rules that move a centre (Weiszfeld's iteration, centered clipping) repeatedly need an affine combination of the
rows and then each row's distance from it. Both are computed from the same tile of columns while it is in the cache, so
a move costs one pass over the rows, about as much as their mean. Everything is float64: a distance is a sum of squared
differences and never a difference of large squares, so neither a common offset nor one huge row drowns the others.

Partial sums belong to pieces of fixed width, whatever the number of threads, and are added in order: the thread count
changes no bit. Import this module inside functions: it imports numba.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from sparsefed.kernels.vector_kernels import Doubles, Float32, compiled, compiled_fast, over_chunks

PIECE = 1 << 14  # columns per partial sum of squares
TILE_NUMBERS = 200_000  # in all rows together: fits the second-level cache between the two passes
TILE_LEAST, TILE_MOST = 64, 2048  # columns


class Centre(NamedTuple):
    """A point, and the squared distances of the rows from it."""

    vector: Tensor  # float64 [d]
    squares: Tensor  # float64 [n], |row_i - vector|^2


def recentre(rows: Tensor, weights: Tensor, base: Tensor | None = None) -> Centre:
    """Return c = (1 - sum_i w_i) base + sum_i w_i row_i with |row_i - c|^2; base is float64 [d], by default 0.

    >>> recentre(torch.tensor([[0.0, 4.0], [2.0, 0.0]]), torch.tensor([0.25, 0.25]), torch.ones(2)).vector
    tensor([1.0000, 1.5000], dtype=torch.float64)
    """
    if rows.device.type != "cpu":
        return recentre_torch(rows, weights, base)
    return _swept(rows, weights, base, measure=True)


def centre_of(rows: Tensor, weights: Tensor, base: Tensor | None = None) -> Tensor:
    """Return the point c of `recentre` without the distances, which is a little faster."""
    if rows.device.type != "cpu":
        return recentre_torch(rows, weights, base).vector
    return _swept(rows, weights, base, measure=False).vector


def recentre_torch(rows: Tensor, weights: Tensor, base: Tensor | None = None) -> Centre:
    """Compute `recentre` in plain torch operations, for every device."""
    centre = torch.zeros(rows.shape[1], dtype=torch.float64, device=rows.device)
    squares = torch.zeros(rows.shape[0], dtype=torch.float64, device=rows.device)
    if base is not None:
        centre += base * (1 - weights.sum())
    for start in range(0, rows.shape[1], PIECE):  # a float64 copy of all rows would triple their memory
        part = rows[:, start : start + PIECE].double()
        piece = centre[start : start + PIECE]
        piece += weights.to(part) @ part
        squares += (part - piece).square().sum(1)
    return Centre(centre, squares)


def _swept(rows: Tensor, weights: Tensor, base: Tensor | None, *, measure: bool) -> Centre:
    n, d = rows.shape
    array, factors = rows.detach().float().contiguous().numpy(), weights.double().numpy()
    centre = np.zeros(d) if base is None else base.detach().double().numpy() * (1 - factors.sum())
    pieces, width = -(-d // PIECE), max(TILE_LEAST, min(TILE_MOST, TILE_NUMBERS // max(n, 1)))
    squares = np.zeros((pieces, n))
    threads = max(1, min(torch.get_num_threads(), pieces))
    chunks = list(pairwise([pieces * c // threads for c in range(threads + 1)]))
    over_chunks(lambda _, a, b: sweep(array, factors, width, measure, a, b, centre, squares), chunks)
    return Centre(torch.from_numpy(centre), torch.from_numpy(squares.sum(axis=0)))


@compiled
def pull_four(total: Doubles, weights: Doubles, a: Float32, b: Float32, c: Float32, d: Float32) -> None:
    """Add four weighted rows to the total, which is loaded and stored once for all of them."""
    wa, wb, wc, wd = weights[0], weights[1], weights[2], weights[3]  # as scalars: they might alias the total
    for j in range(total.shape[0]):
        total[j] += wa * np.float64(a[j]) + wb * np.float64(b[j]) + wc * np.float64(c[j]) + wd * np.float64(d[j])


@compiled
def pull_one(total: Doubles, weight: np.float64, part: Float32) -> None:
    for j in range(total.shape[0]):
        total[j] += weight * np.float64(part[j])


@compiled_fast
def add_square(part: Float32, centre: Doubles, squares: Doubles, i: int) -> None:
    total = 0.0
    for j in range(part.shape[0]):
        difference = np.float64(part[j]) - centre[j]
        total += difference * difference
    squares[i] += total


@compiled
def sweep(
    rows: Float32, weights: Doubles, width: int, measure: bool, first: int, last: int, centre: Doubles, squares: Doubles
) -> None:
    """Add the weighted rows to the centre, and each row's squares to squares [pieces, n], for pieces first..last."""
    n = rows.shape[0]
    fours = n - n % 4
    for piece in range(first, last):
        stop = min((piece + 1) * PIECE, rows.shape[1])
        for tile in range(piece * PIECE, stop, width):
            end = min(tile + width, stop)
            total = centre[tile:end]
            for i in range(0, fours, 4):
                if np.any(weights[i : i + 4] != 0):
                    # rows[i, tile:end] rather than a slice of all rows, whose stride is not known to be 1
                    a, b, c, d = rows[i, tile:end], rows[i + 1, tile:end], rows[i + 2, tile:end], rows[i + 3, tile:end]
                    pull_four(total, weights[i : i + 4], a, b, c, d)
            for i in range(fours, n):
                pull_one(total, weights[i], rows[i, tile:end])
            if measure:
                for i in range(n):
                    add_square(rows[i, tile:end], total, squares[piece], i)


def rehearse() -> None:
    """Call each kernel once."""
    recentre(torch.ones(5, 2), torch.full((5,), 0.2))
