"""Naive twins: every mathematical function again, with loops, from its definition, in float64.

They share no code with the library, not even the table of presets: two readings of the paper that must agree.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

Vector = list[float]

# (uncompressed mode: lr inside the buffers?, FedAvg mode: budget as a function of L, lr and local steps)
PRESETS: dict[str, tuple[bool, Callable[[float, float, int], float]]] = {
    "paper": (False, lambda clip_norm, lr, steps: clip_norm),  # noqa: ARG005
    "authors-2021-05": (True, lambda clip_norm, lr, steps: clip_norm * lr * steps),
    "authors-2021-08": (False, lambda clip_norm, lr, steps: clip_norm * lr),  # noqa: ARG005
}


def norm(row: Sequence[float]) -> float:
    total = 0.0
    for value in row:
        total += value * value
    return math.sqrt(total)


def clip(row: Sequence[float], budget: float) -> Vector:
    """row * min(1, budget / ||row||)."""
    length = norm(row)
    return [value * budget / length if length > budget else value for value in row]


def usable(row: Sequence[float]) -> bool:
    for value in row:
        if not math.isfinite(value):
            return False
    return norm(row) <= 1e30


def mean_of_clipped(rows: Sequence[Sequence[float]], budget: float) -> Vector | None:
    """The mean over the usable rows, each clipped; None if there is none."""
    kept = [clip(row, budget) for row in rows if usable(row)]
    if not kept:
        return None
    mean = [0.0] * len(kept[0])
    for row in kept:
        for i, value in enumerate(row):
            mean[i] += value / len(kept)
    return mean


def momentum(update: Vector, buffer: Vector, rho: float) -> Vector:
    return [rho * r + u for r, u in zip(buffer, update, strict=True)]


def topk(x: Sequence[float], k: int) -> list[int]:
    """Ascending indices of the k largest |x_i|; of equal ones, the lowest index first."""
    chosen: list[int] = []
    for _ in range(k):
        best = -1
        for i, value in enumerate(x):
            if i not in chosen and (best < 0 or abs(value) > abs(x[best])):
                best = i
        chosen.append(best)
    return sorted(chosen)


@dataclass
class TopkMemory:
    """The server of SparseFed, a round a call."""

    d: int
    k: int
    rho: float
    feedback: str = "momentum"
    masking: str = "zero"
    momentum: Vector = field(init=False)
    memory: Vector = field(init=False)

    def __post_init__(self) -> None:
        self.momentum, self.memory = [0.0] * self.d, [0.0] * self.d

    def step(self, update: Vector) -> Vector:
        self.momentum = momentum(update, self.momentum, self.rho)
        source = self.momentum if self.feedback == "momentum" else update
        self.memory = [w + s for w, s in zip(self.memory, source, strict=True)]
        delta = [0.0] * self.d
        for i in topk(self.memory, self.k):
            delta[i] = self.memory[i]
            self.memory[i] = 0.0
            self.momentum[i] = 0.0 if self.masking == "zero" else self.momentum[i] - delta[i]
        return delta


@dataclass
class Server:
    """SparseFed (or, with k = 0, clipping with momentum) in a mode and a preset, a round a call."""

    d: int
    k: int
    clip_norm: float
    rho: float
    mode: str
    preset: str
    local_steps: int = 1
    buffers: TopkMemory = field(init=False)

    def __post_init__(self) -> None:
        self.buffers = TopkMemory(self.d, self.k, self.rho)

    def step(self, rows: Sequence[Sequence[float]], lr: float) -> Vector:
        """What the server subtracts; nothing, and no change of state, if no row is usable."""
        inside, fedavg_budget = PRESETS[self.preset]
        uncompressed = self.mode == "uncompressed"
        budget = self.clip_norm if uncompressed else fedavg_budget(self.clip_norm, lr, self.local_steps)
        update = mean_of_clipped(rows, budget)
        if update is None:
            return [0.0] * self.d
        if uncompressed and inside:
            return self._serve([lr * u for u in update])
        delta = self._serve(update)
        return [lr * value for value in delta] if uncompressed else delta

    def _serve(self, update: Vector) -> Vector:
        if self.k:
            return self.buffers.step(update)
        self.buffers.momentum = momentum(update, self.buffers.momentum, self.rho)
        return self.buffers.momentum
