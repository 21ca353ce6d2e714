"""Naive twins of the rules that look for a centre, and of the pre-aggregations beside them: loops, float64."""

from __future__ import annotations

import math
from collections.abc import Sequence

Vector = list[float]
WORD = 1 << 64


def gap(a: Sequence[float], b: Sequence[float]) -> float:
    total = 0.0
    for x, y in zip(a, b, strict=True):
        total += (x - y) * (x - y)
    return math.sqrt(total)


def sum_of_distances(rows: Sequence[Sequence[float]], point: Sequence[float]) -> float:
    total = 0.0
    for row in rows:
        total += gap(row, point)
    return total


def combination(
    rows: Sequence[Sequence[float]], weights: Sequence[float], base: Sequence[float]
) -> tuple[Vector, Vector]:
    """(1 - sum of the weights) base + the weighted rows, and the squared distance of each row from that."""
    rest = 1.0
    for weight in weights:
        rest -= weight
    point = [rest * value for value in base]
    for weight, row in zip(weights, rows, strict=True):
        for j, value in enumerate(row):
            point[j] += weight * value
    return point, [gap(row, point) ** 2 for row in rows]


def weiszfeld(rows: Sequence[Sequence[float]], nu: float, steps: int, from_mean: bool = True) -> Vector:
    """z <- sum_i x_i / max(nu, |x_i - z|), divided by the sum of these weights; from the mean, or from zero."""
    d = len(rows[0])
    z = [sum(row[j] for row in rows) / len(rows) for j in range(d)] if from_mean else [0.0] * d
    for _ in range(steps):
        total, moved = 0.0, [0.0] * d
        for row in rows:
            weight = 1 / max(nu, gap(row, z))
            total += weight
            for j in range(d):
                moved[j] += weight * row[j]
        z = [value / total for value in moved]
    return z


def centered_clipping(
    rows: Sequence[Sequence[float]], centre: Sequence[float], radius: float, iterations: int
) -> Vector:
    """v <- v + the mean over i of (x_i - v) min(1, radius / |x_i - v|)."""
    v = list(centre)
    for _ in range(iterations):
        step = [0.0] * len(v)
        for row in rows:
            length = gap(row, v)
            factor = radius / length if length > radius else 1.0
            for j in range(len(v)):
                step[j] += (row[j] - v[j]) * factor / len(rows)
        v = [value + move for value, move in zip(v, step, strict=True)]
    return v


def arc(rows: Sequence[Sequence[float]], f: int) -> list[Vector]:
    """Clip to the (k+1)-th largest norm, k the largest whole number with k n <= 2 f (n - f)."""
    n, k = len(rows), 0
    while (k + 1) * n <= 2 * f * (n - f):
        k += 1
    lengths = [gap(row, [0.0] * len(row)) for row in rows]
    limit = sorted(lengths)[n - 1 - k]
    return [
        [value * (limit / length if length > limit else 1.0) for value in row]
        for row, length in zip(rows, lengths, strict=True)
    ]


def hashed(sender: int, keys: Sequence[int]) -> int:
    """A 64-bit word: each key is mixed in by SplitMix64's finaliser."""
    word = sender % WORD
    for key in keys:
        word ^= key
        word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9 % WORD
        word = (word ^ (word >> 27)) * 0x94D049BB133111EB % WORD
        word ^= word >> 31
    return word


def bucketing(rows: Sequence[Sequence[float]], senders: Sequence[int], keys: Sequence[int], size: int) -> list[Vector]:
    """The rows in the order of their senders' hashes, averaged `size` at a time."""
    order = sorted(range(len(rows)), key=lambda i: hashed(senders[i], keys))
    means: list[Vector] = []
    while order:
        bucket, order = order[:size], order[size:]
        means.append([sum(rows[i][j] for i in bucket) / len(bucket) for j in range(len(rows[0]))])
    return means
