"""A persistent slow drift: every attacker, in every round, pushes along the same random signs.

In the spirit of PoisonedFL (Xie, Fang and Gong 2025, Model Poisoning Attacks to Federated Learning via Multi-Round
Consistency): what is small in one round adds up over many, whereas attacks that aim anew each round undo
themselves. The attackers know nothing of the honest updates.

    u = lambda * s / sqrt(d),   s in {-1, 1}^d drawn once from the seed,   lambda = c * |what a device would send|

*Departures.* The paper's attackers are fake devices without data that watch the server: lambda is c times the norm of
the last global step, c shrinks to 0.7 c whenever 50 rounds did not move the model along s significantly, and s is
weighted by the sizes of the coordinates of that step, less the attackers' own part in it. An attack here is a function
of one round and remembers none: lambda is c times the mean norm of what the attackers' own devices would have sent, c
stays (it is for the tuner to find), and all coordinates weigh the same: weighted by the attackers' own mean gradient
they did no more harm (one seed of the tests' small federation, six rules). No noise is added to the copies.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
import torch
from torch import Tensor

from sparsefed.attacks.attack import OWN, attack
from sparsefed.attacks.base import granted, project, rescale
from sparsefed.attacks.goals import Goal
from sparsefed.core.errors import ConfigError
from sparsefed.core.rng import rng
from sparsefed.core.threat import Attack, Knowledge


@attack(
    paper="Xie et al. 2025, Model Poisoning Attacks to Federated Learning via Multi-Round Consistency",
    needs=OWN,
    place=6,
)
def drift(
    goal: Goal | None,  # noqa: ARG001
    *,
    c: Annotated[float, "times the norm of what an honest device would send"] = 30.0,
) -> Attack:
    """All attackers push along random signs that never change."""
    if not 0 < c < float("inf"):
        raise ConfigError(f"drift: c is {c}, but it is how much longer than an honest update: choose c > 0")

    def craft(knowledge: Knowledge) -> Tensor:
        return project(rescale(_signs(knowledge), c * _typical_norm(knowledge)), knowledge.budget)

    return Attack(craft, frozenset({"own data"}))


def _signs(knowledge: Knowledge) -> Tensor:
    """Draw s: +1 or -1 for each coordinate, constant over the rounds of a run."""
    drawn = rng(knowledge.seed, "drift signs").integers(2, size=len(knowledge.theta), dtype=np.int8)
    return torch.from_numpy(drawn).to(knowledge.theta) * 2 - 1


def _typical_norm(knowledge: Knowledge) -> float:
    """Return the mean norm of what the compromised devices would send if they were honest."""
    own = granted(knowledge.own, "own data")
    if knowledge.train is not None:
        return float(torch.linalg.vector_norm(knowledge.train(own), dim=1, dtype=torch.float64).mean())
    sizes, norms = own.sizes.tolist(), []
    for x, y in zip(torch.split(own.x, sizes), torch.split(own.y, sizes), strict=True):
        gradient = knowledge.gradient(knowledge.theta, x, y)
        norms.append(float(torch.linalg.vector_norm(gradient, dtype=torch.float64)))
    return knowledge.scale * sum(norms) / len(norms)
