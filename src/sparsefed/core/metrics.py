"""Measures of what an attack achieved in one round; knows vectors and counts, trains nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from torch import Tensor


class Reach(NamedTuple):
    """The share of the attackers' update that reached the model, and their share of the model's change."""

    landed: float  # share of their summed update's squared length that lies on changed coordinates
    share: float  # <delta, theirs> / |delta|^2: for a plain mean, theirs and the honest devices' add up to 1


def reach(delta: Tensor, theirs: Tensor) -> Reach | None:
    """Return how far the attackers' updates reached the model in a round, or None if either vector is 0.

    `delta` is what the server subtracted [d], `theirs` the attackers' part of the mean [d], on the same scale. With
    server momentum or memory, `delta` also holds earlier rounds; `share` is then this round's part.

    >>> import torch
    >>> reach(torch.tensor([0.0, 2.0]), torch.tensor([3.0, 1.0]))
    Reach(landed=0.1, share=0.5)
    """
    change, part = delta.double(), theirs.double()
    length, sent = float(change @ change), float(part @ part)
    if length == 0 or sent == 0:
        return None
    changed = part[change != 0]
    return Reach(float(changed @ changed) / sent, float(change @ part) / length)


def rejected(accepted: frozenset[int], **devices: Iterable[int]) -> dict[str, int]:
    """Return how many devices of each kind, honest ones and attackers, are not among those that a rule accepted."""
    return {f"{kind}_rejected": sum(int(each) not in accepted for each in ids) for kind, ids in devices.items()}


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
