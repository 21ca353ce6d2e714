"""Sums of numbers kept as natural logarithms: radii themselves overflow float64 after a few rounds."""

from __future__ import annotations

import math

import numpy as np

NOTHING = -math.inf  # log 0


def log(value: float) -> float:
    """Return the logarithm of a number that is not negative.

    >>> log(0.0), log(1.0)
    (-inf, 0.0)
    """
    return math.log(value) if value > 0 else NOTHING


def log_sum(*logs: float) -> float:
    """Return the logarithm of the sum of the numbers with these logarithms."""
    return float(np.logaddexp.reduce(logs))
