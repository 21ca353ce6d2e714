"""Naive twins of the rules that add noise, of quantile clipping, and of the privacy curves: loops, float64."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

Vector = list[float]


def noise_norm(row: Sequence[float]) -> float:
    total = 0.0
    for value in row:
        total += value * value
    return math.sqrt(total)


def noise_mean(rows: Sequence[Sequence[float]], budget: float) -> Vector | None:
    """The mean of the usable rows, each cut to the budget; None if there is none."""
    kept: list[Vector] = []
    for row in rows:
        length = noise_norm(row)
        if length <= 1e30:  # false for NaN
            kept.append([value * (budget / length) if length > budget else value for value in row])
    if not kept:
        return None
    return [math.fsum(row[i] for row in kept) / len(kept) for i in range(len(kept[0]))]


@dataclass
class DpNoise:
    """Clip, mean, noise, momentum, learning rate, noise: a round a call, with the noise z given."""

    d: int
    sigma: float
    placement: str
    clip_norm: float
    rho: float
    fedavg: bool = False
    buffer: Vector = field(init=False)

    def __post_init__(self) -> None:
        self.buffer = [0.0] * self.d

    def step(self, rows: Sequence[Sequence[float]], lr: float, z: Sequence[float]) -> Vector:
        update = noise_mean(rows, self.clip_norm)
        if update is None:
            return [0.0] * self.d
        if self.placement == "mean":
            update = [u + self.sigma * n for u, n in zip(update, z, strict=True)]
        self.buffer = [self.rho * r + u for r, u in zip(self.buffer, update, strict=True)]
        delta = [r if self.fedavg else lr * r for r in self.buffer]
        if self.placement == "update":
            delta = [x + self.sigma * n for x, n in zip(delta, z, strict=True)]
        return delta


def crfl_model(theta: Sequence[float], delta: Sequence[float], model_norm: float, noise: Sequence[float]) -> Vector:
    """The next model: theta - delta, divided by max(1, its norm / model_norm), plus noise."""
    moved = [t - x for t, x in zip(theta, delta, strict=True)]
    divisor = max(1.0, noise_norm(moved) / model_norm)
    return [w / divisor + n for w, n in zip(moved, noise, strict=True)]


@dataclass
class QuantileClip:
    """The clip norm that follows a quantile of the norms (Andrew et al. 2021), a round a call."""

    clip_norm: float
    quantile: float
    rate: float

    def step(self, rows: Sequence[Sequence[float]]) -> Vector | None:
        """The mean of the rows cut to today's clip norm; tomorrow's is learned from how many were no longer."""
        result = noise_mean(rows, self.clip_norm)
        if result is None:
            return None
        usable = short = 0
        for row in rows:
            length = noise_norm(row)
            if length <= 1e30:
                usable += 1
                if length <= self.clip_norm:
                    short += 1
        self.clip_norm *= math.exp(-self.rate * (short / usable - self.quantile))
        return result


# Privacy. Phi is the standard normal distribution function.


def normal_cdf(x: float) -> float:
    return 0.5 * math.erfc(-x / math.sqrt(2))


def gaussian_delta(mu: float, epsilon: float) -> float:
    """Of one Gaussian release whose mean moves by mu standard deviations (Balle and Wang 2018, Theorem 8)."""
    return normal_cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * normal_cdf(-mu / 2 - epsilon / mu)


def gaussian_epsilon(mu: float, delta: float) -> float:
    """The smallest epsilon with that delta, by bisection."""
    low, high = 0.0, 1.0
    while gaussian_delta(mu, high) > delta:
        high *= 2
    if gaussian_delta(mu, low) <= delta:
        return 0.0
    for _ in range(200):
        middle = (low + high) / 2
        if gaussian_delta(mu, middle) > delta:
            low = middle
        else:
            high = middle
    return high


def sampled_delta(mu: float, share: float, epsilon: float, grid: int = 4000) -> float:
    """A lower bound on the delta of one round that draws a device with probability `share`, mu its full move.

    All others send 0, the device sends -L or +L: integrates max(0, p - e^epsilon q) over the two densities.
    """

    def density(x: float, centre: float) -> float:
        return math.exp(-((x - centre) ** 2) / 2) / math.sqrt(2 * math.pi)

    reach = mu / 2 + 12
    step, total = 2 * reach / grid, 0.0
    for i in range(grid):
        x = -reach + (i + 0.5) * step
        rest = (1 - share) * density(x, 0)
        p, q = rest + share * density(x, mu / 2), rest + share * density(x, -mu / 2)
        total += max(0.0, p - math.exp(epsilon) * q) * step
    return total


def binomial_tail(n: int, share: float, m: int) -> float:
    """P(X > m) for X binomial."""
    total = 0.0
    for i in range(m + 1, n + 1):
        ways = math.lgamma(n + 1) - math.lgamma(i + 1) - math.lgamma(n - i + 1)
        total += math.exp(ways + i * math.log(share) + (n - i) * math.log1p(-share))
    return total
