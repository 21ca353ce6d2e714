"""Certified accuracy of one softmax layer: from a source and a trained model to the curve against attackers' shares.

The model without attackers says which points stay right under every attack. A model from a run under attack says less:
where it is right by more than the radius, the one without attackers is right too, whatever this run's attackers sent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sparsefed.certificate.cover import Server
from sparsefed.certificate.smoothness import Smoothness, local_scale
from sparsefed.certificate.source import Source
from sparsefed.certify import linear
from sparsefed.certify.linear import Certified, Points, Radii
from sparsefed.certify.protocol import Protocol
from sparsefed.certify.radius import capped

SHARES = (0.0, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2)  # where nothing is certified but at 0
STEPS = 24  # of the curve, up to half as much again as the largest share


@dataclass(frozen=True)
class Accuracy:
    """What is certified of a model's predictions."""

    points: int
    plain: float  # accuracy of the model as it is
    chance: float  # of always naming the most frequent class
    asked: Certified  # for the attackers that the certificate is about; `share` is their largest in a round
    curve: tuple[Certified, ...]  # for the same share in every round; of a run under attack there is none
    largest: float | None  # share with more than chance certified; None: at no share
    attacked: bool  # whether the model comes from a run under attack
    measured: bool  # whether the lengths of honest updates were

    @property
    def vacuous(self) -> bool:
        """Whether a constant is as good as what is certified."""
        return self.asked.accuracy <= self.chance


def accuracy(source: Source, server: Server, smooth: Smoothness, protocol: Protocol) -> Accuracy | None:
    """Certified accuracy; None where the model is not one softmax layer or has not been trained."""
    if smooth.layer is None or source.final is None or source.exceeds(protocol):
        return None
    attacked = source.run is not None and any(each.attackers for each in source.rounds)
    points = _points(source, source.final)
    radii = _radii(source, server, smooth)
    of_share = _of_share(radii, protocol)
    largest = None if attacked else linear.largest_share(points, of_share)
    shares = [] if attacked else _shares(largest)
    both = radii(protocol)
    asked = Certified(max(line.share for line in protocol.lines), linear.certified_accuracy(points, both), both)
    return Accuracy(
        points=len(points.margin),
        plain=float(points.right.mean()),
        chance=points.chance,
        asked=asked,
        curve=linear.curve(points, of_share, shares),
        largest=largest,
        attacked=attacked,
        measured=_norms(source) is not None,
    )


def _points(source: Source, theta: Tensor) -> Points:
    task, arrays = source.experiment.task, source.arrays
    found = {slot.name.rpartition(".")[2]: theta[slot.start : slot.stop].view(slot.shape) for slot in task.slots}
    x, y = torch.from_numpy(arrays.x_test), torch.from_numpy(arrays.y_test)
    return linear.points(found["weight"], found.get("bias"), x, y, prepare=task.prepare)


def _radii(source: Source, server: Server, smooth: Smoothness) -> Callable[[Protocol], Radii]:
    """Both routes, as a function of the protocol; top-k with momentum has no l2 route."""
    assert smooth.layer is not None
    after = [each.lr if server.inside and not _holds_rate(source) else 1.0 for each in source.rounds]  # clipping
    scales = [local_scale(source, each.lr) * factor for each, factor in zip(source.rounds, after, strict=True)]
    steep, free = [scale * smooth.layer.smooth for scale in scales], [scale * smooth.uncut for scale in scales]
    known = _norms(source)
    norms = None if known is None else [norm * factor for norm, factor in zip(known, after, strict=True)]

    def radii(given: Protocol) -> Radii:
        l1 = capped(given).log
        if given.k is not None and given.rho > 0:
            return Radii(l1, math.inf)
        return Radii(l1, linear.l2_radius(given, steep, free, norms).log)

    return radii


def _holds_rate(source: Source) -> bool:
    return source.config.train.mode == "fedavg"


def _of_share(radii: Callable[[Protocol], Radii], protocol: Protocol) -> Callable[[float], Radii]:
    def of_share(share: float) -> Radii:
        if share == 0:
            return Radii(-math.inf, -math.inf)
        return radii(replace(protocol, lines=tuple(replace(line, share=share) for line in protocol.lines)))

    return of_share


def _norms(source: Source) -> list[float] | None:
    """The longest honest update of each round before clipping, where they were written down, all of them."""
    known = [each.longest for each in source.rounds if each.longest is not None]
    return known if len(known) == len(source.rounds) else None


def _shares(largest: float | None) -> Sequence[float]:
    if not largest:
        return SHARES
    return [1.5 * largest * step / STEPS for step in range(STEPS + 1) if 1.5 * largest * step / STEPS < 1]
