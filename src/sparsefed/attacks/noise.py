"""Two attacks that any Byzantine device can mount: the opposite of what it should send, and noise.

    sign_flip   u_i = -boost * (the update of its own data)   (Li et al. 2019, RSA; boost 4 there)
    gaussian    u_i ~ N(0, sigma^2 I)                         (Blanchard et al. 2017, Krum; sigma 200)

Each attacker of a round sends its own, clipped to the norm that the server enforces. Neither knows the defense.

*Departures.* The papers attack with a third of the devices or more. A mean turns around only where the boost exceeds
the number of honest devices to each attacker, hence the larger default. Updates of one's own data leave out the weight
decay, which attackers are not told: at the usual settings a hundred-thousandth of the model.
"""

from __future__ import annotations

import math
from typing import Annotated

import numpy as np
import torch
from torch import Tensor

from sparsefed.attacks.attack import OWN, attack
from sparsefed.attacks.base import granted, projected
from sparsefed.attacks.goals import Goal
from sparsefed.attacks.own_data import Boost, check_boost, own_updates
from sparsefed.core.errors import ConfigError
from sparsefed.core.rng import rng
from sparsefed.core.threat import Attack, Knowledge


@attack(
    paper="Li et al. 2019, RSA: Byzantine-Robust Stochastic Aggregation Methods for Distributed Learning",
    needs=OWN,
    place=5,
)
def sign_flip(goal: Goal | None, *, boost: Boost = 20.0) -> Attack:  # noqa: ARG001
    """Each attacker sends minus `boost` times what it would have sent honestly."""
    check_boost("sign_flip", boost)

    def craft(knowledge: Knowledge) -> Tensor:
        return projected(-boost * own_updates(knowledge, granted(knowledge.own, "own data").y), knowledge.budget)

    return Attack(craft, needs=frozenset({"own data"}))


@attack(paper="Blanchard et al. 2017, Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent", place=10)
def gaussian(
    goal: Goal | None,  # noqa: ARG001
    *,
    sigma: Annotated[float, "standard deviation of each coordinate"] = 200.0,
) -> Attack:
    """Each attacker sends Gaussian noise of its own."""
    if not (sigma > 0 and math.isfinite(sigma)):
        raise ConfigError(f"gaussian: sigma is {sigma}; it must be positive and finite")

    def craft(knowledge: Knowledge) -> Tensor:
        noise = [_normal(knowledge, attacker) for attacker in range(knowledge.attackers)]
        return projected(sigma * torch.stack(noise).to(knowledge.theta), knowledge.budget)

    return Attack(craft)


def _normal(knowledge: Knowledge, attacker: int) -> Tensor:
    draw = rng(knowledge.seed, "gaussian attack", knowledge.round, attacker)
    return torch.from_numpy(draw.standard_normal(len(knowledge.theta), dtype=np.float32))
