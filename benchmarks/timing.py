"""Interleaved timing: every contestant once a repeat, ratios taken within a repeat.

A machine that is slow for a while is slow for all contestants of that repeat, and the ratio does not see it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

SETTLE = 0.01  # seconds between two runs: idle threads of the one before still spin for some milliseconds

Sample = Mapping[str, float]  # the seconds of each contestant that took part in a repeat


class Contestant(NamedTuple):
    """One thing to time; a slow one may sit out repeats."""

    run: Callable[[], float]  # -> the seconds it took
    every: int = 1


class Spread(NamedTuple):
    """The middle of some numbers and their quartiles."""

    median: float
    low: float
    high: float
    repeats: int


def timed(action: Callable[[], object]) -> Callable[[], float]:
    """The action as a contestant's `run`; what it returns lives until the clock has stopped."""

    def run() -> float:
        began = time.perf_counter()
        result = action()
        seconds = time.perf_counter() - began
        del result
        return seconds

    return run


def interleaved(contestants: Mapping[str, Contestant], repeats: int, warm_up: int = 1) -> list[Sample]:
    """The seconds of each repeat; each begins with another contestant, so that none always follows the same one."""
    for contestant in contestants.values():
        for _ in range(warm_up):
            contestant.run()
    return [_repeat(contestants, number) for number in range(repeats)]


def _repeat(contestants: Mapping[str, Contestant], number: int) -> Sample:
    names = [name for name, contestant in contestants.items() if number % contestant.every == 0]
    first = number % len(names)
    seconds = {}
    for name in names[first:] + names[:first]:
        time.sleep(SETTLE)
        seconds[name] = contestants[name].run()
    return seconds


def ratio(samples: Sequence[Sample], over: str, under: str) -> Spread:
    """The seconds of `over` / the seconds of `under`, within each repeat that has both.

    >>> ratio([{"a": 2.0, "b": 1.0}, {"a": 30.0, "b": 10.0}, {"b": 5.0}], "a", "b")
    Spread(median=2.5, low=2.25, high=2.75, repeats=2)
    """
    return spread([sample[over] / sample[under] for sample in samples if over in sample and under in sample])


def excess(samples: Sequence[Sample], more: str, less: str, under: str) -> Spread:
    """(more - less) / under, within each repeat that has all three."""
    whole = [sample for sample in samples if {more, less, under} <= sample.keys()]
    return spread([(sample[more] - sample[less]) / sample[under] for sample in whole])


def seconds(samples: Sequence[Sample], name: str) -> Spread:
    """The seconds of one contestant: for the record, never a result."""
    return spread([sample[name] for sample in samples if name in sample])


def spread(numbers: Sequence[float]) -> Spread:
    """Median and quartiles."""
    low, median, high = (float(q) for q in np.quantile(numbers, [0.25, 0.5, 0.75]))
    return Spread(median, low, high, len(numbers))
