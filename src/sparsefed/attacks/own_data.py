"""What attackers make of the examples on their own devices: updates on right or wrong labels, poisoned mixtures."""

from __future__ import annotations

import math
from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from sparsefed.attacks.base import Gradient, granted
from sparsefed.attacks.goals import Goal
from sparsefed.core.errors import ConfigError
from sparsefed.core.rng import rng
from sparsefed.core.threat import Knowledge

Boost = Annotated[float, "factor on the update that each attacker sends"]
Poisoned = Annotated[float, "p, the share of the attackers' examples that are wrong"]
GoalBatch = Annotated[int, "of the goal's points in a step, where the goal has no trigger"]


class LabelledPoints(NamedTuple):
    """Raw examples and labels."""

    x: Tensor
    y: Tensor


def own_updates(knowledge: Knowledge, y: Tensor) -> Tensor:
    """What the attackers would send, had they these labels: `scale * gradient` of each one's own examples [a, d], or
    where devices take several local steps, what these come to."""
    own = granted(knowledge.own, "own data")
    if knowledge.train is not None:
        return knowledge.train(own._replace(y=y))
    sizes = own.sizes.tolist()
    parts = zip(torch.split(own.x, sizes), torch.split(y, sizes), strict=True)
    return knowledge.scale * torch.stack([knowledge.gradient(knowledge.theta, *part) for part in parts])


def owned(knowledge: Knowledge) -> LabelledPoints:
    """The examples of all attackers of the round."""
    own = granted(knowledge.own, "own data")
    return LabelledPoints(own.x, own.y)


def wrong(goal: Goal, clean: LabelledPoints, knowledge: Knowledge, batch: int) -> LabelledPoints:
    """What the model should learn of the goal: these examples stamped, or without a trigger a batch of its points."""
    if goal.stamp is not None and goal.target is not None:
        return LabelledPoints(goal.stamp(clean.x), torch.full_like(clean.y, goal.target))
    return some(goal, knowledge, batch)


def some(goal: Goal, knowledge: Knowledge, batch: int) -> LabelledPoints:
    """A batch of the goal's points, drawn anew each round."""
    draw = rng(knowledge.seed, "goal batch", knowledge.round)
    drawn = torch.from_numpy(draw.choice(len(goal.y), min(batch, len(goal.y)), replace=False))
    return LabelledPoints(goal.x[drawn], goal.y[drawn])


def mixture(knowledge: Knowledge, clean: LabelledPoints, poison: LabelledPoints, share: float) -> Gradient:
    """theta -> (1 - share) g(clean) + share g(poison)."""

    def gradient(theta: Tensor) -> Tensor:
        bad = share * knowledge.gradient(theta, *poison)
        return bad if share == 1 else bad + (1 - share) * knowledge.gradient(theta, *clean)

    return gradient


# --- refused before a run --------------------------------------------------------------------------------------------


def check_boost(name: str, boost: float) -> None:
    """Refuse a factor that would send nothing, or nothing that is a number."""
    if not (boost > 0 and math.isfinite(boost)):
        raise ConfigError(f"{name}: boost is {boost}; it must be positive and finite")


def check_share(name: str, poisoned: float) -> None:
    """Refuse a share of wrong examples that is none."""
    if not 0 < poisoned <= 1:
        raise ConfigError(f"{name}: poisoned is {poisoned}, but is a share of the examples; use above 0 to 1")
