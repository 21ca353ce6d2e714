"""Radii are natural logarithms: the numbers themselves leave float64 after a few rounds."""

from __future__ import annotations

import math

import numpy as np

NOTHING = -math.inf  # log 0


def log(value: float) -> float:
    """Return the logarithm of a number from 0.

    >>> log(0.0), log(1.0)
    (-inf, 0.0)
    """
    return math.log(value) if value > 0 else NOTHING


def log_sum(*logs: float) -> float:
    """Return the logarithm of the sum of what these are logarithms of."""
    return float(np.logaddexp.reduce(logs))
