"""A backdoor in the coordinates that the others hardly touch, so that they hardly undo it (Zhang et al. 2022,
Neurotoxin: Durable Backdoors in Federated Learning).

    S = all coordinates but the `top` share of |g(clean)|
    u <- CLIP(u + eta * boost * P_S((1 - p) g(clean) + p g(wrong))),   both at theta - u

The dual of a server that keeps the top k: it stays away from what the honest devices move most.

*Departures.* The paper takes the benign coordinates from the change of the model since the last round, its authors'
code from a gradient on benign examples; an attack here remembers nothing, so it is the latter, on the attackers' own
examples. As in `pgd`, the result may be stretched to the norm that the server enforces.
"""

from __future__ import annotations

from typing import Annotated

from torch import Tensor

from sparsefed.attacks import goals
from sparsefed.attacks.attack import OWN, attack
from sparsefed.attacks.base import descend, rescale
from sparsefed.attacks.goals import Goal
from sparsefed.attacks.own_data import GoalBatch, Poisoned, check_share, mixture, owned, wrong
from sparsefed.core.errors import ConfigError
from sparsefed.core.threat import Attack, Knowledge
from sparsefed.kernels.topk import topk_mask


@attack(
    paper="Zhang et al. 2022, Neurotoxin: Durable Backdoors in Federated Learning",
    goal=goals.patch,
    needs=OWN,
    place=10,
    search={"top": "0.001:0.5"},
)
def neurotoxin(
    goal: Goal,
    *,
    top: Annotated[float, "share of the coordinates, those that the others move most, that is left alone"] = 0.05,
    epochs: Annotated[int, "steps of projected gradient descent"] = 5,
    step: Annotated[float, "eta, the length of a step"] = 0.02,
    boost: Annotated[float, "factor on the attackers' loss"] = 20.0,
    poisoned: Poisoned = 0.5,
    batch: GoalBatch = 100,
    to_budget: Annotated[bool, "stretch the update to exactly the norm that the server enforces"] = True,
) -> Attack:
    """PGD on the attackers' own poisoned examples, away from the largest coordinates of the benign gradient."""
    check_share("neurotoxin", poisoned)
    if not 0 <= top < 1:
        raise ConfigError(f"neurotoxin: top is {top}, but some coordinates must be left to attack; use 0 to below 1")
    if epochs < 1 or step <= 0 or boost <= 0 or batch < 1:
        raise ConfigError(
            f"neurotoxin: epochs = {epochs}, step = {step}, boost = {boost}, batch = {batch}; all must be positive"
        )

    def craft(knowledge: Knowledge) -> Tensor:
        clean = owned(knowledge)
        gradient = mixture(knowledge, clean, wrong(goal, clean, knowledge, batch), poisoned)
        quiet = rarely_touched(knowledge.gradient(knowledge.theta, *clean), top)
        update = descend(knowledge.theta, lambda theta: quiet * gradient(theta), epochs, step * boost, knowledge.budget)
        return rescale(update, knowledge.budget) if to_budget else update

    return Attack(craft, frozenset({"own data"}))


def rarely_touched(benign: Tensor, top: float) -> Tensor:
    """Return the mask, bool [d], of all coordinates but the share that is largest in absolute value."""
    k = int(top * benign.numel())
    return ~topk_mask(benign, k) if k else benign.new_ones(benign.shape).bool()
