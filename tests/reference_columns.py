"""Naive twins of the rules that look at one coordinate at a time, with loops, from their definitions, in float64."""

from __future__ import annotations

import math
from collections.abc import Sequence

Vector = list[float]


def column_trimmed_mean(rows: Sequence[Sequence[float]], f: int) -> Vector:
    """In each coordinate: take a smallest value away f times, a largest f times, and average the rest."""
    result = []
    for j in range(len(rows[0])):
        values = [row[j] for row in rows]
        for _ in range(f):
            values.remove(min(values))
            values.remove(max(values))
        result.append(math.fsum(values) / len(values))
    return result


def column_median(rows: Sequence[Sequence[float]]) -> Vector:
    """In each coordinate: a value with as many below as above it, or the mean of the two that share the middle."""
    result = []
    for j in range(len(rows[0])):
        values = [row[j] for row in rows]
        while len(values) > 2:
            values.remove(min(values))
            values.remove(max(values))
        result.append(math.fsum(values) / len(values))
    return result


def robust_learning_rate(rows: Sequence[Sequence[float]], threshold: int) -> Vector:
    """In each coordinate: the mean, turned around unless the signs of enough more rows agree than disagree."""
    result = []
    for j in range(len(rows[0])):
        vote = 0
        for row in rows:
            if row[j] > 0:
                vote += 1
            elif row[j] < 0:
                vote -= 1
        rate = 1 if abs(vote) >= threshold else -1
        result.append(rate * math.fsum(row[j] for row in rows) / len(rows))
    return result
