"""Measures of what an attack achieved: in one round, and in a finished run compared with its unattacked twin.

Knows vectors, labels and counts; trains nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sparsefed.core.types import IGNORED


class Reach(NamedTuple):
    """The share of the attackers' update that reached the model, and their share of the model's change."""

    landed: float  # share of their summed update's squared length that lies on changed coordinates
    share: float  # <delta, theirs> / |delta|^2: for a plain mean, theirs and the honest devices' add up to 1


def reach(delta: Tensor, theirs: Tensor) -> Reach | None:
    """Return how far the attackers' updates reached the model in a round, or None if either vector is 0.

    `delta` is what the server subtracted [d], `theirs` the attackers' part of the mean [d], on the same scale. With
    server momentum or memory, `delta` also holds earlier rounds; `share` is then this round's part.

    >>> reach(torch.tensor([0.0, 2.0]), torch.tensor([3.0, 1.0]))
    Reach(landed=0.1, share=0.5)
    """
    change, part = delta.double(), theirs.double()
    length, sent = float(change @ change), float(part @ part)
    if length == 0 or sent == 0:
        return None
    changed = part[change != 0]
    return Reach(float(changed @ changed) / sent, float(change @ part) / length)


def unusable_notice(round: int, metrics: Mapping[str, Any]) -> str:
    """Return a sentence on what unusable updates changed in a round, from its statistics; "" if they changed nothing.

    >>> unusable_notice(3, {"received": 9, "dropped": 1.0, "f_used": 2.0})
    'round 3: 1 of 9 updates was not finite or absurdly long, so the rule went on without it and with f = 2'
    >>> unusable_notice(4, {"received": 9, "dropped": 0.0})
    ''
    """
    dropped, received = int(metrics.get("dropped", 0)), int(metrics.get("received", metrics.get("cohort", 0)))
    were, them = ("was", "it") if dropped == 1 else ("were", "them")
    cause = f"round {round}: {dropped} of {received} updates {were} not finite or absurdly long, so"
    if metrics.get("skipped"):
        return f"{cause} the rule had too few, and the model was left as it is"
    if "f_used" in metrics:
        return f"{cause} the rule went on without {them} and with f = {int(metrics['f_used'])}"
    return ""


def outsized_impact(learned: float, influence: float, points: int, examples: int) -> float:
    """Return the paper's OIF, |X_m| / (I n): points poisoned over the attackers' influence times the data.

    `learned` is the attack accuracy on the `points`, `influence` the share of devices that are compromised (I), and
    `examples` the size n of the training set: 1 means that attackers moved as many points as they own data.

    >>> outsized_impact(0.5, 0.02, 500, 50_000)
    0.25
    """
    return learned * points / (influence * examples)


class Distances(NamedTuple):
    """The distances between two models as flat vectors."""

    l1: float
    l2: float


def distances(theta: Tensor, other: Tensor) -> Distances:
    """Return |theta - other| in both norms.

    >>> distances(torch.tensor([1.0, 1.0]), torch.tensor([4.0, -3.0]))
    Distances(l1=7.0, l2=5.0)
    """
    difference = theta.double() - other.double()
    return Distances(float(difference.abs().sum()), float(torch.linalg.vector_norm(difference)))


def class_accuracies(predicted: Tensor, y: Tensor, classes: int) -> list[float | None]:
    """Return the accuracy on the examples of each class; None for a class without examples.

    >>> class_accuracies(torch.tensor([0, 1, 1]), torch.tensor([0, 0, 1]), 3)
    [0.5, 1.0, None]
    """
    right = torch.bincount(y[predicted == y], minlength=classes).double()
    of_all = torch.bincount(y, minlength=classes).double()
    return [float(r / n) if n else None for r, n in zip(right, of_all, strict=True)]


def balanced_accuracy(predicted: Tensor, y: Tensor) -> float:
    """Return the mean over the classes of each one's accuracy; where an example has several labels, also over these.

    >>> balanced_accuracy(torch.tensor([0, 0, 0, 0]), torch.tensor([0, 0, 0, 1]))
    0.5
    """
    shares = []
    for guess, truth in zip(_columns(predicted), _columns(y), strict=True):
        right = [
            float((guess[truth == label] == label).double().mean()) for label in torch.unique(truth[truth != IGNORED])
        ]
        shares += [sum(right) / len(right)] if right else []
    return sum(shares) / len(shares) if shares else math.nan


def area_under_curve(outputs: Tensor, y: Tensor) -> float:
    """Return the area under the ROC curve: how likely an example of a class ranks above one that is not of it.

    Outputs are the log-odds of 1 (ties count half), for several labels the mean over those that occur and do not, or
    scores by class [M, C], for which it is the mean over the classes, each against the rest.

    >>> area_under_curve(torch.tensor([0.1, 0.4, 0.35, 0.8]), torch.tensor([0, 0, 1, 1]))
    0.75
    """
    if y.dim() == 1 and outputs.dim() == 2 and outputs.shape[1] > 1:
        shares = outputs.double().softmax(1)
        labels = range(1, 2) if outputs.shape[1] == 2 else range(outputs.shape[1])
        pairs = [(shares[:, label], y == label) for label in labels]
    else:
        columns = zip(_columns(outputs.double().reshape(y.shape)), _columns(y), strict=True)
        pairs = [(scores[truth != IGNORED], truth[truth != IGNORED] == 1) for scores, truth in columns]
    areas = [_area(scores, ours) for scores, ours in pairs if bool(ours.any()) and not bool(ours.all())]
    return sum(areas) / len(areas) if areas else math.nan


def _area(scores: Tensor, ours: Tensor) -> float:
    """Return the Mann-Whitney statistic over its maximum, from mean ranks."""
    _, place, counts = torch.unique(scores, return_inverse=True, return_counts=True)
    ranks = (counts.cumsum(0) - (counts - 1) / 2).double()[place]
    n, m = int(ours.sum()), int((~ours).sum())
    return float((ranks[ours].sum() - n * (n + 1) / 2) / (n * m)) if bool(scores.isfinite().all()) else math.nan


def _columns(y: Tensor) -> list[Tensor]:
    return list(y.reshape(len(y), -1).T)
