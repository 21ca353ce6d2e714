"""A single step towards the goal, boosted so that the mean does not dilute it (Bhagoji et al. 2019, section 3.2:
"explicit boosting").

    u = CLIP(scale * boost * g(theta)),   g on all of the goal's points;   boost = cohort / attackers

With that boost the mean of a cohort whose other devices send nothing is exactly one honest step on the goal's points.

*Departures.* The paper has one malicious device, which trains for some epochs and boosts the difference; here it is
one step, and all attackers of the round share the boost and send the same. Many steps are `pgd`.
"""

from __future__ import annotations

from typing import Annotated

from torch import Tensor

from sparsefed.attacks import goals
from sparsefed.attacks.attack import attack
from sparsefed.attacks.base import project
from sparsefed.attacks.goals import Goal
from sparsefed.core.errors import ConfigError
from sparsefed.core.threat import Attack, Knowledge


@attack(
    paper="Bhagoji et al. 2019, Analyzing Federated Learning through an Adversarial Lens", goal=goals.labels, place=4
)
def boosted(
    goal: Goal,
    *,
    boost: Annotated[
        float | None, "factor on an honest device's step; None: cohort / attackers, what the mean divides by"
    ] = None,
) -> Attack:
    """One gradient step on the points and labels of the goal, boosted against the mean and clipped to the budget."""
    if boost is not None and boost <= 0:
        raise ConfigError(f"boosted: boost = {boost}, but it must be positive, or the step leads away from the goal")

    def craft(knowledge: Knowledge) -> Tensor:
        factor = knowledge.cohort / knowledge.attackers if boost is None else boost
        gradient = knowledge.gradient(knowledge.theta, goal.x, goal.y)
        return project(knowledge.scale * factor * gradient, knowledge.budget)

    return Attack(craft)
