"""Who owns what: examples dealt to devices, as one CSR index and no object per device.

Device i owns `examples[offsets[i]:offsets[i + 1]]`. Every partition deals *groups* (everything, a class, a user) and a
device owns examples of one group only. Devices are numbered group after group, so neighbours share a class or a user.

How many devices a group gets: Adams' apportionment, by which the largest device is as small as it can be and every
group gets at least one device. Equal groups get equal numbers; what does not divide is missing from the lowest labels.
(`by_user_evenly` gives every user the same number instead.)

How large they are:

- `per_device` not given: each example is dealt exactly once, and the devices of a group differ by at most one example.
- `per_device` given: each device owns exactly that many different examples. A *pass* is a fresh shuffle of a group,
  cut into whole devices; what is left over from a pass is dealt to nobody. One pass is used where it suffices, so
  nothing is owned twice; a population too large for that takes as many passes as it needs, so devices reuse
  examples, but no device owns the same one twice.

A device without examples is never made: a request that would need one is refused. This file knows neither images nor
models, nor who is malicious.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from sparsefed.errors import ConfigError
from sparsefed.rng import rng
from sparsefed.types import IndexArray, IntArray

_BLOCK = 2**18  # examples shuffled at a time: bounds what a partition needs beyond its result


@dataclass(frozen=True, eq=False)
class Partition:
    """Who owns what, for a population of any size; both arrays are read-only."""

    offsets: IntArray  # [devices + 1], from 0, strictly increasing
    examples: IndexArray  # [total], rows of the data set

    @property
    def devices(self) -> int:
        return len(self.offsets) - 1


PartitionRule = Callable[[IntArray, IntArray | None, int | None, int | None, int], Partition]


class _Groups(NamedTuple):
    """Examples sorted by group, in random order within each."""

    noun: str  # "class", for messages
    names: IntArray  # [groups]
    counts: IntArray  # [groups], none of them 0
    order: IndexArray  # [sum of counts]


def iid(labels: IntArray, users: IntArray | None, devices: int | None, per_device: int | None, seed: int) -> Partition:  # noqa: ARG001
    """Examples shuffled and dealt to the devices as evenly as can be.

    >>> np.diff(iid(np.zeros(10, np.int64), None, 4, None, seed=0).offsets).tolist()
    [3, 3, 2, 2]
    """
    generator = rng(seed, "partition")
    everything = np.zeros(len(labels), np.int64)
    return _deal(_group("data set", everything, generator), _required("iid", devices), per_device, generator)


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
    groups = _group("class", labels, generator)
    wanted = _required("one_class", devices)
    if 0 < wanted < len(groups.names):
        raise ConfigError(
            f"one_class cannot deal {len(groups.names)} classes to {wanted} devices of one class each; "
            f"use at least {len(groups.names)} devices, or the partition iid"
        )
    return _deal(groups, wanted, per_device, generator)


def by_user(
    labels: IntArray, users: IntArray | None, devices: int | None, per_device: int | None, seed: int
) -> Partition:
    """Every device owns examples of one user only.

    `devices` None: one device a user. More devices than users: users are cut into devices of like size. Fewer:
    a random subset of the users, one device each; the others' examples are left out, since to merge users would undo
    what makes them differ.

    >>> owned = by_user(np.zeros(5, np.int64), np.array([4, 4, 9, 4, 9]), None, None, seed=0)
    >>> [sorted(part.tolist()) for part in np.split(owned.examples, owned.offsets[1:-1])]
    [[0, 1, 3], [2, 4]]
    """
    generator = rng(seed, "partition")
    groups = _by_user(labels, users, generator)
    wanted = len(groups.names) if devices is None else devices
    if 0 < wanted < len(groups.names):
        groups = _kept(groups, np.sort(generator.choice(len(groups.names), wanted, replace=False)))
    return _deal(groups, wanted, per_device, generator)


def by_user_evenly(
    labels: IntArray, users: IntArray | None, devices: int | None, per_device: int | None, seed: int
) -> Partition:
    """Every user cut into the same number of devices, or one more; the paper's FEMNIST, "9-10 devices" a user.

    Where `by_user` makes devices of like size, this makes as many of everybody, so that a user with much data has large
    devices. The users with most examples get the one more; nobody gets more devices than examples.

    >>> owned = by_user_evenly(np.zeros(7, np.int64), np.array([4, 4, 9, 4, 9, 4, 4]), 4, None, seed=0)
    >>> np.diff(owned.offsets).tolist()
    [3, 2, 1, 1]
    """
    generator = rng(seed, "partition")
    groups = _by_user(labels, users, generator)
    wanted = _required("by_user_evenly", devices)
    if 0 < wanted < len(groups.names):
        raise ConfigError(
            f"by_user_evenly cannot cut {len(groups.names)} users into {wanted} devices; use at least "
            f"{len(groups.names)}, or the partition by_user, which can leave users out"
        )
    return _deal(groups, wanted, per_device, generator, levelled)


PARTITIONS: Mapping[str, PartitionRule] = {
    "iid": iid,
    "one_class": one_class,
    "by_user": by_user,
    "by_user_evenly": by_user_evenly,
}


def apportion(weights: IntArray, devices: int) -> IntArray:
    """Devices a group, by Adams: minimises the largest weight a device; no group gets none.

    No group gets more than its quota rounded up, so start there and take back where it is felt least. Needs
    devices >= len(weights). Ties: the lower index gives first.

    >>> apportion(np.array([100, 1900, 1]), 21)
    array([ 1, 19,  1])
    """
    given: IntArray = -(-weights * devices // weights.sum())
    after_loss = [
        (w / (g - 1), i) for i, (w, g) in enumerate(zip(weights.tolist(), given.tolist(), strict=True)) if g > 1
    ]
    heapq.heapify(after_loss)
    for _ in range(int(given.sum()) - devices):
        i = after_loss[0][1]
        given[i] -= 1
        heapq.heapreplace(after_loss, (weights[i] / (given[i] - 1) if given[i] > 1 else np.inf, i))
    return given


def levelled(weights: IntArray, devices: int) -> IntArray:
    """Devices a group: equal numbers, no more than a group's weight while another has room; the rest to the largest.

    >>> levelled(np.array([1, 9, 5]), 8)
    array([1, 4, 3])
    """
    given = np.zeros_like(weights)
    while left := devices - int(given.sum()):
        room = np.flatnonzero(given < weights)
        if len(room) == 0:  # more devices than weight: everybody alike again
            return given + levelled(weights, left)
        each = left // len(room)
        if each == 0:
            given[room[np.argsort(-weights[room], kind="stable")[:left]]] += 1
        else:
            given[room] = np.minimum(given[room] + each, weights[room])
    return given


def _required(rule: str, devices: int | None) -> int:
    if devices is None:
        raise ConfigError(f"the partition {rule} needs the number of devices; only by_user can tell it from the data")
    return devices


def _by_user(labels: IntArray, users: IntArray | None, generator: np.random.Generator) -> _Groups:
    if users is None:
        raise ConfigError("by_user needs a data set that says who wrote each example; use iid or one_class here")
    if len(users) != len(labels):
        raise ConfigError(f"by_user needs a user for each example, but was given {len(users)} for {len(labels)}")
    return _group("user", users, generator)


def _group(noun: str, keys: IntArray, generator: np.random.Generator) -> _Groups:
    """Examples sorted by key, shuffled within each."""
    names, group, counts = np.unique(keys, return_inverse=True, return_counts=True)
    shuffled = generator.permutation(len(keys)).astype(np.int32)
    return _Groups(noun, names, counts, shuffled[np.argsort(group[shuffled], kind="stable")])


def _kept(groups: _Groups, kept: IntArray) -> _Groups:
    """Only these groups."""
    chosen = np.zeros(len(groups.names), bool)
    chosen[kept] = True
    return groups._replace(
        names=groups.names[kept], counts=groups.counts[kept], order=groups.order[np.repeat(chosen, groups.counts)]
    )


def _deal(
    groups: _Groups,
    devices: int,
    per_device: int | None,
    generator: np.random.Generator,
    share: Callable[[IntArray, int], IntArray] = apportion,
) -> Partition:
    """Deal every group to its devices, or say why that cannot be."""
    total = len(groups.order)
    if total == 0:
        raise ConfigError("there are no examples to deal; give a data set with at least one")
    if devices < 1:
        raise ConfigError(f"a federation needs at least 1 device, but was given {devices}")
    if per_device is not None:
        return _deal_passes(groups, devices, per_device, generator, share)
    if devices > total:
        raise ConfigError(
            f"{total} examples cannot be dealt once each to {devices} devices; use at most {total} devices, or set "
            "per_device, so that devices reuse examples"
        )
    return _deal_once(groups, share(groups.counts, devices))


def _deal_once(groups: _Groups, given: IntArray) -> Partition:
    """Each example to one of the devices given to its group, which differ by at most one example."""
    place = np.arange(given.sum()) - np.repeat(np.cumsum(given) - given, given)  # of a device within its group
    sizes = np.repeat(groups.counts // given, given) + (place < np.repeat(groups.counts % given, given))
    return _sealed(np.concatenate([[0], np.cumsum(sizes)]), groups.order)


def _deal_passes(
    groups: _Groups,
    devices: int,
    per_device: int,
    generator: np.random.Generator,
    share: Callable[[IntArray, int], IntArray],
) -> Partition:
    """`per_device` different examples to each device, by as many passes over each group as that needs."""
    smallest = int(groups.counts.argmin())
    if not 1 <= per_device <= groups.counts[smallest]:
        where = groups.noun if groups.noun == "data set" else f"{groups.noun} {groups.names[smallest]}"
        raise ConfigError(
            f"per_device = {per_device} is impossible: the {where} has {groups.counts[smallest]} examples, and a "
            f"device owns different ones; use 1 to {groups.counts[smallest]}"
        )
    # Weighed by the devices that one pass serves: no group then starts a second pass while another has not ended its
    # first.
    given = share(groups.counts // per_device, devices)
    examples = np.empty(devices * per_device, np.int32)
    ends = np.cumsum(given) * per_device
    owned = np.cumsum(groups.counts)
    for first, last, start, stop in zip(ends - given * per_device, ends, owned - groups.counts, owned, strict=True):
        _fill_passes(examples[first:last], groups.order[start:stop], per_device, generator)
    return _sealed(np.arange(0, (devices + 1) * per_device, per_device), examples)


def _fill_passes(out: IndexArray, own: IndexArray, per_device: int, generator: np.random.Generator) -> None:
    """Fill `out` with fresh shuffles of `own`, each cut to whole devices."""
    used = len(own) // per_device * per_device  # of a pass
    at = 0
    while at < len(out):
        passes = min(-(-(len(out) - at) // used), max(1, _BLOCK // len(own)))
        dealt = generator.permuted(np.tile(own, (passes, 1)), axis=1)[:, :used].reshape(-1)[: len(out) - at]
        out[at : at + len(dealt)] = dealt
        at += len(dealt)


def _sealed(offsets: IntArray, examples: IndexArray) -> Partition:
    offsets.flags.writeable = False
    examples.flags.writeable = False
    return Partition(offsets, examples)
