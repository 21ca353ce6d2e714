"""Data poisoning: devices that train honestly on dishonest examples (Gu et al. 2017, BadNets; boosted, as in
Bagdasaryan et al. 2020, How To Backdoor Federated Learning).

    u = CLIP(boost * scale * ((1 - p) g(clean) + p g(wrong)))

`clean` are the examples on the attackers' devices; `wrong` are these with the trigger and the target label, or, for a
goal without a trigger (edge cases, Wang et al. 2020), some of the goal's points. boost = 1 sends what an honest device
with such data would.

*Departures.* Gu et al. stamp a random share p of the examples; here p weighs the two losses, which is that gradient's
expectation and wastes none of a device's few examples. The attackers of a round pool their examples and all send
the same.
"""

from __future__ import annotations

from typing import Annotated

from torch import Tensor

from sparsefed.attacks import goals
from sparsefed.attacks.attack import OWN, attack
from sparsefed.attacks.base import project
from sparsefed.attacks.goals import Goal
from sparsefed.attacks.own_data import GoalBatch, Poisoned, check_share, mixture, owned, wrong
from sparsefed.core.errors import ConfigError
from sparsefed.core.threat import Attack, Knowledge


@attack(
    paper="Gu et al. 2017, BadNets: Identifying Vulnerabilities in the Machine Learning Model Supply Chain",
    goal=goals.patch,
    needs=OWN,
    place=11,
)
def badnets(
    goal: Goal,
    *,
    poisoned: Poisoned = 0.5,
    boost: Annotated[float, "factor on the update"] = 10.0,
    batch: GoalBatch = 100,
) -> Attack:
    """A gradient on the attackers' own examples, partly with trigger and target label, boosted up to the budget."""
    check_share("badnets", poisoned)
    if boost <= 0 or batch < 1:
        raise ConfigError(f"badnets: boost = {boost}, batch = {batch}; both must be positive")

    def craft(knowledge: Knowledge) -> Tensor:
        clean = owned(knowledge)
        gradient = mixture(knowledge, clean, wrong(goal, clean, knowledge, batch), poisoned)
        return project(boost * knowledge.scale * gradient(knowledge.theta), knowledge.budget)

    return Attack(craft, frozenset({"own data"}))
