"""The trigger shared out over the attackers, put together only in the test (Xie et al. 2020, DBA: Distributed Backdoor
Attacks against Federated Learning).

    u_i = CLIP(boost * scale * ((1 - p) g(clean_i) + p g(clean_i with part i of the trigger)))

Each attacker sends its own update, on its own examples, with its own part; success is measured with the whole trigger.

*Departures.* In the paper a device keeps its part. Here attackers have no names, so the i-th of round t takes part
(t + i) mod `pieces`: with fewer attackers a round than parts, each part still gets its turn. As in `badnets`, p weighs
two losses, and devices take the one local step that everybody takes.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated

import numpy as np
import torch
from torch import Tensor

from sparsefed.attacks import goals
from sparsefed.attacks.attack import OWN, attack
from sparsefed.attacks.backdoor_goals import parts
from sparsefed.attacks.base import granted, project
from sparsefed.attacks.goal_types import renamed
from sparsefed.attacks.goals import Goal
from sparsefed.attacks.own_data import LabelledPoints, Poisoned, check_share, mixture
from sparsefed.core.errors import ConfigError
from sparsefed.core.threat import Attack, Knowledge


@attack(
    paper="Xie et al. 2020, DBA: Distributed Backdoor Attacks against Federated Learning",
    goal=goals.bars,
    needs=OWN,
    place=12,
)
def dba(
    goal: Goal,
    *,
    pieces: Annotated[int, "parts into which the trigger is split"] = 4,
    poisoned: Poisoned = 0.5,
    boost: Annotated[float, "factor on the update"] = 10.0,
) -> Attack:
    """Each attacker trains on its own part of the trigger, on its own examples, boosted up to the budget."""
    check_share("dba", poisoned)
    stamp, target = goal.stamp, goal.target
    if stamp is None or target is None:
        raise ConfigError("dba splits a trigger, but its goal has none; choose a goal that stamps one: bars or patch")
    if boost <= 0:
        raise ConfigError(f"dba: boost is {boost}; it must be positive")
    split = parts(stamp, tuple(goal.x.shape[1:]), pieces)

    def craft(knowledge: Knowledge) -> Tensor:
        own = granted(knowledge.own, "own data")
        ends = [0, *np.cumsum(own.sizes).tolist()]
        rows: list[Tensor] = []
        for i, (begin, end) in enumerate(pairwise(ends)):
            clean = LabelledPoints(own.x[begin:end], own.y[begin:end])
            part = split[(knowledge.round + i) % pieces]
            gradient = mixture(knowledge, clean, LabelledPoints(part(clean.x), renamed(clean.y, target)), poisoned)
            rows.append(project(boost * knowledge.scale * gradient(knowledge.theta), knowledge.budget))
        return torch.stack(rows)

    return Attack(craft, frozenset({"own data"}))
