"""Naive twins of the rules that choose by distances: Krum, Multi-Krum, Bulyan, nearest-neighbour mixing."""

from __future__ import annotations

import math
from collections.abc import Sequence

Vector = list[float]


def squared_distance(a: Sequence[float], b: Sequence[float]) -> float:
    return math.fsum((x - y) ** 2 for x, y in zip(a, b, strict=True))


def inner_product(a: Sequence[float], b: Sequence[float]) -> float:
    return math.fsum(x * y for x, y in zip(a, b, strict=True))


def krum_scores(rows: Sequence[Sequence[float]], f: int, neighbours: int | None = None) -> list[float]:
    """Blanchard et al.: the squared distances to the n - f - 2 nearest others, in sum."""
    count = len(rows) - f - 2 if neighbours is None else neighbours
    scores = []
    for i, row in enumerate(rows):
        others = sorted(squared_distance(row, other) for j, other in enumerate(rows) if j != i)
        scores.append(math.fsum(others[:count]))
    return scores


def box_krum_scores(rows: Sequence[Sequence[float]], f: int) -> list[float]:
    """SparseFed's box: f + 2 times the farthest is taken away; what is left, the row itself with it, is summed."""
    scores = []
    for row in rows:
        left = [math.sqrt(squared_distance(row, other)) for other in rows]
        for _ in range(f + 2):
            left.remove(max(left))
        scores.append(math.fsum(left))
    return scores


def by_score(rows: Sequence[Sequence[float]], scores: Sequence[float]) -> list[Vector]:
    """The rows, lowest score first, equal scores in lexicographic order."""
    return [list(row) for _, row in sorted(zip(scores, map(list, rows), strict=True))]


def mean_of_rows(rows: Sequence[Sequence[float]]) -> Vector:
    return [math.fsum(column) / len(column) for column in zip(*rows, strict=True)]


def krum_twin(rows: Sequence[Sequence[float]], f: int) -> Vector:
    return by_score(rows, krum_scores(rows, f))[0]


def box_krum_twin(rows: Sequence[Sequence[float]], f: int) -> Vector:
    return by_score(rows, box_krum_scores(rows, f))[0]


def multi_krum_twin(rows: Sequence[Sequence[float]], f: int, m: int) -> Vector:
    return mean_of_rows(by_score(rows, krum_scores(rows, f))[:m])


def bulyan_selection(rows: Sequence[Sequence[float]], f: int) -> list[Vector]:
    """n - 2f times: Krum among the rows that are left (at least one neighbour), and that row leaves."""
    left, selected = [list(row) for row in rows], []
    for _ in range(len(rows) - 2 * f):
        scores = krum_scores(left, f, max(1, len(left) - f - 2))
        selected.append(by_score(left, scores)[0])
        left.remove(selected[-1])
    return selected


def bulyan_twin(rows: Sequence[Sequence[float]], f: int) -> Vector:
    columns = [sorted(column) for column in zip(*bulyan_selection(rows, f), strict=True)]
    return [math.fsum(column[f : len(column) - f]) / (len(column) - 2 * f) for column in columns]


def bulyan_around_median_twin(rows: Sequence[Sequence[float]], f: int) -> Vector:
    selected = bulyan_selection(rows, f)
    kept, result = len(selected) - 2 * f, []
    for column in map(sorted, zip(*selected, strict=True)):
        middle = (column[(len(column) - 1) // 2] + column[len(column) // 2]) / 2
        nearest = sorted(column, key=lambda value: (abs(value - middle), value))[:kept]
        result.append(math.fsum(nearest) / kept)
    return result


def nnm_twin(rows: Sequence[Sequence[float]], f: int) -> list[Vector]:
    """Each row becomes the mean of its n - f nearest; rows that tie for the last places share them equally."""
    k, mixed = len(rows) - f, []
    for row in rows:
        far = [squared_distance(row, other) for other in rows]
        limit = sorted(far)[k - 1]
        inside = [other for other, distance in zip(rows, far, strict=True) if distance < limit]
        level = [other for other, distance in zip(rows, far, strict=True) if distance == limit]
        share = (k - len(inside)) / len(level)
        mixed.append(
            [
                (math.fsum(row[c] for row in inside) + share * math.fsum(row[c] for row in level)) / k
                for c in range(len(row))
            ]
        )
    return mixed
