"""How far apart attackers can drive two runs: the certified radius of the paper (Theorems 1 and 2), made sound.

With D_t = |theta_t - theta_t^benign|_1, w = min(d, 2k) and a share s_t of attackers among the clipped updates,

    D_t  <=  D_(t-1) + lambda_t (P_t + 2 mask_t + 2 gamma_t),      P_t = rho P_(t-1) + h_t D_(t-1) + 2 s_t L_t sqrt(w)

where h_t = w c (`protocol.growth`), gamma_t bounds what top-k and its memory hold back, and mask_t what masking takes
out of the momentum. Without momentum P_t is the one round's term and mask_t = 0: the paper's Eq. 3 with the additive
term in the right norm. The derivations are in docs/certificate.md.

All radii are natural logarithms: the numbers themselves leave float64 after a few rounds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from sparsefed.certify.protocol import Protocol, check

NOTHING = -math.inf  # log 0


@dataclass(frozen=True)
class Radius:
    """A bound as its logarithm, with its two parts: `log = additive + propagation`."""

    log: float
    additive: float  # log of what the rounds add up to if nothing propagated

    @property
    def propagation(self) -> float:
        """log of the factor by which early differences grow until the end."""
        return self.log - self.additive if self.log > NOTHING else 0.0

    @property
    def log10(self) -> float:
        return self.log / math.log(10)


class _Held(NamedTuple):
    """Bounds on the server's vectors before a round's top-k and after, the same for both runs."""

    momentum_l1: float  # |R_t|_1
    momentum_l2: float
    forgotten_l2: float  # rho |R_(t-1)|_2, what masking may have taken out
    before_l1: float  # |W_(t-1)|_1
    after_l1: float  # |W_t|_1
    before_l2: float


def recursion(protocol: Protocol, width: int | None = None) -> Radius:
    """The sound bound, round by round; `width` is the w of the additive term (d: the paper's reading of the norms)."""
    check(protocol)
    return _followed(protocol, width, capped=False)


def capped(protocol: Protocol) -> Radius:
    """The recursion, where no round adds more than what two vectors of the enforced norm can differ by."""
    check(protocol)
    return _followed(protocol, None, capped=True)


def movement(protocol: Protocol) -> float:
    """log of what clipping alone promises: no two runs of such updates end further apart, whoever sends them."""
    check(protocol)
    total = sum(
        line.rate * 2 * _applied_l1(protocol, held)
        for line, held in zip(protocol.lines, _holdings(protocol), strict=True)
    )
    return _log(total)


def closed_form(protocol: Protocol) -> Radius:
    """Lambda exp(h Lambda / (1 - rho)) beta: never below the recursion, because 1 + x <= e^x."""
    check(protocol)
    total = sum(line.rate for line in protocol.lines)
    h = max((line.growth for line in protocol.lines if line.rate > 0), default=0.0)
    additive = _log(total * _beta(protocol))
    return Radius(additive + h * total / (1 - protocol.rho), additive) if additive > NOTHING else Radius(*[NOTHING] * 2)


def paper_closed_form(protocol: Protocol) -> Radius:
    """Theorems 1 and 2 as printed, Lambda (1 + h)^Lambda beta. Not a bound where a rate is below 1: `paper_is_bound`.

    *Departures*: beta has the additive term in the right norm, so that what differs from `closed_form` is the power.
    """
    check(protocol)
    total = sum(line.rate for line in protocol.lines)
    h = max((line.growth for line in protocol.lines if line.rate > 0), default=0.0)
    additive = _log(total * _beta(protocol))
    return Radius(additive + total * math.log1p(h), additive) if additive > NOTHING else Radius(*[NOTHING] * 2)


def paper_is_bound(protocol: Protocol) -> bool:
    """Whether the proof's last step holds: Bernoulli's (1 + x)^l >= 1 + l x needs every rate l to be at least 1.

    It also leaves momentum out.
    """
    return protocol.rho == 0 and all(line.rate >= 1 or line.rate == 0 for line in protocol.lines)


def dense(protocol: Protocol, growths: Sequence[float]) -> Protocol:
    """The same devices and rates without top-k; `growths` are over all d coordinates, a number a round."""
    lines = tuple(replace(line, growth=h, omega=0.0) for line, h in zip(protocol.lines, growths, strict=True))
    return Protocol(protocol.d, None, lines, protocol.rho)


# --- the recursion in logarithms -------------------------------------------------------------------------------------


def _followed(protocol: Protocol, width: int | None, capped: bool) -> Radius:
    distance = additive = pushed = pushed_alone = NOTHING  # D, D without growth, P, P without growth
    root = math.sqrt(protocol.w if width is None else width)
    for line, held in zip(protocol.lines, _holdings(protocol), strict=True):
        sent = _log(2 * line.share * line.clip_norm * root)
        kept = _log(protocol.rho)
        pushed = _sum(kept + pushed, _log(line.growth) + distance, sent)
        pushed_alone = _sum(kept + pushed_alone, sent)
        held_back = _log(2 * _masked_l1(protocol, held) + 2 * _gamma(protocol, held))
        limit = _log(2 * _applied_l1(protocol, held)) if capped else math.inf
        rate = _log(line.rate)
        distance = _sum(distance, rate + min(limit, _sum(pushed, held_back)))
        additive = _sum(additive, rate + min(limit, _sum(pushed_alone, held_back)))
    return Radius(distance, additive)


def _holdings(protocol: Protocol) -> list[_Held]:
    """R and W cannot exceed these, in either run: |u|_2 <= L, |u|_1 <= sqrt(d) L, and top-k leaves omega of what it
    sees in l1, and never more than sqrt(1 - k/d) of it in l2."""
    found = []
    l1 = l2 = memory_l1 = memory_l2 = 0.0
    left_l2 = math.sqrt(1 - protocol.k / protocol.d) if protocol.k is not None else 0.0
    for line in protocol.lines:
        forgotten = protocol.rho * l2
        l1, l2 = protocol.rho * l1 + math.sqrt(protocol.d) * line.clip_norm, forgotten + line.clip_norm
        after = line.omega * (memory_l1 + l1)
        found.append(_Held(l1, l2, forgotten, memory_l1, after, memory_l2))
        memory_l1, memory_l2 = after, left_l2 * (memory_l2 + l2)
    return found


def _gamma(protocol: Protocol, held: _Held) -> float:
    """|A(R_t) - R_t|_1 = |W_(t-1) - W_t|_1."""
    return held.before_l1 + held.after_l1 if protocol.k is not None else 0.0


def _masked_l1(protocol: Protocol, held: _Held) -> float:
    """On w coordinates, what masking can have taken out of the momentum."""
    return math.sqrt(protocol.w) * held.forgotten_l2 if protocol.k is not None else 0.0


def _applied_l1(protocol: Protocol, held: _Held) -> float:
    """|A_t|_1: in l1 what top-k sees; in l2 no more than sqrt(k) of it."""
    if protocol.k is None:
        return math.sqrt(protocol.d) * held.momentum_l2
    return min(held.before_l1 + held.momentum_l1, math.sqrt(protocol.k) * (held.before_l2 + held.momentum_l2))


def _beta(protocol: Protocol) -> float:
    """The largest additive term of a round, momentum summed up."""
    root = math.sqrt(protocol.w)
    sent = max(2 * line.share * line.clip_norm * root for line in protocol.lines) / (1 - protocol.rho)
    held = max(2 * _masked_l1(protocol, each) + 2 * _gamma(protocol, each) for each in _holdings(protocol))
    return sent + held


def _log(value: float) -> float:
    return math.log(value) if value > 0 else NOTHING


def _sum(*logs: float) -> float:
    """log of the sum."""
    return float(np.logaddexp.reduce(logs))
