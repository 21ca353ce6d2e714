"""An estimate of the seconds that a sweep still takes, from the cost of its rounds so far."""

from __future__ import annotations

import functools
import json
import time
from dataclasses import dataclass, field
from statistics import median

from sparsefed.sweeps.cells import SweepCell


@dataclass
class Clock:
    """Seconds per round by kind of cell: data, model and training determine the cost, less so the defense."""

    rates: dict[str, list[float]] = field(default_factory=dict)
    began: dict[str, tuple[float, int]] = field(default_factory=dict)  # of running cells: when, from which round
    rounds: dict[str, int] = field(default_factory=dict)

    def start(self, cell: SweepCell) -> None:
        self.began.pop(cell.key, None)
        self.rounds[cell.key] = 0

    def hear(self, key: str, round: int) -> None:
        self.began.setdefault(key, (time.monotonic(), round))
        self.rounds[key] = round

    def learn(self, cell: SweepCell, seconds: float, rounds: int) -> None:
        self.rates.setdefault(_kind(cell), []).append(seconds / max(rounds, 1))

    def rate(self, cell: SweepCell) -> float | None:
        """Return the seconds per round of a cell: from its own rounds, from cells of its kind, or from all."""
        when, first = self.began.get(cell.key, (0.0, 0))
        heard = self.rounds.get(cell.key, 0) - first
        if heard > 0 and cell.key in self.began:
            return (time.monotonic() - when) / heard
        known = self.rates.get(_kind(cell)) or [each for every in self.rates.values() for each in every]
        return median(known) if known else None  # a worker's first cell also pays for compiling


@functools.lru_cache(maxsize=10_000)
def _kind(cell: SweepCell) -> str:
    table = cell.table
    return json.dumps([table[part] for part in ("data", "model", "train")], sort_keys=True)
