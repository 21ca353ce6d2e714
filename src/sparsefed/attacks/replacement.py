"""Model replacement: train the wanted model, then send enough to put it in the place of the global one (Bagdasaryan
et al. 2020, How To Backdoor Federated Learning).

    X_0 = theta;   X_{e+1} = theta + CLIP_r(X_e - eta ((1 - p) g(clean) + p g(goal)) - theta),   r = budget / gamma
    u = gamma (theta - X_E),   gamma = cohort / (attackers * server_lr)

The mean of a cohort whose attackers all send u moves the model from theta to X_E, beside what the honest devices add:
one round is enough, near the end of training, when they add little (threat: start = stop). Where the server enforces a
norm, each step is projected so that the scaled update just fits (Wang et al. 2020, "PGD with replacement").

*Departures.* The paper's term for evading an anomaly detector is left out; the projection takes its place. All steps
are on the same examples and their number is fixed, where the paper stops once the loss is small.
"""

from __future__ import annotations

from typing import Annotated

from torch import Tensor

from sparsefed.attacks import goals
from sparsefed.attacks.attack import OWN, attack
from sparsefed.attacks.base import descend, project
from sparsefed.attacks.goals import Goal
from sparsefed.attacks.own_data import Poisoned, check_share, mixture, owned, some
from sparsefed.core.errors import ConfigError
from sparsefed.core.threat import Attack, Knowledge


@attack(paper="Bagdasaryan et al. 2020, How To Backdoor Federated Learning", goal=goals.semantic, needs=OWN, place=7)
def replacement(
    goal: Goal,
    *,
    epochs: Annotated[int, "steps from the global model to the wanted one"] = 14,
    step: Annotated[float, "eta, the length of a step"] = 0.35,
    poisoned: Poisoned = 0.5,
    batch: Annotated[int, "of the goal's points"] = 64,
    server_lr: Annotated[float, "what the server multiplies the mean by; 1 in FedAvg mode"] = 1.0,
) -> Attack:
    """A model that fulfils the goal and still fits the attackers' own examples, scaled to replace the global one."""
    check_share("replacement", poisoned)
    if epochs < 1 or step <= 0 or batch < 1 or server_lr <= 0:
        raise ConfigError(
            f"replacement: epochs = {epochs}, step = {step}, batch = {batch}, server_lr = {server_lr}; all must be "
            "positive"
        )

    def craft(knowledge: Knowledge) -> Tensor:
        gamma = knowledge.cohort / (knowledge.attackers * server_lr)
        gradient = mixture(knowledge, owned(knowledge), some(goal, knowledge, batch), poisoned)
        moved = descend(knowledge.theta, gradient, epochs, step, knowledge.budget / gamma)
        return project(gamma * moved, knowledge.budget)  # again, because of rounding

    return Attack(craft, frozenset({"own data"}))


replacement_text = attack(
    paper="Bagdasaryan et al. 2020, How To Backdoor Federated Learning",
    goal=goals.continuation,
    needs=OWN,
    place=8,
    name="replacement_text",
)(replacement.__wrapped__)
