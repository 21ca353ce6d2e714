"""Partitions by group: examples dealt to devices, as one CSR index and no object per device.

Device i owns `examples[offsets[i]:offsets[i + 1]]`. A partition is a function `(labels, users, devices, per_device,
seed)`; further parameters stand beside its name in a config. The ones here deal *groups* (everything, a class, a user)
and a device owns examples of one group only; those that mix groups are in `skewed.py`. Devices are numbered group after
group, so neighbours share a class or a user.

How many devices a group gets: Adams' apportionment, by which the largest device is as small as it can be and every
group gets at least one device. Equal groups get equal numbers; what does not divide is missing from the lowest labels.
(`by_user_evenly` gives every user the same number instead.)

How large they are:

- `per_device` not given: each example is dealt exactly once, and the devices of a group differ by at most one example.
- `per_device` given: each device owns exactly that many different examples. A *pass* is a fresh shuffle of a group,
  cut into whole devices; what is left over from a pass is not dealt. One pass is used where it suffices, so
  nothing is owned twice; a population too large for that takes as many passes as it needs, so devices reuse
  examples, but no device owns the same one twice.

A device without examples is never made: a request that would need one is refused. This file knows neither images nor
models, nor who is malicious.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from sparsefed.core.errors import ConfigError
from sparsefed.core.rng import rng
from sparsefed.core.types import IntArray, Partition
from sparsefed.data.partitions.cutting import (
    Groups,
    PartitionRule,
    apportion,
    class_groups,
    deal,
    group,
    kept,
    levelled,
    required,
)
from sparsefed.data.partitions.skewed import c_class, dirichlet, power_law

__all__ = ["PARTITIONS", "Partition", "PartitionRule", "apportion", "by_user", "iid", "one_class"]


def iid(labels: IntArray, users: IntArray | None, devices: int | None, per_device: int | None, seed: int) -> Partition:  # noqa: ARG001
    """Examples shuffled and dealt to the devices as evenly as possible.

    >>> np.diff(iid(np.zeros(10, np.int64), None, 4, None, seed=0).offsets).tolist()
    [3, 3, 2, 2]
    """
    generator = rng(seed, "partition")
    everything = np.zeros(len(labels), np.int64)
    return deal(group("data set", everything, generator), required("iid", devices), per_device, generator)


def one_class(
    labels: IntArray,
    users: IntArray | None,  # noqa: ARG001
    devices: int | None,
    per_device: int | None,
    seed: int,
) -> Partition:
    """Every device owns examples of one class only; the paper's cross-device setting.

    >>> labels = np.array([7, 3, 7, 3, 7, 7])
    >>> owned = one_class(labels, None, 3, None, seed=0)
    >>> [labels[part].tolist() for part in np.split(owned.examples, owned.offsets[1:-1])]
    [[3, 3], [7, 7], [7, 7]]
    """
    generator = rng(seed, "partition")
    groups = class_groups("one_class", labels, generator)
    wanted = required("one_class", devices)
    if 0 < wanted < len(groups.names):
        raise ConfigError(
            f"one_class cannot deal {len(groups.names)} classes to {wanted} devices of one class each; "
            f"use at least {len(groups.names)} devices, or the partition iid"
        )
    return deal(groups, wanted, per_device, generator)


def by_user(
    labels: IntArray, users: IntArray | None, devices: int | None, per_device: int | None, seed: int
) -> Partition:
    """Every device owns examples of one user only.

    `devices` None: one device a user; with `per_device`, as many whole devices as each user's examples make, none for a
    user who has fewer. More devices than users: users are cut into near-equal devices, as the paper cuts FEMNIST's
    writers. Fewer: a random subset of the users, one device each; the others' examples are left out, since to merge
    users would undo what makes them differ.

    >>> owned = by_user(np.zeros(5, np.int64), np.array([4, 4, 9, 4, 9]), None, None, seed=0)
    >>> [sorted(part.tolist()) for part in np.split(owned.examples, owned.offsets[1:-1])]
    [[0, 1, 3], [2, 4]]
    """
    generator = rng(seed, "partition")
    groups = _by_user(labels, users, generator)
    if devices is None and per_device is not None:
        groups = _with_at_least(per_device, groups)
        devices = int((groups.counts // per_device).sum())
    wanted = len(groups.names) if devices is None else devices
    if 0 < wanted < len(groups.names):
        groups = kept(groups, np.sort(generator.choice(len(groups.names), wanted, replace=False)))
    return deal(groups, wanted, per_device, generator)


def by_user_evenly(
    labels: IntArray, users: IntArray | None, devices: int | None, per_device: int | None, seed: int
) -> Partition:
    """Every user is cut into the same number of devices, or one more; the paper's FEMNIST, "9-10 devices" a user.

    Where `by_user` makes devices of like size, this makes the same number for every user, so that a user with much data
    has large devices. The users with most examples get one more; no user gets more devices than examples.

    >>> owned = by_user_evenly(np.zeros(7, np.int64), np.array([4, 4, 9, 4, 9, 4, 4]), 4, None, seed=0)
    >>> np.diff(owned.offsets).tolist()
    [3, 2, 1, 1]
    """
    generator = rng(seed, "partition")
    groups = _by_user(labels, users, generator)
    wanted = required("by_user_evenly", devices)
    if 0 < wanted < len(groups.names):
        raise ConfigError(
            f"by_user_evenly cannot cut {len(groups.names)} users into {wanted} devices; use at least "
            f"{len(groups.names)}, or the partition by_user, which can leave users out"
        )
    return deal(groups, wanted, per_device, generator, levelled)


def _by_user(labels: IntArray, users: IntArray | None, generator: np.random.Generator) -> Groups:
    if users is None:
        raise ConfigError("by_user needs a data set that says who wrote each example; use iid or one_class here")
    if len(users) != len(labels):
        raise ConfigError(f"by_user needs a user for each example, but was given {len(users)} for {len(labels)}")
    return group("user", users, generator)


def _with_at_least(examples: int, groups: Groups) -> Groups:
    most = int(groups.counts.max(initial=0))
    if not 1 <= examples <= most:
        raise ConfigError(
            f"per_device = {examples} is impossible: no user has that many examples; use 1 to {most}, where only users "
            "with that many have devices"
        )
    return kept(groups, np.flatnonzero(groups.counts >= examples))


PARTITIONS: Mapping[str, PartitionRule] = {
    "iid": iid,
    "one_class": one_class,
    "c_class": c_class,
    "dirichlet": dirichlet,
    "by_user": by_user,
    "by_user_evenly": by_user_evenly,
    "power_law": power_law,
}
