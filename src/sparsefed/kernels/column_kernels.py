"""CPU kernels for order statistics of columns: numba, each over the columns [start, stop) of float32 rows [n, d].

One tile of columns is processed at a time, and every inner loop runs over the columns of the tile, so that one vector
instruction handles many of them; no step branches on a value. There are two ways to drop the f smallest and f largest:

- few (`trim_few`): keep them aside. A new value is compared with each kept one, which keeps the smaller (or the
  larger) of both; the value left at the end is not among the extremes so far and is added to the sum. 2 f exchanges a
  value.
- many (`trim_many`): find the smallest and the largest survivor, bit by bit. Float32 bits, with the magnitude
  of negative numbers flipped, are in the order of the values as integers. The value of rank r has the largest 16-bit
  prefix p with at most r prefixes below p: 16 counts find p, and 16 more its low half, whatever r and the values.

Only survivors are ever added up, in float64: subtracting the extremes from a total would drown honest values in an
attacker's. Inputs are finite. Columns do not depend on each other, so no result depends on the number of chunks.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sparsefed.kernels.vector_kernels import Doubles, Float32, compiled

Bits = npt.NDArray[np.int32]  # float32 read as integers, or keys in the same order as the values
Halves = npt.NDArray[np.int16]  # of keys; the low half is shifted by LEAST, to be compared as signed
Votes = npt.NDArray[np.int32]

WIDTH = 128  # columns per tile: its halves fit the second-level cache for a thousand rows
GROUP = 4  # rows compared with the kept extremes together: a kept value is read and written once for all of them
STRIDE = 8  # rows counted together, for the same reason
LEAST, MOST = np.int16(-(1 << 15)), np.int16((1 << 15) - 1)
MAGNITUDE, LOW = np.int32(0x7FFFFFFF), np.int32(0xFFFF)
MAX_ROWS = int(MOST)  # counts are 16-bit numbers too


@compiled
def take(rows: Float32, first: int, last: int, start: int, width: int, out: Float32) -> None:
    """Copy rows first..last of a tile, whose columns are far apart in memory, to contiguous memory."""
    for i in range(last - first):
        row = rows[first + i, start : start + width]  # an index that may be negative could not be vectorised
        for j in range(width):
            out[i, j] = row[j]


@compiled
def fill(x: Float32, first: int, width: int, value: float) -> None:
    """Fill the unused rows of a group, from `first` on, with a neutral value."""
    for i in range(first, GROUP):
        for j in range(width):
            x[i, j] = value


@compiled
def push_low(kept: Float32, k: int, x: Float32, width: int) -> None:
    """Compare each of a group's rows with kept[k] in turn: the smaller is kept, the larger passed on."""
    for j in range(width):
        least = kept[k, j]
        a, b, c, d = x[0, j], x[1, j], x[2, j], x[3, j]
        least, a = (least, a) if least < a else (a, least)
        least, b = (least, b) if least < b else (b, least)
        least, c = (least, c) if least < c else (c, least)
        least, d = (least, d) if least < d else (d, least)
        x[0, j], x[1, j], x[2, j], x[3, j] = a, b, c, d
        kept[k, j] = least


@compiled
def push_high(kept: Float32, k: int, x: Float32, width: int) -> None:
    """Compare each of a group's rows with kept[k] in turn: the larger is kept, the smaller passed on."""
    for j in range(width):
        most = kept[k, j]
        a, b, c, d = x[0, j], x[1, j], x[2, j], x[3, j]
        a, most = (a, most) if a < most else (most, a)
        b, most = (b, most) if b < most else (most, b)
        c, most = (c, most) if c < most else (most, c)
        d, most = (d, most) if d < most else (most, d)
        x[0, j], x[1, j], x[2, j], x[3, j] = a, b, c, d
        kept[k, j] = most


@compiled
def add_group(total: Doubles, x: Float32, width: int) -> None:
    for j in range(width):
        total[j] += (np.float64(x[0, j]) + np.float64(x[1, j])) + (np.float64(x[2, j]) + np.float64(x[3, j]))


@compiled
def trim_few(rows: Float32, f: int, start: int, stop: int, out: Float32) -> None:
    """Compute the mean of each column without its f smallest and f largest values; n > 2 f."""
    n = rows.shape[0]
    low, high = np.empty((f, WIDTH), np.float32), np.empty((f + GROUP, WIDTH), np.float32)
    x, total = np.empty((GROUP, WIDTH), np.float32), np.empty(WIDTH, np.float64)
    for tile in range(start, stop, WIDTH):
        width = min(WIDTH, stop - tile)
        take(rows, 0, f, tile, width, low)
        for i in range(f, 2 * f, GROUP):  # of the first 2 f rows, the f smallest stay low and the others become high
            live = min(GROUP, 2 * f - i)
            take(rows, i, i + live, tile, width, x)
            fill(x, live, width, np.inf)
            for k in range(f):
                push_low(low, k, x, width)
            take(x, 0, GROUP, 0, width, high[i - f :])
        for j in range(width):
            total[j] = 0
        for i in range(2 * f, n, GROUP):
            live = min(GROUP, n - i)
            take(rows, i, i + live, tile, width, x)
            for k in range(f):
                push_low(low, k, x, width)
            for k in range(f):
                push_high(high, k, x, width)
            fill(x, live, width, 0.0)  # unused rows of the last, short group; no later row is compared with them
            add_group(total, x, width)
        for j in range(width):
            out[tile + j] = total[j] / (n - 2 * f)


@compiled
def split_keys(bits: Bits, start: int, width: int, high: Halves, low: Halves) -> None:
    """Split a tile's keys into halves; rows beyond the last get the largest key, which no count includes."""
    n = bits.shape[0]
    for i in range(n):
        row = bits[i, start : start + width]
        for j in range(width):
            b = row[j]
            key = b ^ ((b >> np.int32(31)) & MAGNITUDE)
            high[i, j] = np.int16(key >> np.int32(16))
            low[i, j] = np.int16((key & LOW) + LEAST)
    for i in range(n, high.shape[0]):
        for j in range(width):
            high[i, j] = MOST
            low[i, j] = MOST


@compiled
def count_below(keys: Halves, pivot: Halves, width: int, count: Halves) -> None:
    """Count the keys of each column that are below its pivot."""
    for j in range(width):
        count[j] = 0
    for i in range(0, keys.shape[0], STRIDE):
        for j in range(width):
            p = pivot[j]
            count[j] += (
                np.int16(keys[i, j] < p)
                + np.int16(keys[i + 1, j] < p)
                + np.int16(keys[i + 2, j] < p)
                + np.int16(keys[i + 3, j] < p)
                + np.int16(keys[i + 4, j] < p)
                + np.int16(keys[i + 5, j] < p)
                + np.int16(keys[i + 6, j] < p)
                + np.int16(keys[i + 7, j] < p)
            )


@compiled
def descend(keys: Halves, width: int, rank: Halves, found: Halves) -> None:
    """Find the key of this rank in each column, from the highest bit down; `rank` becomes its rank among equals."""
    pivot, count, below = np.empty_like(found), np.empty_like(found), np.zeros_like(found)
    for j in range(width):
        found[j] = LEAST
    for bit in range(15, -1, -1):
        for j in range(width):
            pivot[j] = np.int16(found[j] + (1 << bit))
        count_below(keys, pivot, width, count)
        for j in range(width):
            # Read everything first: a read inside a condition becomes a branch, and half of those are mispredicted.
            p, f, c, b = pivot[j], found[j], count[j], below[j]
            reached = c <= rank[j]
            found[j] = p if reached else f
            below[j] = c if reached else b
    for j in range(width):
        rank[j] -= below[j]


@compiled
def nth(high: Halves, low: Halves, rank: int, width: int, among: Halves, found: Bits) -> None:
    """Find the bits of each column's value of this rank (0: the smallest); `among` is scratch of the tile's shape."""
    ranks = np.full(found.shape[0], np.int16(rank))
    upper, lower = np.empty_like(ranks), np.empty_like(ranks)
    descend(high, width, ranks, upper)
    for i in range(high.shape[0]):
        for j in range(width):
            key = low[i, j]
            among[i, j] = key if high[i, j] == upper[j] else MOST
    descend(among, width, ranks, lower)
    for j in range(width):
        key = (np.int32(upper[j]) << np.int32(16)) | (np.int32(lower[j]) - np.int32(LEAST))
        found[j] = key ^ ((key >> np.int32(31)) & MAGNITUDE)


@compiled
def add_between(rows: Float32, f: int, tile: int, width: int, least: Float32, most: Float32, out: Float32) -> None:
    """Compute the mean of each column's n - 2 f values from `least`, the smallest, to `most`, the largest."""
    n = rows.shape[0]
    total, to_least, to_most = np.zeros(WIDTH, np.float64), np.zeros(WIDTH, np.int32), np.zeros(WIDTH, np.int32)
    for i in range(n):
        row = rows[i, tile : tile + width]
        for j in range(width):
            x, first, last = row[j], least[j], most[j]
            total[j] += np.float64(x if (first < x) & (x < last) else np.float32(0))
            to_least[j] += np.int32(x <= first)
            to_most[j] += np.int32(x < last)
    for j in range(width):  # values equal to a bound survive as often as they have ranks from f to n - f - 1
        ends = (to_least[j] - f) * np.float64(least[j]) + (n - f - to_most[j]) * np.float64(most[j])
        out[tile + j] = (total[j] + ends) / (n - 2 * f) if least[j] < most[j] else least[j]


@compiled
def average_with_next(rows: Float32, f: int, tile: int, width: int, least: Float32, out: Float32) -> None:
    """Compute the mean of each column's values of rank f, which is `least`, and rank f + 1."""
    n = rows.shape[0]
    after, to_least = np.full(WIDTH, np.float32(np.inf)), np.zeros(WIDTH, np.int32)
    for i in range(n):
        row = rows[i, tile : tile + width]
        for j in range(width):
            x, first, next_one = row[j], least[j], after[j]
            beyond = x if x > first else np.float32(np.inf)
            after[j] = beyond if beyond < next_one else next_one
            to_least[j] += np.int32(x <= first)
    for j in range(width):
        other = least[j] if to_least[j] > f + 1 else after[j]
        out[tile + j] = (np.float64(least[j]) + np.float64(other)) / 2


@compiled
def trim_many(rows: Float32, bits: Bits, f: int, start: int, stop: int, out: Float32) -> None:
    """Compute the mean of `trim_few` at a cost that does not depend on f; `bits` is the memory of `rows`."""
    n = rows.shape[0]
    shape = (-(-n // STRIDE) * STRIDE, WIDTH)
    high, low, among = np.empty(shape, np.int16), np.empty(shape, np.int16), np.empty(shape, np.int16)
    found_least, found_most = np.empty(WIDTH, np.int32), np.empty(WIDTH, np.int32)
    least, most = found_least.view(np.float32), found_most.view(np.float32)
    for tile in range(start, stop, WIDTH):
        width = min(WIDTH, stop - tile)
        split_keys(bits, tile, width, high, low)
        nth(high, low, f, width, among, found_least)
        if n - 2 * f == 1:
            for j in range(width):
                out[tile + j] = least[j]
        elif n - 2 * f == 2:  # a median: the other middle value takes one pass, not a second search
            average_with_next(rows, f, tile, width, least, out)
        else:
            nth(high, low, n - f - 1, width, among, found_most)
            add_between(rows, f, tile, width, least, most, out)


@compiled
def vote(rows: Float32, start: int, stop: int, total: Doubles, votes: Votes) -> None:
    """Add each column's values to `total`, and its positive minus its negative count to `votes`."""
    for tile in range(start, stop, WIDTH):
        end = min(tile + WIDTH, stop)
        sums, counts = total[tile:end], votes[tile:end]
        for i in range(rows.shape[0]):
            row = rows[i, tile:end]
            for j in range(row.shape[0]):
                sums[j] += np.float64(row[j])
                counts[j] += np.int32(row[j] > 0) - np.int32(row[j] < 0)
