"""CPU kernels for all pairs of rows: squared distances, inner products, and lists of nearest neighbours.

Differences are taken before squaring, so nothing cancels: rows close together far from the origin, or next to an
attacker of norm 1e6, lose nothing. It costs no more than a matrix product, since only half of the pairs are visited and
a subtraction and a multiply-add run in parallel.

Rows are copied, `TILE` coordinates of all of them at a time, into a tile that stays in the cache, and compared there
four by four, so that each loaded number serves four pairs. Within a tile sums have the type of the tile;
across tiles they are float64. Every pair goes through the same operations in the same order, wherever its rows are:
permuting the rows permutes the results, bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt
import torch

from sparsefed.kernels.sliced import SLICE
from sparsefed.kernels.vector_kernels import Counts, Doubles, Float32, Index, Span, compiled, compiled_fast, over_chunks

Tile = npt.NDArray[Any]  # float32 or float64 [m, TILE], m a multiple of 4
Four = tuple[Any, Any, Any, Any]
Flags = npt.NDArray[np.bool_]
Sweep = Callable[[Float32, int, int, Counts, Tile, Doubles], None]
G = TypeVar("G", bound=Callable[..., object])

TILE = 512  # at most 128 sequential additions in each lane of a vector register of 4: see `squared_distances`
NEAR = 64  # rows held in the second-level cache while all others pass
SPAN = 32 * TILE  # columns of a thread at a time

_inlined = cast(Callable[[G], G], compiled_fast)  # for kernels that return a value


@_inlined
def add_squares(sums: Four, x: Any, y: Four) -> Four:
    d0, d1, d2, d3 = x - y[0], x - y[1], x - y[2], x - y[3]
    return (sums[0] + d0 * d0, sums[1] + d1 * d1, sums[2] + d2 * d2, sums[3] + d3 * d3)


@_inlined
def add_products(sums: Four, x: Any, y: Four) -> Four:
    return (sums[0] + x * y[0], sums[1] + x * y[1], sums[2] + x * y[2], sums[3] + x * y[3])


@compiled_fast
def block_squares(a: Tile, b: Tile, sums: Doubles) -> None:
    """Add |a_i - b_j|^2 of four rows and four rows to sums [4, 4]."""
    zero = a.dtype.type(0)
    s0 = s1 = s2 = s3 = (zero, zero, zero, zero)  # tuples, not arrays: they live in registers
    for k in range(a.shape[1]):
        y = (b[0, k], b[1, k], b[2, k], b[3, k])
        s0 = add_squares(s0, a[0, k], y)
        s1 = add_squares(s1, a[1, k], y)
        s2 = add_squares(s2, a[2, k], y)
        s3 = add_squares(s3, a[3, k], y)
    for j in range(4):
        sums[0, j] += s0[j]
        sums[1, j] += s1[j]
        sums[2, j] += s2[j]
        sums[3, j] += s3[j]


@compiled_fast
def block_products(a: Tile, b: Tile, sums: Doubles) -> None:
    """Add <a_i, b_j> of four rows and four rows to sums [4, 4]."""
    zero = a.dtype.type(0)
    s0 = s1 = s2 = s3 = (zero, zero, zero, zero)
    for k in range(a.shape[1]):
        y = (b[0, k], b[1, k], b[2, k], b[3, k])
        s0 = add_products(s0, a[0, k], y)
        s1 = add_products(s1, a[1, k], y)
        s2 = add_products(s2, a[2, k], y)
        s3 = add_products(s3, a[3, k], y)
    for j in range(4):
        sums[0, j] += s0[j]
        sums[1, j] += s1[j]
        sums[2, j] += s2[j]
        sums[3, j] += s3[j]


@compiled
def load(rows: Float32, start: int, stop: int, tile: Tile) -> None:
    """Copy columns start..stop of the rows into the tile, and fill the rest with zeros."""
    for i in range(rows.shape[0]):
        source, target = rows[i, start:stop], tile[i]
        for k in range(source.shape[0]):
            target[k] = source[k]
        for k in range(source.shape[0], target.shape[0]):
            target[k] = 0


@compiled
def sweep_squares(rows: Float32, start: int, stop: int, corners: Counts, tile: Tile, sums: Doubles) -> None:
    """Add columns start..stop of all |row_i - row_j|^2 to sums [m, m], for the blocks at `corners` only."""
    for column in range(start, stop, TILE):
        load(rows, column, min(column + TILE, stop), tile)
        for c in range(corners.shape[0]):
            i, j = corners[c, 0], corners[c, 1]
            block_squares(tile[i : i + 4], tile[j : j + 4], sums[i : i + 4, j : j + 4])


@compiled
def sweep_products(rows: Float32, start: int, stop: int, corners: Counts, tile: Tile, sums: Doubles) -> None:
    """Add columns start..stop of all <row_i, row_j> to sums [m, m], for the blocks at `corners` only."""
    for column in range(start, stop, TILE):
        load(rows, column, min(column + TILE, stop), tile)
        for c in range(corners.shape[0]):
            i, j = corners[c, 0], corners[c, 1]
            block_products(tile[i : i + 4], tile[j : j + 4], sums[i : i + 4, j : j + 4])


def all_pairs(sweep: Sweep, rows: Float32, kind: type[np.floating[Any]]) -> Doubles:
    """Return the symmetric [n, n] matrix that a sweep over contiguous rows [n, d] fills, in tiles of type `kind`.

    The sums over slices of columns are added in their order, and so are those over the spans of a slice: the bits
    depend neither on the number of threads nor on where the slices are computed.
    """
    total = np.zeros((len(rows), len(rows)))
    for low in range(0, rows.shape[1], SLICE):
        total += pairs_of_slice(sweep, rows, kind, low)
    return total


def pairs_of_slice(sweep: Sweep, rows: Float32, kind: type[np.floating[Any]], low: int = 0) -> Doubles:
    """Return the part of `all_pairs` that the slice of columns from `low` on adds."""
    n, m = len(rows), -(-len(rows) // 4) * 4
    spans, corners, total = _spans(low, min(low + SLICE, rows.shape[1])), _corners(m), np.zeros((m, m))
    threads = max(1, torch.get_num_threads())
    for first in range(0, len(spans), threads):
        together = spans[first : first + threads]
        sums = np.zeros((len(together), m, m))
        _sweep_spans(sweep, rows, together, corners, kind, sums)
        for part in sums:
            total += part
    upper: Doubles = np.triu(total[:n, :n])
    upper += np.triu(upper, 1).T
    return upper


def _sweep_spans(
    sweep: Sweep, rows: Float32, spans: list[Span], corners: Counts, kind: type[np.floating[Any]], sums: Doubles
) -> None:
    tile = (-(-len(rows) // 4) * 4, TILE)
    over_chunks(lambda c, a, b: sweep(rows, a, b, corners, np.zeros(tile, kind), sums[c]), spans)


def _corners(m: int) -> Counts:
    """Return the origins of the 4 x 4 blocks on and above the diagonal, in an order that reuses cached rows."""
    corners = [
        (i, j)
        for near in range(0, m, NEAR)
        for i in range(0, min(near + NEAR, m), 4)
        for j in range(max(i, near), min(near + NEAR, m), 4)
    ]
    return np.array(corners, np.int64).reshape(-1, 2)


def _spans(low: int, high: int) -> list[Span]:
    """Cut columns into spans of whole tiles, which threads share.

    >>> _spans(0, 40_000)
    [(0, 16384), (16384, 32768), (32768, 40000)]
    """
    return [(start, min(start + SPAN, high)) for start in range(low, high, SPAN)]


@compiled
def strike(gone: int, alive: Flags, size: int, order: Index, ordered: Doubles) -> None:
    """Remove one row from the neighbour lists of all rows that are alive, closing the gap.

    `order` [n, size] holds the other rows, nearest first, and `ordered` [n, size] their distances.
    """
    for i in range(order.shape[0]):
        if alive[i]:
            k = 0
            while k < size and order[i, k] != gone:
                k += 1
            for j in range(k, size - 1):
                order[i, j] = order[i, j + 1]
                ordered[i, j] = ordered[i, j + 1]
