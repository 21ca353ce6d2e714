"""CPU kernels on vectors: numba, each over one chunk [start, stop) of a flat float32 vector.

Top-k works on bit patterns: with the sign bit cleared, the bits of a float32, read as an integer, are in the order of
|x| (and NaN above infinity). Two passes of a histogram select find the k-th largest exactly: first the high 16 bits of
every coordinate, then the low 16 bits of those that share the boundary's high bits.

Nothing is compiled at import; `cache=True` keeps compiled code for the next process. Kernels release the GIL and
`over_chunks` gives each a thread. Numba's own thread pool is not used: it aborts the process after a fork or (in its
fallback without OpenMP) when two threads call it at once. Counts are integers, sums are taken tile by tile and chunks
begin at tiles, the rest is coordinate by coordinate: so no result depends on the number of chunks.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any, TypeVar, cast

import numba
import numpy as np
import numpy.typing as npt
import torch

Float32 = npt.NDArray[np.float32]
Bits = npt.NDArray[np.uint32]
Halves = npt.NDArray[np.uint16]  # the bits of bfloat16: the upper half of a float32
Doubles = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]
Index = npt.NDArray[np.int64]
Span = tuple[int, int]
F = TypeVar("F", bound=Callable[..., None])

HIGH_BINS = 1 << 15  # the high 16 bits without the sign
LOW_BINS = 1 << 16
MAGNITUDE = np.uint32(0x7FFFFFFF)
GLANCE = 128  # coordinates that `collect` examines at once
TILE = 2048  # coordinates that stay in the first-level cache between the arithmetic and the counting
MIN_CHUNK = 1 << 16  # below this, starting a thread costs more than the work


def compiled(function: F, **more: Any) -> F:
    """Compile a function to machine code on its first call, cached on disk if a folder is writable."""
    options: dict[str, Any] = {"nogil": True, "error_model": "numpy", **more}
    try:
        return cast(F, numba.njit(cache=True, **options)(function))
    except RuntimeError:  # numba found no writable cache folder: compile anew in each process
        return cast(F, numba.njit(**options)(function))


def compiled_fast(function: F) -> F:
    """Compile like `compiled`, letting sums be reordered, which allows vector instructions."""
    return compiled(function, fastmath={"reassoc", "contract"})


def spans(d: int) -> list[Span]:
    """Cut [0, d) into chunks of similar length, one per thread that torch may use; all but the last are whole tiles."""
    chunks = max(1, min(torch.get_num_threads(), d // MIN_CHUNK))
    edges = [d * c // chunks // TILE * TILE for c in range(chunks)]
    return list(pairwise([*edges, d]))


def over_chunks(work: Callable[[int, int, int], None], chunks: list[Span]) -> None:
    """Run `work(chunk number, start, stop)` for every chunk, in parallel where there are several."""
    if len(chunks) == 1:
        work(0, *chunks[0])
        return
    with ThreadPoolExecutor(len(chunks) - 1) as pool:
        others = [pool.submit(work, c, *chunks[c]) for c in range(1, len(chunks))]
        work(0, *chunks[0])
        for other in others:
            other.result()


@compiled
def widen(part: Halves, wide: Bits) -> None:
    """Convert bfloat16 bits to float32 bits, by shifting them up."""
    for j in range(part.shape[0]):
        wide[j] = np.uint32(part[j]) << np.uint32(16)


@compiled_fast
def tile_moments(part: Float32, other: Float32, sums: Doubles) -> None:
    """Add |part|^2 and <part, other> to the two sums: float32 within a tile, float64 across."""
    square, dot = np.float32(0), np.float32(0)
    for j in range(part.shape[0]):
        square += part[j] * part[j]
        dot += part[j] * other[j]
    sums[0] += square
    sums[1] += dot


@compiled_fast
def float_squares(rows: Float32, start: int, stop: int, squares: Doubles) -> None:
    """Compute |row|^2 of rows start..stop [m, d], squared and summed in float64."""
    for i in range(start, stop):
        total = 0.0
        for j in range(rows.shape[1]):
            total += np.float64(rows[i, j]) * np.float64(rows[i, j])
        squares[i] = total


@compiled
def half_moments(rows: Halves, theta: Float32, start: int, stop: int, moments: Doubles) -> None:
    """Add |row|^2 and <row, theta> of the bfloat16 rows start..stop [m, K] to moments [m, 2]."""
    wide = np.empty(TILE, np.uint32)
    values = wide.view(np.float32)
    for i in range(start, stop):
        for tile in range(0, rows.shape[1], TILE):
            part = rows[i, tile : tile + TILE]
            widen(part, wide)
            tile_moments(values[: part.shape[0]], theta[tile : tile + TILE], moments[i])


@compiled
def float_moments(rows: Float32, theta: Float32, start: int, stop: int, moments: Doubles) -> None:
    """Add |row|^2 and <row, theta> of the float32 rows start..stop [m, K] to moments [m, 2]."""
    for i in range(start, stop):
        for tile in range(0, rows.shape[1], TILE):
            tile_moments(rows[i, tile : tile + TILE], theta[tile : tile + TILE], moments[i])


@compiled
def tile_add(total: Float32, weight: np.float32, part: Float32) -> None:
    for j in range(part.shape[0]):
        total[j] += weight * part[j]


@compiled
def half_weigh(rows: Halves, weights: Float32, start: int, stop: int, out: Float32) -> None:
    """Compute columns start..stop of sum_i weights[i] rows[i] for bfloat16 rows; a weight of 0 skips its row."""
    wide = np.empty(TILE, np.uint32)
    values = wide.view(np.float32)
    for tile in range(start, stop, TILE):
        end = min(tile + TILE, stop)
        out[tile:end] = 0
        for i in range(rows.shape[0]):
            if weights[i] != 0:
                widen(rows[i, tile:end], wide)
                tile_add(out[tile:end], weights[i], values[: end - tile])


@compiled
def float_weigh(rows: Float32, weights: Float32, start: int, stop: int, out: Float32) -> None:
    """Compute columns start..stop of sum_i weights[i] rows[i] for float32 rows; a weight of 0 skips its row."""
    for tile in range(start, stop, TILE):
        end = min(tile + TILE, stop)
        out[tile:end] = 0
        for i in range(rows.shape[0]):
            if weights[i] != 0:
                tile_add(out[tile:end], weights[i], rows[i, tile:end])


@compiled
def count_high(bits: Bits, start: int, stop: int, counts: Counts) -> None:
    """Count, as the first pass, the coordinates with each value of the high 16 bits of |x|."""
    for b in bits[start:stop]:
        counts[(b & MAGNITUDE) >> 16] += 1


@compiled_fast
def tile_mass(part: Float32, mass: Doubles) -> None:
    """Compute |part|_1 and |part|_2^2, in float64."""
    total, square = 0.0, 0.0
    for j in range(part.shape[0]):
        x = np.float64(part[j])
        total += abs(x)
        square += x * x
    mass[0] = total
    mass[1] = square


@compiled
def accumulate_count(
    update: Float32,
    momentum: Float32,
    memory: Float32,
    rho: np.float32,
    through_momentum: bool,
    new_momentum: Float32,
    new_memory: Float32,
    new_bits: Bits,
    start: int,
    stop: int,
    counts: Counts,
    masses: Doubles,
) -> None:
    """Update momentum and memory, and count |W| and its mass while the tile is in the cache.

    R = rho R + u; W = W + R (or + u). `new_bits` is the memory of `new_memory`, seen as integers; `masses` has a row
    for each tile of the vector.
    """
    for tile in range(start, stop, TILE):
        end = min(tile + TILE, stop)
        u, r, w = update[tile:end], momentum[tile:end], memory[tile:end]
        r_out, w_out = new_momentum[tile:end], new_memory[tile:end]
        for i in range(u.shape[0]):
            r_out[i] = rho * r[i] + u[i]
        if through_momentum:
            for i in range(u.shape[0]):
                w_out[i] = w[i] + r_out[i]
        else:
            for i in range(u.shape[0]):
                w_out[i] = w[i] + u[i]
        for b in new_bits[tile:end]:
            counts[(b & MAGNITUDE) >> 16] += 1
        tile_mass(w_out, masses[tile // TILE])


@compiled
def collect(bits: Bits, start: int, stop: int, least: np.uint32, out: Index) -> None:
    """Collect, ascending, the coordinates whose |x| has bits of at least `least`."""
    at = 0
    for tile in range(start, stop, GLANCE):
        part = bits[tile : min(tile + GLANCE, stop)]
        hits = np.int32(0)
        for j in range(part.shape[0]):  # one vector comparison for many coordinates: few tiles have a candidate
            hits += np.int32((part[j] & MAGNITUDE) >= least)
        if hits > 0:
            for j in range(part.shape[0]):
                if part[j] & MAGNITUDE >= least:
                    out[at] = tile + j
                    at += 1


@compiled
def settle(bits: Bits, candidates: Index, high: int, needed: int, counts: Counts, chosen: Index) -> None:
    """Take, as the second pass, the `needed` largest candidates on the boundary `high`, ties by lowest index."""
    for i in candidates:
        b = bits[i] & MAGNITUDE
        if b >> 16 == high:
            counts[b & 0xFFFF] += 1
    low = LOW_BINS - 1
    while counts[low] < needed:
        needed -= counts[low]
        low -= 1
    threshold = (high << 16) | low
    at = 0
    for i in candidates:
        b = bits[i] & MAGNITUDE
        if b > threshold:
            chosen[at] = i
            at += 1
        elif b == threshold and needed > 0:
            chosen[at] = i
            at += 1
            needed -= 1


def select(bits: Bits, k: int, chunks: list[Span], counts: Counts) -> Index:
    """Return the ascending indices of the k largest |x| from the first pass's counts [chunks, HIGH_BINS]."""
    from_top = np.cumsum(counts.sum(axis=0)[::-1])
    place = int(np.searchsorted(from_top, k))
    high = HIGH_BINS - 1 - place
    needed = k - (int(from_top[place - 1]) if place else 0)
    offsets = np.concatenate([[0], np.cumsum(counts[:, high:].sum(axis=1))])
    candidates = np.empty(int(offsets[-1]), np.int64)
    least = np.uint32(high << 16)
    over_chunks(lambda c, a, b: collect(bits, a, b, least, candidates[offsets[c] : offsets[c + 1]]), chunks)
    if len(candidates) == k:
        return candidates
    chosen = np.empty(k, np.int64)
    settle(bits, candidates, high, needed, np.zeros(LOW_BINS, np.int64), chosen)
    return chosen


def topk(x: Float32, k: int) -> Index:
    """Return the ascending indices of the k largest |x| of a contiguous vector, by both passes."""
    bits, chunks = x.view(np.uint32), spans(len(x))
    counts = np.zeros((len(chunks), HIGH_BINS), np.int64)
    over_chunks(lambda c, a, b: count_high(bits, a, b, counts[c]), chunks)
    return select(bits, k, chunks, counts)


def accumulate_topk(
    update: Float32, momentum: Float32, memory: Float32, k: int, rho: float, through_momentum: bool
) -> tuple[Float32, Float32, Index, Doubles]:
    """Return new momentum, new memory W (not masked yet), its top k, and |W|_1 with |W|_2^2.

    Takes one sweep over the vectors and one collection.
    """
    chunks = spans(len(update))
    counts = np.zeros((len(chunks), HIGH_BINS), np.int64)
    masses = np.empty((-(-len(update) // TILE), 2))
    new_momentum, new_memory = np.empty_like(update), np.empty_like(update)
    bits, factor = new_memory.view(np.uint32), np.float32(rho)

    def sweep(c: int, a: int, b: int) -> None:
        accumulate_count(
            update, momentum, memory, factor, through_momentum, new_momentum, new_memory, bits, a, b, counts[c], masses
        )

    over_chunks(sweep, chunks)
    return new_momentum, new_memory, select(bits, k, chunks, counts), masses.sum(axis=0)
