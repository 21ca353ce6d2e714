"""Label flipping: honest training on dishonest labels.

Data Poisoning Attacks Against Federated Learning Systems (Tolpegin et al. 2020); the map of all labels at once is the
one that Fang et al. 2020 compare their attacks with:

    u_i  =  boost * (the update of its own examples, each called  C - 1 - y,  or  (y + shift) mod C)

Each attacker of a round sends its own, clipped to the norm that the server enforces; it trains like every device and
needs no knowledge of the others.

*Departures.* `boost` is ours. Without it (boost = 1, the default) this is data poisoning, as published; one device in
ten then costs a mean some accuracy and no more. With an odd number of classes, C - 1 - y leaves the middle one alone.
"""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor

from sparsefed.attacks.attack import OWN, attack
from sparsefed.attacks.base import granted, projected
from sparsefed.attacks.goals import Goal
from sparsefed.attacks.own_data import Boost, check_boost, own_updates
from sparsefed.core.errors import ConfigError
from sparsefed.core.threat import Attack, Knowledge
from sparsefed.core.types import IGNORED


@attack(
    paper="Tolpegin et al. 2020, Data Poisoning Attacks Against Federated Learning Systems",
    needs=OWN,
    place=12,
    kinds=("classes", "binary", "labels", "tokens"),
)
def label_flip(
    goal: Goal | None,  # noqa: ARG001
    *,
    classes: Annotated[int, "C, how many classes there are; by default those of the data"] = 10,
    shift: Annotated[int | None, "label y becomes (y + shift) mod C; without it, C - 1 - y"] = None,
    boost: Boost = 1.0,
) -> Attack:
    """Each attacker trains on its own examples with every label changed into another."""
    check_boost("label_flip", boost)
    if classes < 2:
        raise ConfigError(f"label_flip: classes is {classes}; there is nothing to confuse: use at least 2")
    if shift is not None and shift % classes == 0:
        raise ConfigError(f"label_flip: a shift of {shift} leaves every label of {classes} as it is; use 1 or another")

    def craft(knowledge: Knowledge) -> Tensor:
        y = granted(knowledge.own, "own data").y
        if y.numel() and int(y.max()) >= classes:
            raise ConfigError(
                f"label_flip: classes is {classes}, but an attacker's example has the label {int(y.max())}; set "
                "attack.classes to the number of classes of the data set"
            )
        flipped = classes - 1 - y if shift is None else (y + shift) % classes
        wrong = torch.where(y == IGNORED, y, flipped)
        return projected(boost * own_updates(knowledge, wrong), knowledge.budget)

    return Attack(craft, needs=frozenset({"own data"}))
