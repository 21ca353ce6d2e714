"""Learning-rate schedules: lambda(t) for rounds t = 1..T, as closures.

A schedule is made from the highest rate, the number of rounds and, if it has a peak, the share of the rounds after
which it is reached (`peak_at`). A schedule without a peak does not take that parameter, so setting it is an error.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from sparsefed.core.errors import ConfigError
from sparsefed.core.federation import rounds_per_epoch

Schedule = Callable[[int], float]


def constant(lr: float, rounds: int = 0) -> Schedule:  # noqa: ARG001 - all take the same
    """Keep the rate constant: lambda(t) = lr."""
    return lambda round: lr  # noqa: ARG005


def triangular(lr: float, rounds: int, peak_at: float = 5 / 24) -> Schedule:
    """Rise linearly to lr at the share `peak_at` of the rounds, then fall to 0 (paper: 0.2 at epoch 5 of 24).

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


def cosine(lr: float, rounds: int, peak_at: float = 0.0) -> Schedule:
    """Rise linearly to lr at `peak_at`, by default 0, then fall to 0 by half a cosine (Loshchilov and Hutter 2017).

    A round uses the rate at its middle.

    >>> [round(cosine(1.0, 4)(t), 3) for t in (1, 2, 3, 4)]
    [0.962, 0.691, 0.309, 0.038]
    """
    _check_warm_up(peak_at)
    peak = peak_at * rounds

    def rate(round: int) -> float:
        t = min(round - 0.5, float(rounds))
        return lr * t / peak if t < peak else lr * (1 + math.cos(math.pi * (t - peak) / (rounds - peak))) / 2

    return rate


def inverse_sqrt(lr: float, rounds: int, peak_at: float = 0.0) -> Schedule:
    """Return lr * min(t / w, sqrt(w / t)) with w = max(1, `peak_at` * rounds): lr / sqrt(t) by default, never 0.

    Vaswani et al. 2017, equation 3, scaled to reach lr at its peak.

    >>> [round(inverse_sqrt(1.0, 9)(t), 3) for t in (1, 4, 9)], inverse_sqrt(1.0, 8, 0.5)(2)
    ([1.0, 0.5, 0.333], 0.5)
    """
    _check_warm_up(peak_at)
    warm_up = max(1.0, peak_at * rounds)
    return lambda round: lr * min(round / warm_up, math.sqrt(warm_up / round))


def _check_warm_up(peak_at: float) -> None:
    if not 0 <= peak_at < 1:
        raise ConfigError(f"peak_at is {peak_at}; the peak must lie inside the run, at a share from 0 to below 1")


SCHEDULES: dict[str, Callable[..., Schedule]] = {
    "triangular": triangular,
    "constant": constant,
    "cosine": cosine,
    "inverse_sqrt": inverse_sqrt,
}


# --- epochs ----------------------------------------------------------------------------------------------------------


def epochs_in_rounds(epochs: float, devices: int | None, cohort: int) -> int:
    """Convert epochs to whole rounds, at least one; an epoch is the rounds needed to reach every device.

    >>> epochs_in_rounds(24, 10_000, 100), epochs_in_rounds(0.5, 10, 4)
    (2400, 2)
    """
    return max(1, round(epochs * _epoch("epochs", devices, cohort)))


def peak_share(peak_epoch: float, rounds: int, devices: int | None, cohort: int) -> float:
    """Convert the epoch of the peak to a share of the rounds.

    >>> peak_share(5, 2400, 10_000, 100) == 5 / 24
    True
    """
    epoch = _epoch("train.peak_epoch", devices, cohort)
    if peak_epoch * epoch >= rounds:
        raise ConfigError(
            f"train.peak_epoch is {peak_epoch:g}, but the run has only {rounds / epoch:.4g} epochs ({rounds} rounds); "
            "the peak must lie inside it"
        )
    return peak_epoch * epoch / rounds


def _epoch(key: str, devices: int | None, cohort: int) -> int:
    if devices is None:
        raise ConfigError(
            f"{key} needs to know how many devices there are, but the users of the data decide that here; set "
            "data.devices, or give rounds and train.peak_at"
        )
    return rounds_per_epoch(devices, cohort)
