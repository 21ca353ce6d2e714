"""Data poisoning: devices that train honestly on dishonest examples (Gu et al. 2017, BadNets; boosted, as in
Bagdasaryan et al. 2020, How To Backdoor Federated Learning).

    u = CLIP(boost * scale * ((1 - p) g(clean) + p g(wrong)))

`clean` is what the attackers' devices hold; `wrong` the same with the trigger and the target label, or, for a goal
without a trigger (edge cases, Wang et al. 2020), some of the goal's points. boost = 1 sends what an honest device with
such data would.

*Departures.* Gu et al. stamp a random share p of the examples; here p weighs the two losses, which is that gradient's
expectation and wastes none of a device's few examples. The attackers of a round pool their examples and all send
the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from sparsefed.attacks.base import Attack, Knowledge, granted, project
from sparsefed.attacks.goals import Goal
from sparsefed.errors import ConfigError
from sparsefed.rng import rng

Poisoned = Annotated[float, "p, the share of the attackers' examples that are wrong"]
GoalBatch = Annotated[int, "of the goal's points in a step, where the goal has no trigger"]
Gradient = Callable[[Tensor], Tensor]  # theta -> [d]


class Examples(NamedTuple):
    """Raw examples and labels."""

    x: Tensor
    y: Tensor


def badnets(
    goal: Goal,
    *,
    poisoned: Poisoned = 0.5,
    boost: Annotated[float, "factor on the update"] = 10.0,
    batch: GoalBatch = 100,
) -> Attack:
    """A gradient on own examples, part of them with the trigger and the target label, boosted up to the budget."""
    check_share("badnets", poisoned)
    if boost <= 0 or batch < 1:
        raise ConfigError(f"badnets: boost = {boost}, batch = {batch}; both must be positive")

    def craft(knowledge: Knowledge) -> Tensor:
        clean = owned(knowledge)
        gradient = mixture(knowledge, clean, wrong(goal, clean, knowledge, batch), poisoned)
        return project(boost * knowledge.scale * gradient(knowledge.theta), knowledge.budget)

    return Attack(craft, frozenset({"own data"}))


def owned(knowledge: Knowledge) -> Examples:
    """The examples of all attackers of the round."""
    own = granted(knowledge.own, "own data")
    return Examples(own.x, own.y)


def wrong(goal: Goal, clean: Examples, knowledge: Knowledge, batch: int) -> Examples:
    """What the model should learn of the goal: these examples stamped, or without a trigger a batch of its points."""
    if goal.stamp is not None and goal.target is not None:
        return Examples(goal.stamp(clean.x), torch.full_like(clean.y, goal.target))
    return some(goal, knowledge, batch)


def some(goal: Goal, knowledge: Knowledge, batch: int) -> Examples:
    """A batch of the goal's points, drawn anew each round."""
    draw = rng(knowledge.seed, "goal batch", knowledge.round)
    drawn = torch.from_numpy(draw.choice(len(goal.y), min(batch, len(goal.y)), replace=False))
    return Examples(goal.x[drawn], goal.y[drawn])


def mixture(knowledge: Knowledge, clean: Examples, poison: Examples, share: float) -> Gradient:
    """theta -> (1 - share) g(clean) + share g(poison)."""

    def gradient(theta: Tensor) -> Tensor:
        bad = share * knowledge.gradient(theta, *poison)
        return bad if share == 1 else bad + (1 - share) * knowledge.gradient(theta, *clean)

    return gradient


def check_share(name: str, poisoned: float) -> None:
    """Refuse a share of wrong examples that is none."""
    if not 0 < poisoned <= 1:
        raise ConfigError(f"{name}: poisoned is {poisoned}, but is a share of the examples; use above 0 to 1")
