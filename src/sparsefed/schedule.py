"""Learning-rate schedules: lambda(t) for rounds t = 1..T, as closures."""

from __future__ import annotations

from collections.abc import Callable

from sparsefed.errors import ConfigError

Schedule = Callable[[int], float]


def constant(lr: float, rounds: int = 0, peak_at: float = 0.0) -> Schedule:  # noqa: ARG001 - all take the same
    """lambda(t) = lr."""
    return lambda round: lr  # noqa: ARG005


def triangular(lr: float, rounds: int, peak_at: float) -> Schedule:
    """Piecewise linear 0 -> lr at the share `peak_at` of the rounds -> 0 (the paper: 0.2 at epoch 5 of 24).

    A round uses the rate at its middle, so that no round is spent at rate 0.

    >>> [triangular(1.0, 4, 0.5)(t) for t in (1, 2, 3, 4)]
    [0.25, 0.75, 0.75, 0.25]
    """
    if not 0 < peak_at < 1:
        raise ConfigError(f"peak_at is {peak_at}; the peak must lie inside the run, at a share between 0 and 1")
    peak = peak_at * rounds

    def rate(round: int) -> float:
        t = round - 0.5
        return max(0.0, lr * (t / peak if t <= peak else (rounds - t) / (rounds - peak)))

    return rate


SCHEDULES: dict[str, Callable[[float, int, float], Schedule]] = {"triangular": triangular, "constant": constant}
