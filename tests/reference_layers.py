"""Naive twins of FLAME and LASA, with loops, from their definitions, in float64."""

from __future__ import annotations

import math
from collections.abc import Sequence

Vector = list[float]


def flame_norm(row: Sequence[float]) -> float:
    return math.sqrt(math.fsum(value * value for value in row))


def flame_median(values: Sequence[float]) -> float:
    """For an even number the mean of the middle two."""
    ordered = sorted(values)
    n = len(ordered)
    return (ordered[(n - 1) // 2] + ordered[n // 2]) / 2


def flame_cosine_distance(x: Sequence[float], y: Sequence[float]) -> float:
    """1 - cos(x, y) = |x / ||x|| - y / ||y|| |^2 / 2; vectors of norm 0 are alike, all others at right angles."""
    a, b = flame_norm(x), flame_norm(y)
    if a == 0 or b == 0:
        return 0.0 if a == b else 1.0
    return math.fsum((p / a - q / b) ** 2 for p, q in zip(x, y, strict=True)) / 2


def flame_component(distances: Sequence[Sequence[float]], start: int, radius: float) -> set[int]:
    """Everything that can be reached from `start` by steps no longer than the radius."""
    reached, waiting = {start}, [start]
    while waiting:
        i = waiting.pop()
        for j in range(len(distances)):
            if j not in reached and distances[i][j] <= radius:
                reached.add(j)
                waiting.append(j)
    return reached


def flame_majority(distances: Sequence[Sequence[float]]) -> list[int]:
    """The component of more than half at the least radius that has one; ties in nine digits belong to it."""
    n = len(distances)
    for radius in sorted({0.0} | {distance for row in distances for distance in row}):
        for start in range(n):
            if 2 * len(flame_component(distances, start, radius)) > n:
                return sorted(flame_component(distances, start, radius * (1 + 1e-9) + 1e-14))
    raise AssertionError("at the largest distance everything is one component")


def flame(rows: Sequence[Sequence[float]], theta: Sequence[float] | None = None) -> tuple[Vector, int]:
    """FLAME without noise, and how many it admits."""
    compared: list[Vector] = []
    for row in rows:
        compared.append(list(row) if theta is None else [t - u for t, u in zip(theta, row, strict=True)])
    admitted = flame_majority([[flame_cosine_distance(x, y) for y in compared] for x in compared])
    bound = flame_median([flame_norm(row) for row in rows])
    total = [0.0] * len(rows[0])
    for i in admitted:
        length = flame_norm(rows[i])
        factor = bound / length if length > bound else 1.0
        for j, value in enumerate(rows[i]):
            total[j] += factor * value / len(admitted)
    return total, len(admitted)


def lasa_sparsified(row: Sequence[float], sparsity: float) -> Vector:
    """The floor(sparsity d) smallest |values| set to 0; of equal ones the later go first."""
    left = list(row)
    order = sorted(range(len(row)), key=lambda j: (abs(row[j]), -j))
    for j in order[: math.floor(sparsity * len(row))]:
        left[j] = 0.0
    return left


def lasa_purity(layer: Sequence[float]) -> float:
    signs = [math.copysign(1, value) for value in layer if value != 0]
    return (1 + sum(signs) / len(signs)) / 2 if signs else 0.5


def lasa_near(values: Sequence[float], radius: float) -> set[int]:
    """Who lies within `radius` standard deviations of the median, up to rounding."""
    middle, mean = flame_median(values), math.fsum(values) / len(values)
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / len(values))
    largest = max(abs(value) for value in values)
    return {i for i, value in enumerate(values) if abs(value - middle) <= radius * deviation + 1e-9 * largest}


def lasa(
    rows: Sequence[Sequence[float]], layers: Sequence[int], sparsity: float, lambda_n: float, lambda_s: float
) -> tuple[Vector, list[list[int]]]:
    """LASA, and whom it averages in each layer."""
    norms = [flame_norm(row) for row in rows]
    bound = sorted(norms)[(len(norms) - 1) // 2]
    updates: list[Vector] = []
    for row, length in zip(rows, norms, strict=True):
        factor = bound / length if length > bound else 1.0
        updates.append([factor * value for value in lasa_sparsified(row, sparsity)])
    result: Vector = []
    chosen: list[list[int]] = []
    start = 0
    for size in layers or [len(rows[0])]:
        parts = [update[start : start + size] for update in updates]
        by_norm = lasa_near([flame_norm(part) for part in parts], lambda_n)
        by_sign = lasa_near([lasa_purity(part) for part in parts], lambda_s)
        chosen.append(sorted(by_norm & by_sign) or list(range(len(rows))))
        for j in range(size):
            result.append(math.fsum(parts[i][j] for i in chosen[-1]) / len(chosen[-1]))
        start += size
    return result, chosen
