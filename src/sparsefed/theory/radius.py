"""The certified radius of the paper (Theorems 1 and 2), made sound: how far apart attackers can drive two runs.

With D_t = |theta_t - theta_t^benign|_1, w = min(d, 2k) and a share s_t of attackers among the clipped updates,

    D_t  <=  D_(t-1) + lambda_t (h_t D_(t-1) + 2 s_t L_t sqrt(w) + 2 gamma_t)

where h_t = w c (`protocol.growth`) and gamma_t bounds what top-k, its memory and a masked momentum put between the
update and what is applied: the paper's Eq. 3 with the additive term in the right norm. A dense protocol has gamma = 0;
its momentum is never masked, so there the first two terms add up over the rounds, forgotten at rho. Before the first
attacker both runs are one, so D = 0. The derivations are in docs/certificate.md.

All radii are natural logarithms: the numbers themselves overflow float64 after a few rounds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from sparsefed.core.errors import require
from sparsefed.theory.threat_schedule import Line, ThreatSchedule, check

NOTHING = -math.inf  # log 0


@dataclass(frozen=True)
class Radius:
    """A bound as its logarithm, with its two parts: `log = additive + propagation`."""

    log: float
    additive: float  # log of the sum over the rounds if nothing propagated

    @property
    def propagation(self) -> float:
        """Return the log of the factor by which early differences grow until the end."""
        return self.log - self.additive if self.log > NOTHING else 0.0

    @property
    def log10(self) -> float:
        return self.log / math.log(10)

    @property
    def parts(self) -> dict[str, float]:
        """Return all numbers of the radius by name."""
        return {"log": self.log, "additive": self.additive, "propagation": self.propagation, "log10": self.log10}


class _Held(NamedTuple):
    """Bounds on the server's vectors around one round's top-k, valid for both runs."""

    kept_l1: float  # rho |R_(t-1)|_1, after masking
    kept_l2: float
    momentum_l1: float  # |R_t|_1, before masking
    momentum_l2: float
    before_l1: float  # |W_(t-1)|_1
    before_l2: float
    after_l1: float  # |W_t|_1
    after_l2: float


def recursion(protocol: ThreatSchedule, width: int | None = None) -> Radius:
    """Return the sound bound, round by round; `width` is the w of the additive term, up to d (l1 norm of it all)."""
    check(protocol)
    w, d = protocol.w, protocol.d
    require(width is None or w <= width <= d, f"width is {width}, but coordinates that differ are {w} to all d = {d}")
    return _followed(protocol, math.sqrt(w if width is None else width), [(math.inf, math.inf)] * len(protocol.lines))


def capped(protocol: ThreatSchedule) -> Radius:
    """Return the recursion, each round and the run capped at what the enforced norm lets two runs differ by."""
    check(protocol)
    steps = (2 * _applied_l1(protocol, held) for held in _holdings(protocol))
    limits = [(log(step), log(moved)) for step, moved in zip(steps, _moved(protocol), strict=True)]
    return _followed(protocol, math.sqrt(protocol.w), limits)


def movement(protocol: ThreatSchedule) -> float:
    """Return the log of the bound by clipping alone: no two runs of such updates end further apart."""
    check(protocol)
    return log(_moved(protocol)[-1])


def closed_form(protocol: ThreatSchedule) -> Radius:
    """Return Lambda exp(h Lambda) beta, h / (1 - rho) if dense: never below the recursion, because 1 + x <= e^x."""
    check(protocol)
    total, h, beta = _summary(protocol)
    additive = log(total) + log(beta)
    return Radius(additive + total * h / (1 - _inertia(protocol)), additive)


def paper_closed_form(protocol: ThreatSchedule) -> Radius:
    """Return Theorems 1 and 2 as printed, Lambda (1 + h)^Lambda beta; a bound only where `paper_is_bound`.

    *Departures*: beta has the additive term in the right norm, so that what differs from `closed_form` is the power.
    """
    check(protocol)
    total, h, beta = _summary(protocol)
    additive = log(total) + log(beta)
    return Radius(additive + total * math.log1p(h), additive)


def paper_is_bound(protocol: ThreatSchedule) -> bool:
    """Return whether the proof's last step holds.

    Bernoulli's (1 + x)^l >= 1 + l x needs l >= 1 from the second round on. The proof also ignores momentum that is
    not masked.
    """
    check(protocol)
    rates = [line.rate for line in _attacked(protocol) if line.rate > 0]
    return _inertia(protocol) == 0 and (_summary(protocol)[1] == 0 or all(rate >= 1 for rate in rates[1:]))


def dense(protocol: ThreatSchedule, growths: Sequence[float]) -> ThreatSchedule:
    """Return the protocol without top-k; `growths` are over all d coordinates, one number per round."""
    pairs = zip(protocol.lines, growths, strict=True)  # what was measured is of the protocol with top-k
    lines = tuple(replace(line, growth=h, omega=0.0, longest=math.inf) for line, h in pairs)
    return ThreatSchedule(protocol.d, None, lines, protocol.rho)


# --- the recursion in logarithms -------------------------------------------------------------------------------------


def log(value: float) -> float:
    """Return the logarithm of a number that is not negative.

    >>> log(0.0), log(1.0)
    (-inf, 0.0)
    """
    return math.log(value) if value > 0 else NOTHING


def log_sum(*logs: float) -> float:
    """Return the logarithm of the sum of the numbers with these logarithms."""
    return float(np.logaddexp.reduce(logs))


def _followed(protocol: ThreatSchedule, root: float, limits: Sequence[tuple[float, float]]) -> Radius:
    """Follow the recursion; `root`: of the additive term; `limits`: logs of caps on the differences of A_t and D_t."""
    distance = additive = pushed = pushed_alone = NOTHING  # D, D without growth; the update's part of each
    inertia = log(_inertia(protocol))
    skipped = len(protocol.lines) - len(_attacked(protocol))
    rounds = list(zip(protocol.lines, _holdings(protocol), limits, strict=True))
    for line, held, (most, limit) in rounds[skipped:]:
        sent = log(_sent(protocol, line, held, root))
        pushed = log_sum(inertia + pushed, log(line.growth) + distance, sent)
        pushed_alone = log_sum(inertia + pushed_alone, sent)
        between, rate = log(2 * _gamma(protocol, held)), log(line.rate)
        distance = min(limit, log_sum(distance, rate + min(most, log_sum(pushed, between))))
        additive = min(limit, log_sum(additive, rate + min(most, log_sum(pushed_alone, between))))
    return Radius(distance, additive)


def _attacked(protocol: ThreatSchedule) -> tuple[Line, ...]:
    """Return the rounds from the first one with an attacker on: until then the two runs are identical."""
    first = next((i for i, line in enumerate(protocol.lines) if line.share > 0), len(protocol.lines))
    return protocol.lines[first:]


def _inertia(protocol: ThreatSchedule) -> float:
    """Return rho if a round's update keeps moving the model in later rounds; masking ends that (see `_gamma`)."""
    return protocol.rho if protocol.k is None else 0.0


def _holdings(protocol: ThreatSchedule) -> list[_Held]:
    """Return bounds on R and W in either run.

    |u|_2 <= L, |u|_1 <= sqrt(d) L, and top-k leaves omega of what it sees in l1, and never more than sqrt(1 - k/d) of
    it in l2.
    """
    holdings = []
    left_l1 = left_l2 = memory_l1 = memory_l2 = 0.0  # R and W after the round
    for line in protocol.lines:
        held = _around(protocol, line, (left_l1, left_l2), (memory_l1, memory_l2))
        holdings.append(held)
        unmasked = held.momentum_l1
        if protocol.k is not None:  # where R is not masked, nothing was applied: there it is W_t - W_(t-1)
            unmasked = min(unmasked, memory_l1 + held.after_l1)
        left_l1 = max(unmasked, left_l1) if line.share == 1 else unmasked  # see `_around`
        left_l2, memory_l1, memory_l2 = held.momentum_l2, held.after_l1, held.after_l2
    return holdings


def _around(protocol: ThreatSchedule, line: Line, left: tuple[float, float], memory: tuple[float, float]) -> _Held:
    """Return one round, from bounds on R and W (in l1 and l2) as the last one left them."""
    kept_l1, kept_l2 = (protocol.rho * norm for norm in left)
    l1, l2 = kept_l1 + math.sqrt(protocol.d) * line.clip_norm, kept_l2 + line.clip_norm
    lost_l2 = 0.0 if protocol.k is None else math.sqrt(1 - protocol.k / protocol.d)
    after_l1, after_l2 = line.omega * (memory[0] + l1), lost_l2 * (memory[1] + l2)
    if line.share == 1:  # if all are attackers, they can leave a round without a usable update, which changes nothing
        l1, l2, after_l1, after_l2 = map(max, (l1, l2, after_l1, after_l2), (*left, *memory))
    return _Held(kept_l1, kept_l2, l1, l2, *memory, after_l1, after_l2)


def _sent(protocol: ThreatSchedule, line: Line, held: _Held, root: float) -> float:
    """Return the attackers' change of the update, in l1; if all are attackers, they decide whether momentum moves."""
    alone = protocol.k is None and line.share == 1
    return 2 * root * (held.momentum_l2 if alone else line.share * line.clip_norm)


def _gamma(protocol: ThreatSchedule, held: _Held) -> float:
    """Return a bound on |A(u_t) - u_t|_1 = |rho R_(t-1) + W_(t-1) - W_t|_1, the old momentum on w coordinates only."""
    if protocol.k is None:
        return 0.0
    return min(held.kept_l1, math.sqrt(protocol.w) * held.kept_l2) + held.before_l1 + held.after_l1


def _applied_l1(protocol: ThreatSchedule, held: _Held) -> float:
    """Return a bound on |A_t|_1: the l1 norm of what top-k sees, or sqrt(k) times its l2 norm."""
    if protocol.k is None:
        return math.sqrt(protocol.d) * held.momentum_l2
    return min(held.before_l1 + held.momentum_l1, math.sqrt(protocol.k) * (held.before_l2 + held.momentum_l2))


def _moved(protocol: ThreatSchedule) -> list[float]:
    """Return, after each round, twice the furthest that a model can be from its start.

    It is the sum of lambda_t |A_t|_1, or the sum of |R_s|_1, each times the largest rate since: top-k with memory only
    delays, so what is applied to a coordinate is the sum of what it received since the last time.
    """
    moved = []
    summed = 0.0
    waiting: list[tuple[float, float, float]] = []  # falling rates, what was received at each, the sum before it
    for line, held in zip(protocol.lines, _holdings(protocol), strict=True):
        summed += line.rate * _applied_l1(protocol, held)
        received = held.momentum_l1
        while waiting and waiting[-1][0] <= line.rate:
            received += waiting.pop()[1]
        before = waiting[-1][2] + waiting[-1][0] * waiting[-1][1] if waiting else 0.0
        waiting.append((line.rate, received, before))
        moved.append(2 * min(summed, before + line.rate * received))
    return moved


def _summary(protocol: ThreatSchedule) -> tuple[float, float, float]:
    """Return Lambda, the largest h, and beta, the largest additive term, over the rounds from the first attacker on."""
    lines = _attacked(protocol)
    helds = _holdings(protocol)[len(protocol.lines) - len(lines) :]
    inertia, root = _inertia(protocol), math.sqrt(protocol.w)
    # A round at rate 0 moves nothing itself, but with inertia its update acts later.
    rounds = [(line, held) for line, held in zip(lines, helds, strict=True) if line.rate > 0 or inertia > 0]
    sent = max((_sent(protocol, line, held, root) for line, held in rounds), default=0.0) / (1 - inertia)
    between = max((2 * _gamma(protocol, held) for _, held in rounds), default=0.0)
    h = max((line.growth for line, _ in rounds), default=0.0)
    return sum(line.rate for line in lines), h, sent + between
