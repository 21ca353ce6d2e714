"""Certified accuracy of one softmax layer, from a source and a trained model to its curve over attackers' shares.

The model without attackers shows which points stay right under every attack. A model from a run under attack shows
less: where it is right by more than the radius, the one without attackers is right too, whatever was sent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sparsefed.commands.certify.l2_bound import Route
from sparsefed.commands.certify.smoothness import Smoothness
from sparsefed.commands.certify.subject import CertificateSource
from sparsefed.theory import linear
from sparsefed.theory.linear import Certified, Points, Radii
from sparsefed.theory.radius import capped
from sparsefed.theory.threat_schedule import ThreatSchedule

SHARES = (0.0, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2)  # used if nothing is certified above 0
STEPS = 24  # of the curve, up to half as much again as the largest share


@dataclass(frozen=True)
class Accuracy:
    """The certified accuracy of a model."""

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


def accuracy(source: CertificateSource, smooth: Smoothness, route: Route, schedule: ThreatSchedule) -> Accuracy | None:
    """Return the certified accuracy; None if the model is not one softmax layer or has not been trained."""
    if smooth.layer is None or source.final is None or source.exceeds(schedule):
        return None
    points = _points(source, source.final)
    radii = _radii(route)
    of_share = _of_share(radii, schedule)
    largest = None if source.attacked else linear.largest_share(points, of_share)
    shares = [] if source.attacked else _shares(largest)
    both = radii(schedule)
    certified = Certified(max(line.share for line in schedule.lines), linear.certified_accuracy(points, both), both)
    return Accuracy(
        points=len(points.margin),
        plain=float(points.right.mean()),
        chance=points.chance,
        certified=certified,
        curve=linear.curve(points, of_share, shares),
        largest=largest,
        attacked=source.attacked,
    )


def _points(source: CertificateSource, theta: Tensor) -> Points:
    task, arrays = source.experiment.task, source.arrays
    layer = {slot.name.rpartition(".")[2]: theta[slot.start : slot.stop].view(slot.shape) for slot in task.slots}
    x, y = torch.from_numpy(arrays.x_test), torch.from_numpy(arrays.y_test)
    return linear.points(layer["weight"], layer.get("bias"), x, y, prepare=task.prepare)


def _radii(route: Route) -> Callable[[ThreatSchedule], Radii]:
    """Return the radii by both routes, as a function of the schedule."""

    def radii(given: ThreatSchedule) -> Radii:
        by_l2 = route(given)
        return Radii(capped(given).log, math.inf if by_l2 is None else by_l2.log)

    return radii


def _of_share(radii: Callable[[ThreatSchedule], Radii], schedule: ThreatSchedule) -> Callable[[float], Radii]:
    def of_share(share: float) -> Radii:
        if share == 0:
            return Radii(-math.inf, -math.inf)
        return radii(replace(schedule, lines=tuple(replace(line, share=share) for line in schedule.lines)))

    return of_share


def _shares(largest: float | None) -> Sequence[float]:
    if not largest:
        return SHARES
    return [1.5 * largest * step / STEPS for step in range(STEPS + 1) if 1.5 * largest * step / STEPS < 1]
