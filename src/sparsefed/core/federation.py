"""The federation: examples in memory, their owners, the cohort of each round, and the malicious devices.

A round costs O(cohort), never O(population): cohorts are drawn without listing the devices, and a cohort's examples are
gathered through the CSR index. Cohorts are seekable: round r depends on (seed, r) alone. Rounds count from 1.

Knows nothing of models, training, or what an attacker sends; only which devices would send it, and when.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sparsefed.core.errors import ConfigError
from sparsefed.core.rng import Words, mixed, rng
from sparsefed.core.threat import BoolArray, ThreatModel, acts, malicious_ids, malicious_mask
from sparsefed.core.types import Batch, IntArray, Partition

# 8 rounds bias where pairs of devices land by up to 7 % in populations below 10; 12 not measurably in 400 000 draws.
_FEISTEL_ROUNDS = 12

KEY_STEP = np.uint64(0x9E3779B97F4A7C15)  # of SplitMix64: a key and its multiples are the stream of that generator

Augmentation = Callable[[Tensor, Words], Tensor]  # uint8 [M, H, W, C], keys [M] -> uint8 [M, H, W, C]
Sampling = Callable[[int, int, int, int], IntArray]  # devices, n, seed, round -> ids of the cohort


def uniform(devices: int, n: int, seed: int, round: int) -> IntArray:
    """Draw n devices uniformly at random without replacement, independently in each round.

    NumPy draws by Floyd's algorithm, O(n); it lists the population only where that is below 50 n, so O(n) always.
    """
    return rng(seed, "cohort", round).choice(devices, n, replace=False)


def epoch(devices: int, n: int, seed: int, round: int) -> IntArray:
    """Draw every device once per epoch, in a new random order each epoch; its last cohort may have fewer than n."""
    number, turn = divmod(round - 1, rounds_per_epoch(devices, n))
    keys = rng(seed, "epoch order", number).integers(2**64, size=_FEISTEL_ROUNDS, dtype=np.uint64)
    return permuted(np.arange(turn * n, min((turn + 1) * n, devices)), devices, keys)


SAMPLING: Mapping[str, Sampling] = {"uniform": uniform, "epoch": epoch}


def rounds_per_epoch(devices: int, n: int) -> int:
    """Return the number of rounds in an epoch: how many cohorts of n it takes to reach every device.

    >>> rounds_per_epoch(10_000, 100), rounds_per_epoch(10, 4)
    (100, 3)
    """
    return -(-devices // n)


def permuted(positions: IntArray, size: int, keys: Words) -> IntArray:
    """Return the images of these positions under a keyed pseudo-random permutation of 0..size-1, in O(positions).

    A Feistel network on two digits to the base a = ceil(sqrt(size)), `(l, r) -> (r, l + F_key(r) mod a)`, permutes
    0..a^2-1 (Black and Rogaway 2002, the generalised Feistel cipher). A value that lands at `size` or above is permuted
    again until it does not (cycle walking), which keeps it a bijection; as a^2 < size + 2 sqrt(size) + 1, few
    do. Pseudo-random: which devices meet is unbiased as far as tests can tell, but not every one of the size! orders
    of a tiny population is equally likely.
    """
    base = math.isqrt(size - 1) + 1
    places = _feistel(positions, base, keys)
    while len(outside := np.flatnonzero(places >= size)):
        places[outside] = _feistel(places[outside], base, keys)
    return places


def _feistel(values: IntArray, base: int, keys: Words) -> IntArray:
    left, right = np.divmod(values.astype(np.uint64), np.uint64(base))
    for key in keys:
        left, right = right, (left + mixed(right ^ key) % np.uint64(base)) % np.uint64(base)
    return (left * np.uint64(base) + right).astype(np.int64)


def none(x: Tensor, keys: Words) -> Tensor:  # noqa: ARG001
    """Return images unchanged, as the paper does for Fashion-MNIST."""
    return x


def example_keys(seed: int, round: int, ids: IntArray, sizes: IntArray) -> Words:
    """Return a random key for each example of these devices in this round, device after device [sum of sizes]."""
    first = rng(seed, "augmentation", round).integers(2**64, size=1, dtype=np.uint64)
    devices = mixed(first + KEY_STEP * ids.astype(np.uint64))
    place = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)  # of an example within its device
    return mixed(np.repeat(devices, sizes) + KEY_STEP * place.astype(np.uint64))


@dataclass(frozen=True, eq=False)
class Federation:
    """The devices of a simulation, with their data, cohorts and attackers; built and checked by `federate`."""

    x: Tensor  # [N, ...], unconverted: uint8 images stay uint8
    y: Tensor  # int64 [N, ...], or float32 where numbers are predicted
    partition: Partition
    sample: Sampling
    n: int  # devices per round
    threat: ThreatModel
    malicious: IntArray  # sorted ids
    seed: int
    augment: Augmentation = none

    @property
    def device_count(self) -> int:
        return self.partition.devices

    def cohort(self, round: int) -> IntArray:
        """Return the ids of this round's devices; needs no earlier round."""
        if round < 1:
            raise ConfigError(f"rounds count from 1, but round {round} was requested")
        return self.sample(self.device_count, self.n, self.seed, round)

    def attackers(self, ids: IntArray, round: int) -> BoolArray:
        """Return a mask of the devices that misbehave in this round."""
        if self.threat.per_round is not None:
            return self._drawn(len(ids), round)
        return malicious_mask(ids, self.malicious if acts(self.threat, round) else self.malicious[:0])

    def _drawn(self, cohort: int, round: int) -> BoolArray:
        mask = np.zeros(cohort, bool)
        if acts(self.threat, round):
            draw = rng(self.seed, "attackers of a round", round)
            mask[draw.choice(cohort, min(cohort, self.threat.per_round or 0), replace=False)] = True
        return mask

    def sizes(self, ids: IntArray) -> IntArray:
        """Return the number of examples that each of these devices owns."""
        sizes: IntArray = self.partition.offsets[ids + 1] - self.partition.offsets[ids]
        return sizes

    def gather(self, ids: IntArray) -> Batch:
        """Return the examples of these devices, device after device, in the partition's order."""
        if len(ids) and (ids.min() < 0 or ids.max() >= self.device_count):
            raise IndexError(f"device ids run from 0 to {self.device_count - 1}; got {ids.min()} to {ids.max()}")
        starts, sizes = self.partition.offsets[ids], self.sizes(ids)
        shift = starts - (np.cumsum(sizes) - sizes)  # from a place in the batch to a place in the index
        rows = self.partition.examples[np.repeat(shift, sizes) + np.arange(sizes.sum())]
        chosen = torch.from_numpy(rows.astype(np.int64))
        return Batch(self.x.index_select(0, chosen), self.y.index_select(0, chosen), sizes)

    def training(self, ids: IntArray, round: int) -> Batch:
        """Return the examples these devices train on in this round: augmented, independently per device."""
        batch = self.gather(ids)
        if self.augment is none:
            return batch
        return batch._replace(x=self.augment(batch.x, example_keys(self.seed, round, ids, batch.sizes)))


def federate(
    x: Tensor,
    y: Tensor,
    partition: Partition,
    sample: Sampling,
    n: int,
    threat: ThreatModel,
    seed: int,
    augment: Augmentation = none,
) -> Federation:
    """Return a checked federation of these examples.

    Args:
        x: examples [N, ...].
        y: int64 labels [N, ...], or float32 values.
        partition: which device owns which examples.
        sample: draws the cohort of a round.
        n: devices per round.
        threat: which devices are compromised, and when they act.
        seed: source of every draw.
        augment: transforms the images of honest devices before they train on them.

    Raises:
        ConfigError: if the parts do not fit together.
    """
    if y.dtype not in (torch.int64, torch.float32) or x.shape[:1] != y.shape[:1]:
        raise ConfigError(
            f"a federation holds examples [N, ...] and int64 labels [N], but was given {list(x.shape)} and "
            f"{y.dtype} {list(y.shape)}"
        )
    if len(partition.examples) and partition.examples.max() >= len(y):
        raise ConfigError(f"the partition was made for more than these {len(y)} examples; make it from these labels")
    if not 1 <= n <= partition.devices:
        raise ConfigError(
            f"a cohort of {n} cannot be drawn from {partition.devices} devices; use 1 to {partition.devices} a round"
        )
    _check_augmentation(augment, x[:1])
    malicious = malicious_ids(threat, partition.devices, seed)
    return Federation(x, y, partition, sample, n, threat, malicious, seed, augment)


def _check_augmentation(augment: Augmentation, x: Tensor) -> None:
    """Try the augmentation on one example, so that it fails or compiles before the first round."""
    if augment is none:
        return
    found = augment(x, np.zeros(len(x), np.uint64))
    if not isinstance(found, Tensor) or found.shape != x.shape or found.dtype != x.dtype:
        given = f"{found.dtype} {list(found.shape)}" if isinstance(found, Tensor) else type(found).__name__
        raise ConfigError(
            f"an augmentation must return examples like those it is given, {x.dtype} {list(x.shape)}, but it returned "
            f"{given}"
        )
