"""Models, partitions and attacks of other studies whose published numbers the `external` exhibits are compared with.

Each is written from the setting that the study states; the exhibit that uses it names the study and its commit.
Configs refer to them by `sparsefed.commands.reproduce.published:NAME`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import numpy as np
import torch
from torch import Tensor, nn

from sparsefed.attacks import goals
from sparsefed.attacks.attack import OWN, attack
from sparsefed.attacks.base import granted, projected
from sparsefed.attacks.goals import Goal
from sparsefed.attacks.own_data import Poisoned, check_share, own_updates
from sparsefed.core.errors import ConfigError
from sparsefed.core.rng import rng
from sparsefed.core.threat import Attack, Knowledge
from sparsefed.core.types import IntArray, Partition
from sparsefed.data.partitions.skewed import dirichlet

# --- models ----------------------------------------------------------------------------------------------------------


def cnn_of_e1(shape: tuple[int, int, int], classes: int) -> nn.Module:
    """Build the CNN of Karimireddy et al. 2022 for MNIST, which has no ReLU after its second convolution."""
    inner = 64 * ((shape[1] - 4) // 2) * ((shape[2] - 4) // 2)
    return nn.Sequential(
        *(nn.Conv2d(shape[0], 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3)),
        *(nn.MaxPool2d(2), nn.Dropout2d(0.25), nn.Flatten()),
        *(nn.Linear(inner, 128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, classes)),
    )


def two_convolutions(
    shape: tuple[int, int, int], classes: int, *, first: int = 16, second: int = 32, hidden: int = 128
) -> nn.Module:
    """Build two unpadded 5x5 convolutions, each with ReLU and pooling, and one hidden layer.

    16, 32 and 128 is the model of E2; 20, 50 and 500 is ByzFL's `cnn_mnist`, whose logarithms of probabilities under
    its loss are our logits under cross entropy.
    """
    side = [((length - 4) // 2 - 4) // 2 for length in shape[1:]]
    return nn.Sequential(
        *(nn.Conv2d(shape[0], first, 5), nn.MaxPool2d(2), nn.ReLU()),
        *(nn.Conv2d(first, second, 5), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten()),
        *(nn.Linear(second * side[0] * side[1], hidden), nn.ReLU(), nn.Linear(hidden, classes)),
    )


# --- partitions ------------------------------------------------------------------------------------------------------


def label_sorted(
    labels: IntArray,
    users: IntArray | None,  # noqa: ARG001
    devices: int | None,
    per_device: int | None,  # noqa: ARG001
    seed: int,
    byzantine: Annotated[int, "devices, the last ones, that hold examples of all classes instead"] = 5,
) -> Partition:
    """Examples in the order of their labels, cut into one slice for each honest device; the last devices hold iid ones.

    >>> owned = label_sorted(np.array([1, 0, 1, 0]), None, 3, None, seed=0, byzantine=1)
    >>> [sorted(part.tolist()) for part in np.split(owned.examples, owned.offsets[1:-1])][:2]
    [[1, 3], [0, 2]]
    """
    honest = _honest(devices, byzantine)
    slices = np.array_split(np.argsort(labels, kind="stable"), honest)
    return _with_byzantine([part.astype(np.int64) for part in slices], byzantine, seed)


def dirichlet_of_honest(
    labels: IntArray,
    users: IntArray | None,
    devices: int | None,
    per_device: int | None,
    seed: int,
    alpha: Annotated[float, "as for the partition dirichlet"] = 0.5,
    byzantine: Annotated[int, "devices, the last ones, that take no data from the honest ones"] = 1,
) -> Partition:
    """Examples dealt to the honest devices by `dirichlet`; the last devices hold copies of some of them."""
    owned = dirichlet(labels, users, _honest(devices, byzantine), per_device, seed, alpha)
    return _with_byzantine(np.split(owned.examples, owned.offsets[1:-1]), byzantine, seed)


def _honest(devices: int | None, byzantine: int) -> int:
    if devices is None or not 0 <= byzantine < devices:
        raise ConfigError(f"byzantine is {byzantine}, but of {devices} devices at least one must be honest")
    return devices - byzantine


def _with_byzantine(parts: Sequence[IntArray], byzantine: int, seed: int) -> Partition:
    """Return a partition with devices at its end that each hold a random sample of everything."""
    every, draw = np.concatenate(parts), rng(seed, "byzantine shards")
    extra = [draw.choice(every, len(parts[0]), replace=False) for _ in range(byzantine)]
    sizes = [len(part) for part in (*parts, *extra)]
    return Partition(np.concatenate([[0], np.cumsum(sizes)]), np.concatenate([*parts, *extra]))


# --- attacks of E2 ---------------------------------------------------------------------------------------------------


@attack(paper="Tolpegin et al. 2020, Data Poisoning Attacks Against Federated Learning Systems", needs=OWN)
def labels_to_one(
    goal: Goal | None,  # noqa: ARG001
    *,
    target: Annotated[int, "the class that they become"] = 2,
    spared: Annotated[tuple[int, ...], "classes whose labels stay"] = (9,),
) -> Attack:
    """Each attacker trains on its own examples, all of which but those of some classes are called one class."""

    def craft(knowledge: Knowledge) -> Tensor:
        y = granted(knowledge.own, "own data").y
        kept = torch.isin(y, torch.tensor([*spared], dtype=y.dtype))
        return projected(own_updates(knowledge, torch.where(kept, y, target)), knowledge.budget)

    return Attack(craft, OWN)


@attack(
    paper="Gu et al. 2017, BadNets: Identifying Vulnerabilities in the Machine Learning Model Supply Chain",
    goal=goals.patch,
    needs=OWN,
)
def stamped_training(goal: Goal, *, poisoned: Poisoned = 0.15) -> Attack:
    """Each attacker trains honestly on its own examples, a share of which, drawn anew, is stamped and renamed."""
    check_share("stamped_training", poisoned)
    if goal.stamp is None or goal.target is None:
        raise ConfigError("stamped_training: the goal has no trigger; use one with a stamp, such as patch")
    stamp, target = goal.stamp, goal.target

    def craft(knowledge: Knowledge) -> Tensor:
        own = granted(knowledge.own, "own data")
        if knowledge.train is None:
            raise ConfigError("stamped_training is for devices that train by themselves; set train.local_batch")
        chance = rng(knowledge.seed, "stamped training", knowledge.round).random(len(own.y))
        chosen = torch.from_numpy(chance < poisoned)
        x = torch.where(chosen.view(-1, *(1,) * (own.x.dim() - 1)), stamp(own.x), own.x)
        return projected(knowledge.train(own._replace(x=x, y=own.y.masked_fill(chosen, target))), knowledge.budget)

    return Attack(craft, OWN)
