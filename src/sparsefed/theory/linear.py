"""Certified accuracy of one softmax layer: which predictions no attack within the threat model can change.

This goes beyond the paper. Two routes lead to the distance between the attacked and the unattacked model: in l1 by
`radius.capped`, and in l2 by the recursion here, which needs no exponential. Cross-entropy of a linear model is convex
and smooth, so that a step of gradient descent with rate <= 2/smooth brings two models no further apart (it is
non-expansive), and attackers who hold a share s_t of updates of norm L_t move them by what they send and by no more:

    |theta_T - theta_T^benign|_2  <=  sum_t lambda_t s_t (L_t + l_t)  <=  sum_t lambda_t 2 s_t L_t

with l_t <= L_t the longest honest update that they replace. That needs honest updates that clipping does not cut. Where
it may, and with momentum, differences grow by 1 + lambda_t smooth a round, until L_t + l_t is the smaller bound.

Top-k with memory (rho = 0) is followed through theta~_t = theta_t - lambda_t W_t, the model that has applied all that
it received (Stich et al. 2018; Karimireddy et al. 2019): it moves by -lambda_t u_t like a dense one, with gradients
taken |lambda W|_2 away. The memory is bounded by clipping alone, |W_t|_2 <= sqrt(1 - k/d) (|W_(t-1)|_2 + L_t), for
every attack: nothing about omega is assumed or measured. With V_t = |theta~_t - theta~_t^benign|_2,

    V_t  <=  V_(t-1) + lambda_t (s_t (L_t + l_t) + 2 smooth lambda_(t-1) M_(t-1)) + 2 |lambda_t - lambda_(t-1)| M_(t-1)
    |theta_t - theta_t^benign|_2  <=  V_t + 2 lambda_t M_t,        M_t = sqrt(1 - k/d) (M_(t-1) + L_t).

A point's margin between two classes moves by at most |x|_inf R_1 and sqrt(2) |x|_2 R_2 (x with the bias's 1). All of
it is about real numbers: the rounding of a run in float32 is not covered.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sparsefed.core.errors import ConfigError
from sparsefed.theory.logs import NOTHING, log, log_sum
from sparsefed.theory.radius import Radius, capped
from sparsefed.theory.threat_schedule import Line, ThreatSchedule, check

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]


class Radii(NamedTuple):
    """The largest distances between the two models, as natural logarithms."""

    l1: float
    l2: float


def l2_radius(
    protocol: ThreatSchedule, smooth: Sequence[float], free: Sequence[float], norms: Sequence[float] | None = None
) -> Radius:
    """Return a bound on the l2 distance of the two models after the last round; each sequence has a number per round.

    `smooth`: the largest l2 change of a device's update (before clipping) for a unit of l2 change in the model.
    `free`: the norm that no honest update exceeds at any model (`clip_free`; times the rate where updates hold it).
    `norms`: the largest norm in the cohort of the honest run before clipping, where it was measured. It is l_t, and the
    same device sends at most smooth * distance more in the attacked run: nothing is clipped where L_t is above.

    *Departures*: a line's `growth` and `omega` are not used, they are of the l1 recursion.
    """
    _check(protocol, smooth, free, norms)
    grown = _followed(protocol, smooth, free, norms)
    return Radius(grown, _followed(protocol, [0.0] * len(smooth), free, norms))


def radii_of_share(
    protocol: ThreatSchedule, smooth: Sequence[float], free: Sequence[float], norms: Sequence[float] | None = None
) -> Callable[[float], Radii]:
    """Return both radii of the protocol as a function of the attackers' share, which is constant over the rounds."""

    def radii(share: float) -> Radii:
        if share == 0:
            return Radii(NOTHING, NOTHING)
        given = replace(protocol, lines=tuple(replace(line, share=share) for line in protocol.lines))
        known = protocol.k is None or protocol.rho == 0
        return Radii(capped(given).log, l2_radius(given, smooth, free, norms).log if known else math.inf)

    return radii


# --- predictions -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Points:
    """A linear model's predictions on test points, and how sensitive each is to a change of the weights."""

    margin: FloatArray  # [N], the score of the predicted class minus the next one's
    right: BoolArray  # [N], whether the predicted class is the label
    largest: FloatArray  # [N], |x|_inf, the bias's 1 included
    length: FloatArray  # [N], |x|_2
    chance: float  # the share of the most frequent label


def points(
    weight: Tensor,
    bias: Tensor | None,
    x: Tensor,
    y: Tensor,
    *,
    prepare: Callable[[Tensor], Tensor] | None = None,
    batch: int = 4096,
) -> Points:
    """Return the predictions of a layer (weight [classes, m], bias [classes]) on points [N, ...] with labels [N]."""
    if len(y) == 0 or len(weight) < 2:
        raise ConfigError("certified accuracy needs at least one test point and two classes")
    chunks = []
    for low in range(0, len(x), batch):
        raw = x[low : low + batch]
        inputs = (prepare(raw) if prepare else raw).flatten(1).double()
        if bias is not None:
            inputs = torch.cat([inputs, inputs.new_ones(len(inputs), 1)], 1)
        layer = weight if bias is None else torch.cat([weight, bias[:, None]], 1)
        best = (inputs @ layer.double().T).topk(2, dim=1)
        right = best.indices[:, 0] == y[low : low + batch]
        margin = best.values[:, 0] - best.values[:, 1]
        chunks.append((margin, right, inputs.abs().amax(1), torch.linalg.vector_norm(inputs, dim=1)))
    margin, right, largest, length = (torch.cat(parts) for parts in zip(*chunks, strict=True))
    chance = float(np.bincount(y.numpy()).max() / len(y))
    return Points(margin.numpy(), right.numpy(), largest.numpy(), length.numpy(), chance)


def keeps(points: Points, radii: Radii) -> BoolArray:
    """Return which points keep their prediction in every run within the radii, by the better of the two routes."""
    with np.errstate(over="ignore"):  # a radius beyond float64 is infinite, and certifies nothing
        by_l1 = points.largest * np.exp(radii.l1)
        by_l2 = math.sqrt(2) * points.length * np.exp(radii.l2)
    kept: BoolArray = points.margin > np.minimum(by_l1, by_l2)
    return kept


def certified_accuracy(points: Points, radii: Radii) -> float:
    """Return the share of points that are classified right and stay so whatever the attackers send."""
    return float((points.right & keeps(points, radii)).mean())


@dataclass(frozen=True)
class Certified:
    """Certified accuracy at one share of attackers."""

    share: float
    accuracy: float  # certified accuracy
    radii: Radii


def curve(points: Points, radii: Callable[[float], Radii], shares: Sequence[float]) -> tuple[Certified, ...]:
    """Return certified accuracy for each of these shares of attackers."""
    return tuple(Certified(share, certified_accuracy(points, radii(share)), radii(share)) for share in shares)


def largest_share(
    points: Points, radii: Callable[[float], Radii], *, floor: float | None = None, precision: float = 1e-6
) -> float | None:
    """Return the largest share of attackers with certified accuracy above `floor`, by bisection; None: at no share.

    The default floor is chance, the accuracy of always predicting the most frequent class of the test points. At or
    below it a certificate is vacuous: a constant prediction does as well. Certified accuracy never rises with the
    share, because the radii never fall.
    """
    wanted = points.chance if floor is None else floor

    def above(share: float) -> bool:
        return certified_accuracy(points, radii(share)) > wanted

    if not above(0.0):
        return None
    low, high = 0.0, 1.0
    if above(high):
        return high
    while high - low > precision:
        middle = (low + high) / 2
        low, high = (middle, high) if above(middle) else (low, middle)
    return low


# --- the recursion in logarithms -------------------------------------------------------------------------------------


def _followed(
    protocol: ThreatSchedule, smooth: Sequence[float], free: Sequence[float], norms: Sequence[float] | None
) -> float:
    virtual = pushed = NOTHING  # V, and with momentum P_t = rho P_(t-1) + the difference of the updates' means
    memory = before = 0.0  # M_(t-1), lambda_(t-1)
    left = math.sqrt(1 - protocol.k / protocol.d) if protocol.k is not None else 0.0
    attacked = False
    for line, steep, longest, norm in zip(protocol.lines, smooth, free, free if norms is None else norms, strict=True):
        attacked = attacked or line.share > 0  # until then the two runs are identical
        if attacked:
            apart = _Apart(virtual, log(2 * before * memory))
            still = protocol.rho == 0 and line.rate * steep <= 2 and _uncut(line, steep, longest, norm, apart)
            pushed = log_sum(log(protocol.rho) + pushed, _difference(line, steep, min(longest, norm), apart, still))
            turned = log(2 * abs(line.rate - before) * memory)
            virtual = log_sum(virtual, log(line.rate) + pushed, turned)
        memory, before = left * (memory + line.clip_norm), line.rate
    return log_sum(virtual, log(2 * before * memory)) if attacked else NOTHING


class _Apart(NamedTuple):
    """The distance of the models that have applied everything, and what the two memories add to it, as logarithms."""

    virtual: float
    waiting: float

    @property
    def all(self) -> float:
        return log_sum(self.virtual, self.waiting)


def _uncut(line: Line, steep: float, longest: float, norm: float, apart: _Apart) -> bool:
    """Return whether no honest update is clipped in either run: at any model, or from this norm at this distance."""
    room = line.clip_norm - norm
    return longest <= line.clip_norm or (room >= 0 and log(steep) + apart.all <= log(room))


def _difference(line: Line, steep: float, honest: float, apart: _Apart, still: bool) -> float:
    """Return how far the two means of updates can differ, beyond what a non-expansive step takes back.

    An honest update that is replaced is no longer than `honest`, and its replacement no longer than L.
    """
    reach = line.clip_norm + min(line.clip_norm, honest)
    return min(log(reach), log_sum(log(steep) + (apart.waiting if still else apart.all), log(line.share * reach)))


def _check(
    protocol: ThreatSchedule, smooth: Sequence[float], free: Sequence[float], norms: Sequence[float] | None
) -> None:
    check(protocol)
    if protocol.k is not None and protocol.rho > 0:
        raise ConfigError(
            f"the l2 radius of top-k with memory is known without momentum alone, but rho is {protocol.rho}; use "
            "rho = 0, or the l1 radius"
        )
    rounds = len(protocol.lines)
    for name, given in (("smooth", smooth), ("free", free), ("norms", smooth if norms is None else norms)):
        if len(given) != rounds:
            raise ConfigError(f"{name} has {len(given)} numbers for {rounds} rounds; give one a round")
        if not all(value >= 0 for value in given):
            raise ConfigError(f"{name} holds {min(given)}, but norms and constants are numbers from 0")
