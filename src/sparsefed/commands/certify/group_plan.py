"""The groups of a vote: which devices train which model, a function of the seed that is fixed before training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from sparsefed.core.errors import ConfigError
from sparsefed.core.rng import rng
from sparsefed.core.types import IntArray

Kind = Literal["disjoint", "spread", "subsets"]


@dataclass(frozen=True, eq=False)
class GroupPlan:
    """The groups of a vote; nothing that a device sends can change them."""

    kind: Kind
    devices: int
    members: tuple[IntArray, ...]  # the sorted ids of each group's devices
    reach: npt.NDArray[np.bool_] | None = None  # [parts, groups], which groups the devices of a part are in; spread
    subset: int | None = None  # devices in each group; subsets

    @property
    def groups(self) -> int:
        """The number of groups, each of which trains a model."""
        return len(self.members)

    @property
    def sizes(self) -> tuple[int, int]:
        """The devices in the smallest and in the largest group."""
        sizes = [len(each) for each in self.members]
        return min(sizes), max(sizes)

    @property
    def touched(self) -> npt.NDArray[np.bool_]:
        """Which groups each device is in [devices, groups]; for subsets, whose attackers may know the draw."""
        touched = np.zeros((self.devices, self.groups), bool)
        for group, ids in enumerate(self.members):
            touched[ids, group] = True
        return touched


def plan_groups(devices: int, groups: int, seed: int, *, spread: int = 1, subset: int | None = None) -> GroupPlan:
    """Return the groups of these devices.

    Args:
        devices: The number of devices.
        groups: The number of groups.
        seed: The seed of the assignment.
        spread: The groups that each device is in (Finite Aggregation); 1: disjoint groups.
        subset: The devices of each group, drawn at random for every group anew (FLCert-P), instead of `spread`.

    Raises:
        ConfigError: There are no such groups.
    """
    if groups < 2:
        raise ConfigError(f"--groups is {groups}, but a vote needs at least two groups: choose 2 to {devices}")
    if subset is not None:
        return _subsets(devices, groups, seed, spread, subset)
    if groups > devices:
        raise ConfigError(f"--groups is {groups}, but there are only {devices} devices: choose 2 to {devices}")
    if not 1 <= spread <= groups:
        raise ConfigError(f"--spread is {spread}, but a device can be in 1 to all {groups} of the groups")
    parts = [np.sort(part) for part in np.array_split(rng(seed, "groups").permutation(devices), groups)]
    if spread == 1:
        return GroupPlan("disjoint", devices, tuple(parts))
    steps = rng(seed, "spread of groups").choice(groups, spread, replace=False)
    reach = np.zeros((groups, groups), bool)
    for part in range(groups):
        reach[part, (part + steps) % groups] = True
    members = [np.sort(np.concatenate([parts[part] for part in np.flatnonzero(reach[:, g])])) for g in range(groups)]
    return GroupPlan("spread", devices, tuple(members), reach)


def _subsets(devices: int, groups: int, seed: int, spread: int, subset: int) -> GroupPlan:
    if spread != 1:
        raise ConfigError("--spread and --subset are two ways to make groups overlap; give one of them")
    if not 1 <= subset <= devices:
        raise ConfigError(f"--subset is {subset}, but a group can have 1 to all {devices} of the devices")
    draws = (rng(seed, "subsets", client=group).choice(devices, subset, replace=False) for group in range(groups))
    return GroupPlan("subsets", devices, tuple(np.sort(each) for each in draws), subset=subset)
