"""Targeted model poisoning by colluding projected gradient descent (the paper's Algorithm "Attack"; Bhagoji et al.
2019, Sun et al. 2019).

    M_0 = theta;   M_{e+1} = theta - CLIP(theta - (M_e - eta * boost * g_e)),   g_e on a batch of the auxiliary set

The attackers of a round compute this once and all send the same `theta - M_E`.

*Departures.* The paper's box adds the clipped difference with the wrong sign; the paper says "perimeter" but clips;
here `to_budget` (the authors' code of August 2021) stretches the result to exactly the norm that the server
enforces. Where it enforces none, nothing is projected and the boost alone makes the update large. Where it enforces L
times the learning rate, the authors' code projects every step to L and stretches the result to L times the rate: that
is `radius` = L, another direction than steps that stay within what is enforced.
"""

from __future__ import annotations

import math
from typing import Annotated

from torch import Tensor

from sparsefed.attacks import goals
from sparsefed.attacks.attack import attack
from sparsefed.attacks.base import project, rescale
from sparsefed.attacks.goals import Goal
from sparsefed.core.errors import ConfigError
from sparsefed.core.rng import rng
from sparsefed.core.threat import Attack, Knowledge


@attack(
    paper="Bhagoji et al. 2019, Analyzing Federated Learning through an Adversarial Lens", goal=goals.labels, place=3
)
def pgd(
    goal: Goal,
    *,
    epochs: Annotated[int, "PGD steps; each takes one batch of the goal's points"] = 5,
    batch: Annotated[int, "of the goal's points, in a step"] = 100,
    step: Annotated[float, "eta, the length of a step"] = 0.02,
    boost: Annotated[float, "factor on the attacker's loss"] = 20.0,
    to_budget: Annotated[bool, "stretch the update to exactly the norm that the server enforces"] = True,
    radius: Annotated[float | None, "to which every step is projected; by default the norm that is enforced"] = None,
) -> Attack:
    """Colluding PGD on the points and labels of the goal, within the norm that the server enforces."""
    if radius is not None and not (to_budget and 0 < radius < math.inf):
        raise ConfigError(f"pgd: radius is {radius}; it must be positive and finite, and to_budget true")
    if epochs < 1 or batch < 1 or step <= 0 or boost <= 0:
        raise ConfigError(
            f"pgd: epochs = {epochs}, batch = {batch}, step = {step}, boost = {boost}; all must be positive"
        )
    batch = min(batch, len(goal.y))

    def craft(knowledge: Knowledge) -> Tensor:
        update = knowledge.theta.new_zeros(knowledge.theta.shape)
        for epoch in range(epochs):
            drawn = rng(knowledge.seed, "pgd batch", knowledge.round, epoch).choice(len(goal.y), batch, False)
            x, y = goal.x[drawn], goal.y[drawn]
            gradient = knowledge.gradient(knowledge.theta - update, x, y)
            update = project(update + step * boost * gradient, radius or knowledge.budget)
        return rescale(update, knowledge.budget) if to_budget else update

    return Attack(craft)


semantic = attack(
    paper="Bagdasaryan et al. 2020, How To Backdoor Federated Learning", goal=goals.semantic, place=6, name="semantic"
)(pgd.__wrapped__)
edge = attack(
    paper="Wang et al. 2020, Attack of the Tails: Yes, You Really Can Backdoor Federated Learning",
    goal=goals.edge,
    place=9,
    name="edge",
)(pgd.__wrapped__)
