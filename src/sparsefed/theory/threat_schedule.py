"""The threat model of a certificate: a protocol as numbers, one line per round.

Two runs are compared, round by round with the same cohorts, examples and rates: one in which every device is honest,
and one in which some send what they like. Everything here bounds the l1 distance between their models.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from sparsefed.core.errors import require


@dataclass(frozen=True)
class Line:
    """One round of a schedule; FedAvg, whose updates include the rate, has rate 1 and a growth that includes it."""

    rate: float  # lambda(t), the factor of the applied vector
    clip_norm: float  # L, the l2 norm to which the server clips every update
    share: float  # the attackers' share of the round's updates
    growth: float  # the honest mean's l1 change on the w coordinates is at most this times the models' l1 distance
    omega: float = 0.0  # of the l1 mass that top-k sees, the largest share that it leaves in either run; 0 if dense
    # For the l2 recursion of `theory.linear`, about honest updates before they are clipped; inf: not known.
    smooth: float = math.inf  # the l2 change of a device's update for a unit of l2 change in the model
    free: float = math.inf  # the l2 norm that no update exceeds at any model (`lipschitz.clip_free`)
    longest: float = math.inf  # the largest l2 norm in the cohort of the honest run, where it was measured


@dataclass(frozen=True)
class ThreatSchedule:
    """The protocol that a certificate covers: all rounds, and the constants that they share."""

    d: int
    k: int | None  # None: dense, every coordinate is applied
    lines: tuple[Line, ...]
    rho: float = 0.0  # server momentum, in the memory and set to 0 where it was applied (dense: neither)

    @property
    def w(self) -> int:
        """Return how many coordinates of one round's applied vectors can differ between two runs: min(d, 2k)."""
        return self.d if self.k is None else min(self.d, 2 * self.k)

    @property
    def has_l2(self) -> bool:
        """Return whether the l2 recursion covers it: a smoothness in every round, and no momentum beside top-k."""
        return (self.k is None or self.rho == 0) and all(line.smooth < math.inf for line in self.lines)

    def with_share(self, share: float) -> ThreatSchedule:
        """Return the same rounds with this share of attackers in each."""
        return replace(self, lines=tuple(replace(line, share=share) for line in self.lines))


def check(protocol: ThreatSchedule) -> None:
    """Raise an error, in one sentence, for numbers that no protocol can have."""
    k, rho = protocol.k, protocol.rho
    _check_size(protocol.d, k)
    require(0 <= rho < 1, f"rho is {rho}, but momentum must forget: 0 <= rho < 1")
    require(len(protocol.lines) > 0, "a protocol has at least one round")
    for number, line in enumerate(protocol.lines, 1):
        where = f"round {number}:"
        for name in ("rate", "clip_norm", "growth"):
            value = getattr(line, name)
            require(0 <= value < math.inf, f"{where} {name} is {value}, but it must be a finite number from 0")
        for name in ("smooth", "free", "longest"):
            require(
                getattr(line, name) >= 0, f"{where} {name} is {getattr(line, name)}, but it must be a number from 0"
            )
        require(0 <= line.share <= 1, f"{where} the attackers' share is {line.share}, but it must be from 0 to 1")
        require(0 <= line.omega < 1, f"{where} omega is {line.omega}, but top-k keeps something: 0 <= omega < 1")
        require(k is not None or line.omega == 0, f"{where} omega is {line.omega}, but a dense protocol loses nothing")


def worst_omega(d: int, k: int | None) -> float:
    """Return the largest share of l1 mass that top-k can leave: 1 - k/d, where all coordinates are alike."""
    _check_size(d, k)
    return 0.0 if k is None else 1 - k / d


def growth(d: int, k: int | None, c: float, clipped: bool) -> float:
    """Return the growth of the clipped mean, from the coordinate-wise Lipschitz constant c of each device's gradient.

    Where clipping never cuts an honest update: w coordinates change by at most c each, so w c. Where it may, c is no
    longer the constant of a coordinate: cutting is a projection, so it lengthens no difference in l2, but it scales
    each coordinate by the length of all. Then sqrt(w) |.|_2 <= sqrt(w) sqrt(d) c.

    >>> growth(d=100, k=8, c=0.25, clipped=False), growth(d=100, k=8, c=0.25, clipped=True)
    (4.0, 10.0)
    """
    w = ThreatSchedule(d, k, ()).w
    return c * (math.sqrt(w * d) if clipped else w)


def uniform(
    d: int,
    k: int | None,
    rates: Sequence[float],
    clip_norm: float,
    share: float,
    c: float,
    *,
    omega: float | None = None,
    rho: float = 0.0,
    clipped: bool = False,
) -> ThreatSchedule:
    """Return a schedule whose rounds differ in their rates alone; without `omega` the worst case."""
    lost = worst_omega(d, k) if omega is None else omega
    each = growth(d, k, c, clipped)
    return ThreatSchedule(d, k, tuple(Line(rate, clip_norm, share, each, lost) for rate in rates), rho)


def _check_size(d: int, k: int | None) -> None:
    require(d >= 1, f"d is {d}, but a model has at least one parameter")
    require(k is None or 1 <= k <= d, f"k is {k}, but top-k keeps from 1 to all d = {d} coordinates")
