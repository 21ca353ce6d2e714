"""Naive twins of the count sketch, FetchSGD's server and local top-k, with loops, in float64."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

Vector = list[float]
Table = list[list[float]]


def tabulated_hash(i: int, high: Sequence[int], low: Sequence[int], both: Sequence[int]) -> int:
    """The 32 bits of coordinate i = a * 1024 + b."""
    a, b = divmod(i, 1024)
    return high[a] ^ low[b] ^ both[a + b]


def hashed_column(value: int, columns: int) -> int:
    """The upper 31 bits, as a fraction of 2^31, times the number of columns."""
    return int((value // 2) * columns // 2**31)


def hashed_sign(value: int) -> int:
    return -1 if value % 2 else 1


@dataclass
class SketchTwin:
    """A count sketch whose columns h[j][i] and signs s[j][i] are given as lists."""

    h: list[list[int]]
    s: list[list[int]]
    columns: int

    def sketch(self, x: Sequence[float]) -> Table:
        table = [[0.0] * self.columns for _ in self.h]
        for j in range(len(self.h)):
            for i, value in enumerate(x):
                table[j][self.h[j][i]] += self.s[j][i] * value
        return table

    def estimate(self, table: Table, i: int) -> float:
        found = sorted(self.s[j][i] * table[j][self.h[j][i]] for j in range(len(self.h)))
        return found[len(found) // 2]

    def heavy(self, table: Table, k: int) -> dict[int, float]:
        """The k largest estimates; of equal ones, the lowest index first."""
        all_of_them = [self.estimate(table, i) for i in range(len(self.h[0]))]
        order = sorted(range(len(all_of_them)), key=lambda i: (-abs(all_of_them[i]), i))
        return {i: all_of_them[i] for i in order[:k]}


@dataclass
class FetchSgdTwin:
    """The server of FetchSGD, a round a call."""

    sketch: SketchTwin
    k: int
    rho: float
    masking: str
    momentum: Table = field(init=False)
    memory: Table = field(init=False)

    def __post_init__(self) -> None:
        d = len(self.sketch.h[0])
        self.momentum, self.memory = self.sketch.sketch([0.0] * d), self.sketch.sketch([0.0] * d)

    def step(self, update: Sequence[float]) -> Vector:
        h, s = self.sketch.h, self.sketch.s
        received = self.sketch.sketch(update)
        for j in range(len(h)):
            for b in range(self.sketch.columns):
                self.momentum[j][b] = self.rho * self.momentum[j][b] + received[j][b]
                self.memory[j][b] += self.momentum[j][b]
        delta = {i: value for i, value in self.sketch.heavy(self.memory, self.k).items() if value != 0}
        for j in range(len(h)):
            for i, value in delta.items():
                if self.masking == "zero":
                    self.momentum[j][h[j][i]] = 0.0
                    self.memory[j][h[j][i]] = 0.0
                else:
                    self.memory[j][h[j][i]] -= s[j][i] * value
        return [delta.get(i, 0.0) for i in range(len(h[0]))]


@dataclass
class LocalTopkTwin:
    """Devices with memories, a round a call: a dictionary in which who was seen last stands last."""

    k: int
    remember: int
    message_norm: float = math.inf
    memories: dict[int, Vector] = field(default_factory=dict)

    def step(self, rows: Sequence[Sequence[float]], senders: Sequence[int]) -> Vector:
        mean = [0.0] * len(rows[0])
        for row, sender in zip(rows, senders, strict=True):
            before = self.memories.get(sender, [0.0] * len(row))
            waiting = [e + u for e, u in zip(before, row, strict=True)]
            chosen = sorted(range(len(row)), key=lambda i: (-abs(waiting[i]), i))[: self.k]
            length = math.sqrt(sum(waiting[i] ** 2 for i in chosen))
            share = min(1.0, self.message_norm / length) if length > 0 else 1.0
            for i in chosen:
                mean[i] += share * waiting[i] / len(rows)
                waiting[i] -= share * waiting[i]
            self.memories[sender] = waiting
        for sender in sorted(set(senders)):
            self.memories[sender] = self.memories.pop(sender)
        while len(self.memories) > self.remember:
            del self.memories[next(iter(self.memories))]
        return mean
