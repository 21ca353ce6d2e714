"""Targeted model poisoning without collusion: every attacker runs PGD for itself (the non-colluding attack that the
paper compares with).

    u_i = PGD on the points that attacker i holds, a share of the goal's drawn for it alone

The attackers do not coordinate: their updates point roughly the same way, but no two of them support each other with
identical updates, as the colluding ones of `pgd` do.

*Departures.* The paper does not say how its lone attackers differ. With the same points and steps they would collude by
accident, so each draws its own points, anew each round.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Annotated

import torch
from torch import Tensor

from sparsefed.attacks import goals
from sparsefed.attacks.attack import attack
from sparsefed.attacks.goals import Goal
from sparsefed.attacks.pgd import pgd
from sparsefed.core.errors import ConfigError
from sparsefed.core.rng import integer_seed, rng
from sparsefed.core.threat import Attack, Knowledge


@attack(
    paper="Bhagoji et al. 2019, Analyzing Federated Learning through an Adversarial Lens",
    goal=goals.labels,
    place=5,
    weaker=True,
    search={"share": "0.05:1"},
)
def lone_pgd(
    goal: Goal,
    *,
    share: Annotated[float, "of the goal's points that one attacker works with"] = 0.5,
    epochs: Annotated[int, "PGD steps; each takes one batch of the attacker's points"] = 5,
    batch: Annotated[int, "of the attacker's points, in a step"] = 100,
    step: Annotated[float, "eta, the length of a step"] = 0.02,
    boost: Annotated[float, "factor on the attacker's loss"] = 20.0,
    to_budget: Annotated[bool, "stretch each update to exactly the norm that the server enforces"] = True,
) -> Attack:
    """PGD by each attacker of the round alone, on its own share of the goal's points."""
    if not 0 < share <= 1:
        raise ConfigError(f"lone_pgd: share is {share}, but an attacker needs points: use above 0 to 1")
    held = math.ceil(share * len(goal.y))

    def alone(points: Goal) -> Attack:
        return pgd.__wrapped__(points, epochs=epochs, batch=batch, step=step, boost=boost, to_budget=to_budget)

    def craft(knowledge: Knowledge) -> Tensor:
        sent = []
        for i in range(knowledge.attackers):
            drawn = rng(knowledge.seed, "lone points", knowledge.round, i).choice(len(goal.y), held, replace=False)
            sent.append(alone(replace(goal, x=goal.x[drawn], y=goal.y[drawn]))(_as_one(knowledge, i)))
        return torch.stack(sent)

    alone(goal)  # raises on impossible parameters before a run
    return Attack(craft)


def _as_one(knowledge: Knowledge, i: int) -> Knowledge:
    """Return the public facts with random choices that are the i-th attacker's own."""
    seed = integer_seed(knowledge.seed, "lone pgd", knowledge.round, i)
    return Knowledge(knowledge.round, knowledge.theta, knowledge.budget, knowledge.gradient, seed)
