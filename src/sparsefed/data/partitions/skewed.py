"""Partitions whose devices mix classes, or differ in size: c-class shards, Dirichlet mixtures, power-law sizes.

They guarantee what all partitions do (`partition.py`): nothing is owned twice unless `per_device` needs more than there
is, no device owns the same example twice, no device is empty. Memory is O(examples dealt), whatever the number
of classes; the Dirichlet mixture holds devices x classes where every example is dealt at most once.
"""

from __future__ import annotations

import math
from typing import Annotated

import numpy as np
import numpy.typing as npt

from sparsefed.core.errors import ConfigError
from sparsefed.core.rng import rng
from sparsefed.core.types import IntArray, Partition
from sparsefed.data.partitions.cutting import (
    Groups,
    Shards,
    apportion_at_most,
    check,
    class_groups,
    deal_shards,
    group,
    required,
)

_SWEEPS = 8  # swaps tried for each shard: the classes that meet on a device are then as good as independent
_BLOCK = 2**18  # numbers drawn at a time where devices do not depend on each other
LARGEST_ALPHA = 1e9
_LEAST = -1e300  # stands for the logarithm of a weight that underflows

Floats = npt.NDArray[np.float64]


# --- c classes -------------------------------------------------------------------------------------------------------


def c_class(
    labels: IntArray,
    users: IntArray | None,  # noqa: ARG001
    devices: int | None,
    per_device: int | None,
    seed: int,
    classes_per_device: Annotated[int, "classes that each device owns examples of"] = 2,
) -> Partition:
    """Every device owns examples of exactly c classes: shards of one class each, c to a device (McMahan et al. 2017).

    A class is cut into as many near-equal shards as befits its size (Adams' apportionment, at most one a device); with
    `per_device`, a device's shards differ by at most one example. Which classes meet on a device is random.

    *Departures.* McMahan et al. deal shards blindly, so that a device can get two of one class; here it cannot.

    >>> labels = np.arange(12) % 3
    >>> owned = c_class(labels, None, 3, None, seed=0, classes_per_device=2)
    >>> [np.bincount(labels[part], minlength=3).tolist() for part in np.split(owned.examples, owned.offsets[1:-1])]
    [[2, 0, 2], [0, 2, 2], [2, 2, 0]]
    """
    generator, c, n = rng(seed, "partition"), classes_per_device, required("c_class", devices)
    groups = class_groups("c_class", labels, generator)
    check(len(groups.order), n, per_device)
    given = _shards_of_classes(groups, n, c, per_device)
    classes = _scattered(given, n, c, generator)
    by_class = np.argsort(classes.reshape(-1), kind="stable")
    group_of, device, slot = classes.reshape(-1)[by_class].astype(np.int64), by_class // c, by_class % c
    if per_device is None:
        place = np.arange(n * c) - np.repeat(np.cumsum(given) - given, given)  # a shard's place within its class
        size = (groups.counts // given)[group_of] + (place < (groups.counts % given)[group_of])
    else:
        size = per_device // c + (slot < per_device % c)
    return deal_shards(groups, Shards(group_of, device, size), n, generator)


def _shards_of_classes(groups: Groups, devices: int, c: int, per_device: int | None) -> IntArray:
    """Return how many shards each class is cut into; raise an error if that is impossible."""
    classes = len(groups.names)
    if not 1 <= c <= classes:
        raise ConfigError(f"classes_per_device is {c}, but the data set has {classes} classes; use 1 to {classes}")
    if devices * c < classes:
        raise ConfigError(
            f"c_class cannot deal {classes} classes to {devices} devices of {c} each; use at least "
            f"{-(-classes // c)} devices"
        )
    largest = 1 if per_device is None else -(-per_device // c)  # the largest shard
    fewest = int(groups.counts.min())
    if per_device is not None and not (c <= per_device and largest <= fewest):
        raise ConfigError(
            f"per_device = {per_device} is impossible: a device owns examples of {c} classes, and the smallest class "
            f"has {fewest}; use {c} to {c * fewest}"
        )
    most = np.minimum(devices, groups.counts) if per_device is None else np.full(classes, devices)
    if int(most.sum()) < devices * c:
        raise ConfigError(
            f"the {classes} classes cannot be dealt once each to {devices} devices of {c} classes: the small ones have "
            "too few examples; use fewer devices, or set per_device, so that devices reuse examples"
        )
    return apportion_at_most(groups.counts // largest, devices * c, most)


def _scattered(given: IntArray, devices: int, c: int, generator: np.random.Generator) -> npt.NDArray[np.int32]:
    """Return the classes of each device [devices, c], all different, class k on given[k] devices.

    Dealt in turn, the shards of a class, at most one for each device, go to different devices. Then pairs of devices
    swap shards wherever that gives no device a class twice: a symmetric Markov chain on all such arrangements.
    """
    classes = np.repeat(np.arange(len(given), dtype=np.int32), given).reshape(c, devices).T.copy()
    for _ in range(_SWEEPS * c):
        order, half = generator.permutation(devices), devices // 2
        one, other = order[:half], order[half : 2 * half]
        i, j = generator.integers(c, size=(2, half))
        mine, theirs = classes[one, i], classes[other, j]
        clash = (classes[one] == theirs[:, None]).any(1) | (classes[other] == mine[:, None]).any(1)
        free = np.flatnonzero(~clash)
        classes[one[free], i[free]], classes[other[free], j[free]] = theirs[free], mine[free]
    return classes


# --- Dirichlet -------------------------------------------------------------------------------------------------------


def dirichlet(
    labels: IntArray,
    users: IntArray | None,  # noqa: ARG001
    devices: int | None,
    per_device: int | None,
    seed: int,
    alpha: Annotated[float, "small: a device has few classes; large: all of them, as the data set has"] = 0.5,
) -> Partition:
    """Every device draws its mixture of classes from a Dirichlet distribution and then its examples from the mixture.

    q_i ~ Dir(alpha K p), p the K classes' shares of the data set, so that alpha is the mean concentration of a class
    (Hsu et al. 2019 write alpha for the sum, K times ours). Devices are equally large, up to one example. Examples are
    dealt at most once: where a class is used up, the draws that it cannot serve, chosen at random, are repeated over
    the other classes of their device's mixture. With `per_device` and more devices than the examples can serve once,
    nothing is used up, and devices reuse examples.

    >>> labels = np.arange(12) % 3
    >>> owned = dirichlet(labels, None, 3, None, seed=0, alpha=0.1)
    >>> [np.bincount(labels[part], minlength=3).tolist() for part in np.split(owned.examples, owned.offsets[1:-1])]
    [[3, 0, 1], [0, 4, 0], [1, 0, 3]]
    """
    if not 0 < alpha <= LARGEST_ALPHA:
        raise ConfigError(
            f"alpha is {alpha}, but a Dirichlet distribution needs a number above 0, here at most {LARGEST_ALPHA:g}: "
            "with that, devices have all classes as the data set has; for that, use the partition iid"
        )
    generator, n = rng(seed, "partition"), required("dirichlet", devices)
    groups = class_groups("dirichlet", labels, generator)
    total = len(groups.order)
    check(total, n, per_device)
    if per_device is not None and not 1 <= per_device <= total:
        raise ConfigError(
            f"per_device = {per_device} is impossible: the data set has {total} examples, and a device owns different "
            f"ones; use 1 to {total}"
        )
    sizes = np.full(n, per_device) if per_device else total // n + (np.arange(n) < total % n)
    return deal_shards(groups, _mixtures(groups.counts, sizes, alpha, generator), n, generator)


def _mixtures(counts: IntArray, sizes: IntArray, alpha: float, generator: np.random.Generator) -> Shards:
    """Draw how many examples of each class each device gets."""
    once = int(sizes.sum()) <= int(counts.sum())
    step = len(sizes) if once else max(1, _BLOCK // len(counts))
    parts = []
    for first in range(0, len(sizes), step):
        drawn = _drawn(counts, sizes[first : first + step], alpha, once, generator)
        classes, devices = np.nonzero(drawn.T)
        parts.append((classes, first + devices, drawn[devices, classes]))
    group_of, device, size = (np.concatenate(part) for part in zip(*parts, strict=True))
    by_class = np.argsort(group_of, kind="stable")
    return Shards(group_of[by_class], device[by_class], size[by_class])


def _drawn(counts: IntArray, sizes: IntArray, alpha: float, once: bool, generator: np.random.Generator) -> IntArray:
    """Draw the examples of each class per device [devices, K]; rows sum to `sizes`; `once`: columns within counts."""
    logs = _log_weights(alpha * len(counts) * counts / counts.sum(), len(sizes), generator)
    drawn = np.zeros((len(sizes), len(counts)), np.int64)
    need = sizes.copy()
    while len(who := np.flatnonzero(need)):
        left = counts - (drawn.sum(0) if once else 0)  # examples left of each class
        room = np.minimum(left, counts - drawn[who])
        requested = generator.multinomial(need[who], _shares(np.where(room > 0, logs[who], -np.inf)))
        got = np.minimum(requested, room)
        if once:
            for k in np.flatnonzero(got.sum(0) > left):
                got[:, k] = generator.multivariate_hypergeometric(got[:, k], left[k], method="marginals")
        drawn[who] += got
        need[who] -= got.sum(1)
    return drawn


def _log_weights(concentration: Floats, devices: int, generator: np.random.Generator) -> Floats:
    """Draw the logarithms of independent Gamma(concentration) [devices, K], whose shares are a Dirichlet draw.

    Gamma(a) is Gamma(a + 1) U^(1 / a): in logarithms, no concentration is too small.
    """
    shape = (devices, len(concentration))
    with np.errstate(over="ignore", divide="ignore"):
        logs = np.log(generator.standard_gamma(concentration + 1, shape))
        logs -= generator.standard_exponential(shape) / concentration
    return np.maximum(logs, _LEAST)


def _shares(logs: Floats) -> Floats:
    weights = np.exp(logs - logs.max(1, keepdims=True))
    shares: Floats = weights / weights.sum(1, keepdims=True)
    return shares


# --- power law -------------------------------------------------------------------------------------------------------


def power_law(
    labels: IntArray,
    users: IntArray | None,  # noqa: ARG001
    devices: int | None,
    per_device: int | None,
    seed: int,
    exponent: Annotated[float, "0: all devices equally large; 1: Zipf's law"] = 1.0,
) -> Partition:
    """Examples shuffled and dealt to devices of very different sizes: few own much, most own little.

    Every device owns one example; the rest is shared out so that the r-th largest gets in proportion to r^-exponent
    (largest remainders). Which device is how large is random. `per_device` is the mean size here; without it, each
    example is dealt exactly once.

    >>> np.sort(np.diff(power_law(np.zeros(15, np.int64), None, 4, None, seed=0).offsets)).tolist()
    [2, 3, 4, 6]
    """
    if not (exponent >= 0 and math.isfinite(exponent)):
        raise ConfigError(f"exponent is {exponent}, but sizes that fall off need a finite number from 0 up")
    generator, n, total = rng(seed, "partition"), required("power_law", devices), len(labels)
    check(total, n, per_device)
    if per_device is not None and per_device < 1:
        raise ConfigError(f"per_device = {per_device} is impossible: no device is empty; use at least 1")
    sizes = _power_sizes(total if per_device is None else n * per_device, n, exponent)
    if sizes[0] > total:
        raise ConfigError(
            f"the largest device would own {sizes[0]} different examples, but there are {total}; use a smaller "
            "exponent or per_device"
        )
    groups = group("data set", np.zeros(total, np.int64), generator)
    shards = Shards(np.zeros(n, np.int64), np.arange(n), generator.permutation(sizes))
    return deal_shards(groups, shards, n, generator)


def _power_sizes(total: int, devices: int, exponent: float) -> IntArray:
    """Return the sizes of the devices, largest first."""
    weights = np.arange(1, devices + 1) ** -float(exponent)
    # Slightly less than the quota, because rounding must never deal more than there is.
    quota = weights / weights.sum() * (total - devices) * (1 - 1e-12)
    sizes: IntArray = np.floor(quota).astype(np.int64)
    missing = total - devices - int(sizes.sum())
    sizes[np.argsort(sizes - quota, kind="stable")[:missing]] += 1
    sizes += 1
    return sizes
