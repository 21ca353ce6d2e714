"""Updates from the examples on the attackers' own devices: on right or wrong labels, and on poisoned mixtures."""

from __future__ import annotations

import math
from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from sparsefed.attacks.base import Gradient, granted
from sparsefed.attacks.goal_types import renamed
from sparsefed.attacks.goals import Goal
from sparsefed.core.errors import ConfigError
from sparsefed.core.rng import rng
from sparsefed.core.threat import Knowledge

Boost = Annotated[float, "factor on the update that each attacker sends"]
Poisoned = Annotated[float, "p, the share of the attackers' examples that are wrong"]
GoalBatch = Annotated[int, "of the goal's points in a step, where the goal has no trigger"]


class LabelledPoints(NamedTuple):
    """Raw examples with their labels."""

    x: Tensor
    y: Tensor


def own_updates(knowledge: Knowledge, y: Tensor) -> Tensor:
    """Return what each attacker would send honestly if its own examples had these labels, [a, d].

    That is `scale * gradient`, or the outcome of local training where devices take several local steps.
    """
    own = granted(knowledge.own, "own data")
    if knowledge.train is not None:
        return knowledge.train(own._replace(y=y))
    sizes = own.sizes.tolist()
    parts = zip(torch.split(own.x, sizes), torch.split(y, sizes), strict=True)
    return knowledge.scale * torch.stack([knowledge.gradient(knowledge.theta, *part) for part in parts])


def owned(knowledge: Knowledge) -> LabelledPoints:
    """Return the examples of all attackers of the round."""
    own = granted(knowledge.own, "own data")
    return LabelledPoints(own.x, own.y)


def wrong(goal: Goal, clean: LabelledPoints, knowledge: Knowledge, batch: int) -> LabelledPoints:
    """Return wrong examples that teach the goal: these ones stamped, or without a trigger a batch of its points."""
    if goal.stamp is not None and goal.target is not None:
        return LabelledPoints(goal.stamp(clean.x), renamed(clean.y, goal.target))
    return some(goal, knowledge, batch)


def some(goal: Goal, knowledge: Knowledge, batch: int) -> LabelledPoints:
    """Draw a batch of the goal's points, anew each round."""
    draw = rng(knowledge.seed, "goal batch", knowledge.round)
    drawn = torch.from_numpy(draw.choice(len(goal.y), min(batch, len(goal.y)), replace=False))
    return LabelledPoints(goal.x[drawn], goal.y[drawn])


def mixture(knowledge: Knowledge, clean: LabelledPoints, poison: LabelledPoints, share: float) -> Gradient:
    """Return the gradient function theta -> (1 - share) g(clean) + share g(poison)."""

    def gradient(theta: Tensor) -> Tensor:
        bad = share * knowledge.gradient(theta, *poison)
        return bad if share == 1 else bad + (1 - share) * knowledge.gradient(theta, *clean)

    return gradient


# --- checks before a run ---------------------------------------------------------------------------------------------


def check_boost(name: str, boost: float) -> None:
    """Raise ConfigError unless the boost is a positive finite number."""
    if not (boost > 0 and math.isfinite(boost)):
        raise ConfigError(f"{name}: boost is {boost}; it must be positive and finite")


def check_share(name: str, poisoned: float) -> None:
    """Raise ConfigError unless the share of wrong examples is above 0 and at most 1."""
    if not 0 < poisoned <= 1:
        raise ConfigError(f"{name}: poisoned is {poisoned}, but is a share of the examples; use above 0 to 1")
