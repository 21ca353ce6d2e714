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

from sparsefed.core.errors import require
from sparsefed.core.task import Task
from sparsefed.theory.radius import NOTHING, Radius, capped, log, log_sum
from sparsefed.theory.threat_schedule import Line, ThreatSchedule, check

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]
SHARES = (0.0, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2)  # used if nothing is certified above 0
STEPS = 24  # of the curve, up to half as much again as the largest share


class Radii(NamedTuple):
    """The largest distances between the two models, as natural logarithms."""

    l1: float
    l2: float


def l2_radius(protocol: ThreatSchedule) -> Radius:
    """Return a bound on the l2 distance of the two models after the last round.

    A line's `longest`, where it was measured, is l_t: the same device sends at most smooth * distance more in the
    attacked run, so nothing is clipped where L_t is above.

    *Departures*: a line's `growth` and `omega` are not used, they are of the l1 recursion.
    """
    check(protocol)
    require(
        protocol.k is None or protocol.rho == 0,
        f"the l2 radius of top-k with memory is known without momentum alone, but rho is {protocol.rho}; use rho = 0, "
        "or the l1 radius",
    )
    require(protocol.has_l2, "the l2 radius needs the smoothness of a softmax layer in every round; use the l1 radius")
    alone = replace(protocol, lines=tuple(replace(line, smooth=0.0) for line in protocol.lines))
    return Radius(_followed(protocol), _followed(alone))


def radii(protocol: ThreatSchedule) -> Radii:
    """Return the radii by both routes; the one in l2 is infinite where it is not known."""
    return Radii(capped(protocol).log, l2_radius(protocol).log if protocol.has_l2 else math.inf)


def radii_of_share(protocol: ThreatSchedule) -> Callable[[float], Radii]:
    """Return both radii of the protocol as a function of the attackers' share, which is constant over the rounds."""

    def of_share(share: float) -> Radii:
        return Radii(NOTHING, NOTHING) if share == 0 else radii(protocol.with_share(share))

    return of_share


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
    require(len(y) > 0 and len(weight) > 1, "certified accuracy needs at least one test point and two classes")
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


def task_points(task: Task, theta: Tensor, x: Tensor, y: Tensor) -> Points:
    """Return the predictions of a task that is one softmax layer, at a model [d]."""
    layer = {slot.name.rpartition(".")[2]: theta[slot.start : slot.stop].view(slot.shape) for slot in task.slots}
    return points(layer["weight"], layer.get("bias"), x, y, prepare=task.prepare)


def margins(task: Task, thetas: Tensor, x: Tensor, batch: int = 4096) -> FloatArray:
    """Return the margins of several models [G, d] of a task that is one softmax layer, as `task_points` does [G, N]."""
    layers = {
        slot.name.rpartition(".")[2]: thetas[:, slot.start : slot.stop].reshape(len(thetas), *slot.shape).double()
        for slot in task.slots
    }
    weight, bias = layers["weight"], layers.get("bias")
    chunks = []
    for low in range(0, len(x), batch):
        inputs = task.prepare(x[low : low + batch]).flatten(1).double()
        scores = (inputs @ weight.flatten(0, 1).T).view(len(inputs), *weight.shape[:2])
        best = (scores if bias is None else scores + bias).topk(2, dim=2).values
        chunks.append(best[..., 0] - best[..., 1])
    margin: FloatArray = torch.cat(chunks).T.numpy()
    return margin


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


@dataclass(frozen=True)
class Accuracy:
    """The certified accuracy of a model.

    The model without attackers shows which points stay right under every attack. A model from a run under attack shows
    less: where it is right by more than the radius, the one without attackers is right too, whatever was sent.
    """

    points: int
    plain: float  # accuracy of the model as it is
    chance: float  # of always predicting the most frequent class
    certified: Certified  # for the attackers that the certificate is about; `share` is their largest in a round
    curve: tuple[Certified, ...]  # for one share in every round; empty for a run under attack
    largest: float | None  # share with more than chance certified; None: at no share
    attacked: bool  # whether the model comes from a run under attack

    @property
    def vacuous(self) -> bool:
        """Return whether a constant prediction is as good as what is certified."""
        return self.certified.accuracy <= self.chance


def accuracy(seen: Points, protocol: ThreatSchedule, attacked: bool) -> Accuracy:
    """Return the certified accuracy of a model on these points; `attacked`: it comes from a run under attack."""
    of_share, both = radii_of_share(protocol), radii(protocol)
    largest = None if attacked else largest_share(seen, of_share)
    shares = [1.5 * largest * step / STEPS for step in range(STEPS + 1)] if largest else SHARES
    return Accuracy(
        points=len(seen.margin),
        plain=float(seen.right.mean()),
        chance=seen.chance,
        certified=Certified(max(line.share for line in protocol.lines), certified_accuracy(seen, both), both),
        curve=() if attacked else curve(seen, of_share, [share for share in shares if share < 1]),
        largest=largest,
        attacked=attacked,
    )


# --- the recursion in logarithms -------------------------------------------------------------------------------------


def _followed(protocol: ThreatSchedule) -> float:
    virtual = pushed = NOTHING  # V, and with momentum P_t = rho P_(t-1) + the difference of the updates' means
    memory = before = 0.0  # M_(t-1), lambda_(t-1)
    left = math.sqrt(1 - protocol.k / protocol.d) if protocol.k is not None else 0.0
    attacked = False
    for line in protocol.lines:
        attacked = attacked or line.share > 0  # until then the two runs are identical
        if attacked:
            apart = _Apart(virtual, log(2 * before * memory))
            still = protocol.rho == 0 and line.rate * line.smooth <= 2 and _uncut(line, apart)
            pushed = log_sum(log(protocol.rho) + pushed, _difference(line, apart, still))
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


def _uncut(line: Line, apart: _Apart) -> bool:
    """Return whether no honest update is clipped in either run: at any model, or from the longest at this distance."""
    room = line.clip_norm - line.longest
    return line.free <= line.clip_norm or (room >= 0 and log(line.smooth) + apart.all <= log(room))


def _difference(line: Line, apart: _Apart, still: bool) -> float:
    """Return how far the two means of updates can differ, beyond what a non-expansive step takes back.

    An honest update that is replaced is no longer than `free` and `longest`, and its replacement no longer than L.
    """
    reach = line.clip_norm + min(line.clip_norm, line.free, line.longest)
    grown = log(line.smooth) + (apart.waiting if still else apart.all)
    return min(log(reach), log_sum(grown, log(line.share * reach)))
