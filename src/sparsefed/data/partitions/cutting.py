"""The building blocks of partitions: how groups of examples are cut and dealt.

A *group* is everything, a class or a user; a *shard* is what one device gets of one group. A *pass* is a fresh shuffle
of a group: as many are used as the shards need, one where it suffices, so that nothing is owned twice unless it must.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from sparsefed.core.errors import ConfigError
from sparsefed.core.types import IndexArray, IntArray, Partition

MOST_DEVICES, MOST_DEALT = 10**8, 2**31
_BLOCK = 2**18  # examples shuffled at a time: bounds what a partition needs beyond its result


PartitionRule = Callable[[IntArray, IntArray | None, int | None, int | None, int], Partition]


class Groups(NamedTuple):
    """Examples sorted by group, in random order within each."""

    noun: str  # "class", for messages
    names: IntArray  # [groups]
    counts: IntArray  # [groups], none of them 0
    order: IndexArray  # [sum of counts]


def apportion(weights: IntArray, devices: int) -> IntArray:
    """Return the devices of each group by Adams' method: minimises the largest weight per device; no group gets none.

    No group gets more than its quota rounded up, so start there and take back where it matters least. Needs
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


def apportion_at_most(weights: IntArray, devices: int, most: IntArray) -> IntArray:
    """Return the devices of each group by Adams' method, at most `most` each; the rest goes to the other groups.

    Also needs most.sum() >= devices.

    >>> apportion_at_most(np.array([100, 10, 5]), 20, np.array([10, 10, 5]))
    array([10,  6,  4])
    """
    given, full = np.zeros_like(weights), np.zeros(len(weights), bool)
    while not full.all():
        given[~full] = apportion(weights[~full], devices - int(given[full].sum()))
        over = given > most
        if not over.any():
            break
        given[over], full = most[over], full | over
    return given


def levelled(weights: IntArray, devices: int) -> IntArray:
    """Return equal numbers of devices per group, capped at its weight while others have room; the largest get the rest.

    >>> levelled(np.array([1, 9, 5]), 8)
    array([1, 4, 3])
    """
    given = np.zeros_like(weights)
    while left := devices - int(given.sum()):
        room = np.flatnonzero(given < weights)
        if len(room) == 0:  # more devices than weight: equal numbers again
            return given + levelled(weights, left)
        each = left // len(room)
        if each == 0:
            given[room[np.argsort(-weights[room], kind="stable")[:left]]] += 1
        else:
            given[room] = np.minimum(given[room] + each, weights[room])
    return given


def required(rule: str, devices: int | None) -> int:
    """Return the number of devices; raise if a partition that needs it was not given one."""
    if devices is None:
        raise ConfigError(f"the partition {rule} needs the number of devices; only by_user can tell it from the data")
    return devices


def group(noun: str, keys: IntArray, generator: np.random.Generator) -> Groups:
    """Return the examples sorted by key, shuffled within each."""
    names, which, counts = np.unique(keys, return_inverse=True, return_counts=True)
    shuffled = generator.permutation(len(keys)).astype(np.int32)
    return Groups(noun, names, counts, shuffled[np.argsort(which[shuffled], kind="stable")])


def class_groups(rule: str, labels: IntArray, generator: np.random.Generator) -> Groups:
    """Return the classes as groups."""
    if labels.ndim != 1 or labels.dtype.kind == "f":
        given = "are numbers to predict" if labels.dtype.kind == "f" else f"have labels {list(labels.shape[1:])}"
        raise ConfigError(
            f"{rule} needs one class for each example, but these examples {given}; use iid, by_user or power_law"
        )
    return group("class", labels, generator)


def kept(groups: Groups, these: IntArray) -> Groups:
    """Return only these groups."""
    chosen = np.zeros(len(groups.names), bool)
    chosen[these] = True
    return groups._replace(
        names=groups.names[these], counts=groups.counts[these], order=groups.order[np.repeat(chosen, groups.counts)]
    )


def deal(
    groups: Groups,
    devices: int,
    per_device: int | None,
    generator: np.random.Generator,
    share: Callable[[IntArray, int], IntArray] = apportion,
) -> Partition:
    """Deal every group to its share of the devices; raise an error if that is impossible."""
    check(len(groups.order), devices, per_device)
    if per_device is not None:
        # Weighted by the devices that one pass serves: no group then starts a second pass while another has not ended
        # its first.
        return _deal_passes(groups, per_device, generator, lambda: share(groups.counts // per_device, devices))
    return _deal_once(groups, share(groups.counts, devices))


def check(total: int, devices: int, per_device: int | None) -> None:
    """Raise an error for a request that no partition can satisfy."""
    if total == 0:
        raise ConfigError("there are no examples to deal; give a data set with at least one")
    if devices < 1:
        raise ConfigError(f"a federation needs at least 1 device, but was given {devices}")
    if devices > MOST_DEVICES or devices * (per_device or 0) > MOST_DEALT:
        raise ConfigError(
            f"{devices} devices{'' if per_device is None else f' of {per_device} examples'} are more than a partition "
            f"holds: at most {MOST_DEVICES} devices, and {MOST_DEALT} examples dealt to them"
        )
    if per_device is None and devices > total:
        raise ConfigError(
            f"{total} examples cannot be dealt once each to {devices} devices; use at most {total} devices, or set "
            "per_device, so that devices reuse examples"
        )


def _deal_once(groups: Groups, given: IntArray) -> Partition:
    """Deal each example once, to one of its group's devices, which differ by at most one example."""
    place = np.arange(given.sum()) - np.repeat(np.cumsum(given) - given, given)  # a device's place within its group
    sizes = np.repeat(groups.counts // given, given) + (place < np.repeat(groups.counts % given, given))
    return sealed(np.concatenate([[0], np.cumsum(sizes)]), groups.order)


def _deal_passes(
    groups: Groups, per_device: int, generator: np.random.Generator, share: Callable[[], IntArray]
) -> Partition:
    """Deal `per_device` different examples to each device, by as many passes over each group as that needs."""
    smallest = int(groups.counts.argmin())
    if not 1 <= per_device <= groups.counts[smallest]:
        where = groups.noun if groups.noun == "data set" else f"{groups.noun} {groups.names[smallest]}"
        raise ConfigError(
            f"per_device = {per_device} is impossible: the {where} has {groups.counts[smallest]} examples, and a "
            f"device owns different ones; use 1 to {groups.counts[smallest]}"
        )
    given = share()
    devices = int(given.sum())
    examples = np.empty(devices * per_device, np.int32)
    ends = np.cumsum(given) * per_device
    owned = np.cumsum(groups.counts)
    for first, last, start, stop in zip(ends - given * per_device, ends, owned - groups.counts, owned, strict=True):
        _fill_passes(examples[first:last], groups.order[start:stop], per_device, generator)
    return sealed(np.arange(0, (devices + 1) * per_device, per_device), examples)


def _fill_passes(out: IndexArray, own: IndexArray, per_device: int, generator: np.random.Generator) -> None:
    """Fill `out` with fresh shuffles of `own`, each cut to whole devices."""
    used = len(own) // per_device * per_device  # examples used of each pass
    at = 0
    while at < len(out):
        passes = min(-(-(len(out) - at) // used), max(1, _BLOCK // len(own)))
        dealt = generator.permuted(np.tile(own, (passes, 1)), axis=1)[:, :used].reshape(-1)[: len(out) - at]
        out[at : at + len(dealt)] = dealt
        at += len(dealt)


class Shards(NamedTuple):
    """The sizes of all shards, each with its group and device: arrays of one length, sorted by group."""

    group: IntArray  # positions in Groups
    device: IntArray
    size: IntArray  # none of them 0, and none larger than its group


def deal_shards(groups: Groups, shards: Shards, devices: int, generator: np.random.Generator) -> Partition:
    """Deal shards of any sizes; a device's examples come group after group."""
    examples = np.empty(int(shards.size.sum()), np.int32)
    ends = np.cumsum(shards.size)
    owned = np.concatenate([[0], np.cumsum(groups.counts)])
    bounds = np.searchsorted(shards.group, np.arange(len(groups.counts) + 1))
    for g, (first, last) in enumerate(pairwise(bounds.tolist())):
        if first < last:
            begin = int(ends[first] - shards.size[first])
            edges = np.concatenate([[0], ends[first:last] - begin])
            _fill_sized(examples[begin : ends[last - 1]], groups.order[owned[g] : owned[g + 1]], edges, generator)
    by_device = np.argsort(shards.device, kind="stable")
    sizes, starts = shards.size[by_device], (ends - shards.size)[by_device]
    places = np.repeat(starts - (np.cumsum(sizes) - sizes), sizes) + np.arange(len(examples))
    totals = np.bincount(shards.device, shards.size, devices).astype(np.int64)
    return sealed(np.concatenate([[0], np.cumsum(totals)]), examples[places])


def _fill_sized(out: IndexArray, own: IndexArray, edges: IntArray, generator: np.random.Generator) -> None:
    """Fill `out` with passes over `own`, the first as it is; a shard [edges[i], edges[i + 1]) owns nothing twice.

    Where a shard crosses from one pass into the next, the examples that it already has go to the end of the next.
    """
    out[: len(own)] = own[: len(out)]
    for start in range(len(own), len(out), len(own)):
        shard = int(np.searchsorted(edges, start, side="right")) - 1  # the shard that owns out[start]
        fresh = generator.permutation(own)
        has = np.isin(fresh, out[edges[shard] : start])
        fresh = np.concatenate([fresh[~has], fresh[has]])
        out[start : start + len(own)] = fresh[: len(out) - start]


def sealed(offsets: IntArray, examples: IndexArray) -> Partition:
    """Return a partition whose arrays are read-only."""
    offsets.flags.writeable = False
    examples.flags.writeable = False
    return Partition(offsets, examples)
