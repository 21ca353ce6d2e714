"""CPU kernels of the count sketch: numba, one tile of coordinates at a time, with hashes computed on the fly.

A tile holds the coordinates that share their high character, so that its hashes are one number and two runs of a table,
read in order: vector instructions throughout, and only the cells of the sketch are accessed at random.

A row of a sketch belongs to one thread, which adds the coordinates in ascending order; estimates are coordinate by
coordinate. So no result depends on the number of threads.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import numpy.typing as npt

from sparsefed.kernels import vector_kernels as kernels
from sparsefed.kernels.sketch import LOW
from sparsefed.kernels.vector_kernels import MAGNITUDE, Bits, Counts, Float32, Index, Span, compiled

COLUMN_BITS = np.uint64(31)
FILTER_FROM = 1 << 18  # coordinates; below, computing all estimates is fast enough
FILTER_SHARE = 8  # the filter pays for k up to d / 8
FILTER_ROWS = 15  # the largest count in half a byte
SAMPLE = 13  # prime, so that it does not resonate with the shapes of layers

Bytes = npt.NDArray[np.uint8]
Tables = tuple[Bits, Bits, Bits]  # high, low, both


@compiled
def hash_tile(high: np.uint32, low: Bits, both: Bits, columns: np.uint64, cells: Bits, signs: Bits) -> None:
    """Compute the column and sign (as the sign bit of a float32) of each coordinate of a tile."""
    for q in range(cells.shape[0]):
        h = high ^ low[q] ^ both[q]
        cells[q] = ((np.uint64(h) >> np.uint64(1)) * columns) >> COLUMN_BITS
        signs[q] = h << np.uint32(31)


@compiled
def add_rows(
    bits: Bits, high: Bits, low: Bits, both: Bits, columns: np.uint64, start: int, stop: int, table: Float32
) -> None:
    """Compute rows start..stop of the sketch [r, c] of the vector with these bits."""
    cells, signed = np.empty(LOW, np.uint32), np.empty(LOW, np.uint32)
    values = signed.view(np.float32)
    for j in range(start, stop):
        row = table[j]
        for t in range(high.shape[1]):
            part = bits[t * LOW : (t + 1) * LOW]
            n = part.shape[0]
            hash_tile(high[j, t], low[j], both[j, t:], columns, cells[:n], signed[:n])
            for q in range(n):
                signed[q] ^= part[q]
            for q in range(n):
                row[cells[q]] += values[q]


@compiled
def exchange(x: Float32, y: Float32) -> None:
    """Move the smaller of each pair to x and the larger to y."""
    for q in range(x.shape[0]):
        u, v = x[q], y[q]
        x[q] = min(u, v)
        y[q] = max(u, v)


@compiled
def median_rows(values: Float32, n: int, out: Float32) -> None:
    """Compute the median of the first n columns of an odd number of rows, overwriting `values`."""
    rows = values.shape[0]
    for sunk in range(rows // 2 + 1):  # each sweep sinks the largest value left: the last one, the median
        for j in range(rows - 1 - sunk):
            exchange(values[j, :n], values[j + 1, :n])
    median = values[rows // 2]
    for q in range(n):
        out[q] = median[q] + np.float32(0)  # -0.0 becomes 0.0: the result must not depend on the sorting network


@compiled
def estimate(
    table: Bits, high: Bits, low: Bits, both: Bits, columns: np.uint64, tiles: Span, step: int, d: int, out: Float32
) -> None:
    """Compute the medians over r rows for every step-th of these tiles; tile t goes to place t / step of `out`."""
    rows = table.shape[0]
    cells, signs = np.empty(LOW, np.uint32), np.empty(LOW, np.uint32)
    bits = np.empty((rows, LOW), np.uint32)
    values = bits.view(np.float32)
    for t in range(tiles[0], tiles[1], step):
        n = min(LOW, d - t * LOW)
        for j in range(rows):
            hash_tile(high[j, t], low[j], both[j, t:], columns, cells[:n], signs[:n])
            row, found = table[j], bits[j]
            for q in range(n):
                found[q] = row[cells[q]] ^ signs[q]
        median_rows(values, n, out[t // step * LOW :])


@compiled
def classify(table: Bits, least: np.uint32, marks: Bytes) -> None:
    """Mark cells: 1 if at least `least` (bits of a positive number), 16 if at most its negative, else 0."""
    for j in range(table.shape[0]):
        row, marked = table[j], marks[j]
        for b in range(row.shape[0]):
            large = np.uint32((row[b] & MAGNITUDE) >= least)
            marked[b] = large << ((row[b] >> np.uint32(31)) << np.uint32(2))


@compiled
def collect(
    marks: Bytes, high: Bits, low: Bits, both: Bits, columns: np.uint64, tiles: Span, d: int, out: Index, found: Counts
) -> None:
    """Collect, ascending, the coordinates of these tiles whose |median| reaches the threshold, and count them.

    It does if more than half of the rows do, with one sign. The two counts of a coordinate are the two halves
    of a byte; a sign of -1 swaps the halves of a mark.
    """
    rows, at, half = marks.shape[0], 0, np.uint32(marks.shape[0] // 2)
    cells, signs = np.empty(LOW, np.uint32), np.empty(LOW, np.uint32)
    got, counts = np.empty(LOW, np.uint32), np.empty(LOW, np.uint32)
    for t in range(tiles[0], tiles[1]):
        n = min(LOW, d - t * LOW)
        counts[:] = 0
        for j in range(rows):
            hash_tile(high[j, t], low[j], both[j, t:], columns, cells[:n], signs[:n])
            marked = marks[j]
            for q in range(n):
                got[q] = marked[cells[q]]
            for q in range(n):  # separate from the look-up, so that it uses vector instructions
                counts[q] += ((got[q] | got[q] << np.uint32(8)) >> (signs[q] >> np.uint32(29))) & np.uint32(0x11)
        for q in range(n):
            counts[q] = np.uint32((counts[q] & np.uint32(15)) > half) | np.uint32((counts[q] >> np.uint32(4)) > half)
        for q in range(n):  # without a branch: written always, kept if it counts
            out[at] = t * LOW + q
            at += counts[q]
    found[0] = at


@compiled
def estimate_some(
    table: Bits, high: Bits, low: Bits, both: Bits, columns: np.uint64, indices: Index, out: Float32
) -> None:
    """Compute the medians for these coordinates."""
    rows = table.shape[0]
    one, other = np.empty(LOW, np.uint32), np.empty(LOW, np.uint32)
    cells, signs = np.empty(LOW, np.uint32), np.empty(LOW, np.uint32)
    bits = np.empty((rows, LOW), np.uint32)
    for batch in range(0, indices.shape[0], LOW):
        some = indices[batch : batch + LOW]
        n = some.shape[0]
        for j in range(rows):
            for q in range(n):
                a, b = some[q] // LOW, some[q] % LOW
                one[q] = high[j, a] ^ low[j, b]
                other[q] = both[j, a + b]
            hash_tile(np.uint32(0), one, other, columns, cells[:n], signs[:n])
            for q in range(n):
                bits[j, q] = table[j, cells[q]] ^ signs[q]
        median_rows(bits.view(np.float32), n, out[batch:])


def row_spans(rows: int, d: int) -> list[Span]:
    """Return the rows of a sketch, divided among as many threads as d coordinates are worth."""
    threads = min(rows, len(kernels.spans(rows * d)))
    return list(pairwise(rows * c // threads for c in range(threads + 1)))


def tile_spans(d: int) -> list[Span]:
    """Return all tiles of d coordinates in chunks, one per thread that torch may use."""
    inner = [b // LOW for _, b in kernels.spans(d)[:-1]]
    return list(pairwise([0, *inner, -(-d // LOW)]))


def sketch(x: Float32, tables: Tables, columns: int) -> Float32:
    """Return the table [r, c] of a contiguous vector."""
    rows, c, bits = len(tables[0]), np.uint64(columns), x.view(np.uint32)
    table = np.zeros((rows, columns), np.float32)
    kernels.over_chunks(lambda _, a, b: add_rows(bits, *tables, c, a, b, table), row_spans(rows, len(x)))
    return table


def estimates(table: Float32, tables: Tables, d: int) -> Float32:
    """Return the estimate of every coordinate [d]."""
    out, c, bits = np.empty(d, np.float32), np.uint64(table.shape[1]), table.view(np.uint32)
    kernels.over_chunks(lambda _, a, b: estimate(bits, *tables, c, (a, b), 1, d, out), tile_spans(d))
    return out


def heavy_hitters(table: Float32, tables: Tables, d: int, k: int) -> tuple[Index, Float32]:
    """Return the k coordinates of largest |estimate|, ascending, and their estimates.

    If k is small compared with d, a sample of the tiles bounds the k-th largest estimate from below; candidates are
    found in a map of the table with one byte per cell, which stays in the cache. If the bound was too high, all
    estimates are computed: the result is the same.
    """
    if d >= FILTER_FROM and k <= d // FILTER_SHARE and len(table) <= FILTER_ROWS:
        least = likely_least(table, tables, d, k)
        candidates = at_least(table, tables, d, least) if least > 0 else np.empty(0, np.int64)
        if len(candidates) >= k:
            values = np.empty(len(candidates), np.float32)
            estimate_some(table.view(np.uint32), *tables, np.uint64(table.shape[1]), candidates, values)
            chosen = kernels.topk(values, k)
            return candidates[chosen], values[chosen]
    out = estimates(table, tables, d)
    indices = kernels.topk(out, k)
    return indices, out[indices]


def likely_least(table: Float32, tables: Tables, d: int, k: int) -> np.uint32:
    """Return the bits of a magnitude that, judging by every SAMPLE-th tile, more than k estimates reach."""
    tiles = d // LOW  # complete tiles
    out = np.empty(-(-tiles // SAMPLE) * LOW, np.float32)
    estimate(table.view(np.uint32), *tables, np.uint64(table.shape[1]), (0, tiles), SAMPLE, d, out)
    expected = k * len(out) / d
    many = int(1.1 * expected + 6 * expected**0.5) + 8
    if many > len(out):
        return np.uint32(0)
    smallest = np.abs(out[kernels.topk(out, many)]).min()
    return np.uint32(smallest.view(np.uint32))


def at_least(table: Float32, tables: Tables, d: int, least: np.uint32) -> Index:
    """Return, ascending, the coordinates whose |estimate| is at least `least` (bits of a positive number)."""
    chunks, c = tile_spans(d), np.uint64(table.shape[1])
    marks, found = np.empty(table.shape, np.uint8), np.zeros((len(chunks), 1), np.int64)
    parts = [np.empty((b - a) * LOW, np.int64) for a, b in chunks]  # unwritten pages take no memory
    classify(table.view(np.uint32), least, marks)
    kernels.over_chunks(lambda i, a, b: collect(marks, *tables, c, (a, b), d, parts[i], found[i]), chunks)
    return np.concatenate([part[: count[0]] for part, count in zip(parts, found, strict=True)])
