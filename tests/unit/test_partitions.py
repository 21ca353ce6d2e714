"""Partitions that mix classes or differ in size, and users cut into devices: laws by hypothesis, distributions by
chi-square, closed forms, memory by tracemalloc."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from sparsefed.core.errors import ConfigError
from sparsefed.core.rng import rng
from sparsefed.core.types import IntArray
from sparsefed.data.partitions.cutting import Shards, apportion_at_most, deal_shards, group
from sparsefed.data.partitions.partition import PARTITIONS, Partition, by_user, iid, one_class
from sparsefed.data.partitions.skewed import c_class, dirichlet, power_law
from tests.support.partitions import labelled, owned, peak_bytes

MILLION = 1_000_000
seeds = st.integers(0, 2**32)
class_sizes = st.lists(st.integers(1, 30), min_size=1, max_size=8)
alphas = st.one_of(st.sampled_from([1e-308, 1e-5, 0.05, 1.0, 1e6]), st.floats(1e-300, 1e9))


def promises(partition: Partition, total: int, devices: int) -> list[list[int]]:
    """What every partition promises; the devices' examples."""
    parts = owned(partition)
    assert len(parts) == partition.devices == devices
    assert partition.offsets.dtype == np.int64 and partition.examples.dtype == np.int32
    assert all(parts), "no device is empty"
    assert all(len(part) == len(set(part)) for part in parts), "no device owns an example twice"
    assert all(0 <= example < total for part in parts for example in part)
    for array in (partition.offsets, partition.examples):
        assert not array.flags.writeable
    return parts


def dealt_once(parts: list[list[int]], total: int) -> bool:
    return sorted(example for part in parts for example in part) == list(range(total))


# --- c classes -------------------------------------------------------------------------------------------------------


@given(counts=class_sizes, data=st.data(), seed=seeds)
def test_c_class_deals_all_and_every_device_has_c_classes(counts: list[int], data: st.DataObject, seed: int) -> None:
    labels = labelled(counts)
    c = data.draw(st.integers(1, len(counts)))
    devices = data.draw(st.integers(-(-len(counts) // c), max(len(labels) // c, -(-len(counts) // c))))
    assume(sum(min(devices, count) for count in counts) >= devices * c and devices <= len(labels))
    parts = promises(c_class(labels, None, devices, None, seed, c), len(labels), devices)
    assert dealt_once(parts, len(labels))
    assert all(len(set(labels[part].tolist())) == c for part in parts)
    for label in set(labels.tolist()):
        shards = [Counter(labels[part].tolist())[label] for part in parts]
        shards = [size for size in shards if size]
        assert max(shards) - min(shards) <= 1


@pytest.mark.slow
@given(counts=class_sizes, data=st.data(), seed=seeds)
def test_c_class_with_a_size_keeps_it_and_shares_it_evenly(counts: list[int], data: st.DataObject, seed: int) -> None:
    labels = labelled(counts)
    c = data.draw(st.integers(1, len(counts)))
    per_device = data.draw(st.integers(c, c * min(counts)))
    devices = data.draw(st.integers(-(-len(counts) // c), 3 * len(labels)))
    partition = c_class(labels, None, devices, per_device, seed, c)
    for part in promises(partition, len(labels), devices):
        shares = Counter(labels[part].tolist()).values()
        assert len(part) == per_device and len(shares) == c and max(shares) - min(shares) <= 1
    largest = -(-per_device // c)
    if (
        devices * c <= sum(count // largest for count in counts)
        and max(count // largest for count in counts) <= devices
    ):
        assert len(set(partition.examples.tolist())) == devices * per_device, "one pass suffices"


def test_c_class_of_one_class_is_one_class() -> None:
    labels = labelled([12, 30, 7])
    ours, theirs = (
        sorted(Counter(labels[part].tolist()).most_common() for part in owned(partition))
        for partition in (c_class(labels, None, 11, None, 0, 1), one_class(labels, None, 11, None, 0))
    )
    assert ours == theirs


def test_any_two_classes_meet_equally_often() -> None:
    """20 000 devices of 2 of 6 equal classes, seed 0: chi-square of the 15 pairs, 14 degrees of freedom, 5 sigma.

    Each class is on exactly a third of the devices, so pairs vary less than in a multinomial: the bound is generous.
    Without the swaps there would be 3 pairs.
    """
    labels = np.arange(120_000) % 6
    partition = c_class(labels, None, 20_000, None, 0)
    found = Counter(tuple(sorted(set(labels[part].tolist()))) for part in owned(partition))
    assert len(found) == 15
    expected = 20_000 / 15
    assert sum((count - expected) ** 2 / expected for count in found.values()) < 14 + 5 * 28**0.5


@given(weights=st.lists(st.tuples(st.integers(1, 20), st.integers(1, 20)), min_size=1, max_size=6), data=st.data())
def test_a_full_group_passes_on_what_it_cannot_take(weights: list[tuple[int, int]], data: st.DataObject) -> None:
    """Naive twin: one to each, then each further one to the group that needs it most and has room."""
    most = [room for _, room in weights]
    devices = data.draw(st.integers(len(weights), max(len(weights), sum(most))))
    assume(devices <= sum(most))
    found = apportion_at_most(np.array([w for w, _ in weights]), devices, np.array(most)).tolist()
    naive = [1] * len(weights)
    for _ in range(devices - len(weights)):
        open_ = [i for i in range(len(weights)) if naive[i] < most[i]]
        naive[max(open_, key=lambda i: (weights[i][0] / naive[i], i))] += 1
    assert found == naive


# --- Dirichlet -------------------------------------------------------------------------------------------------------


@given(counts=class_sizes, data=st.data(), seed=seeds, alpha=alphas)
def test_dirichlet_deals_all_to_equal_devices(counts: list[int], data: st.DataObject, seed: int, alpha: float) -> None:
    labels = labelled(counts)
    devices = data.draw(st.integers(1, len(labels)))
    parts = promises(dirichlet(labels, None, devices, None, seed, alpha), len(labels), devices)
    assert dealt_once(parts, len(labels))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@given(counts=class_sizes, data=st.data(), seed=seeds, alpha=alphas)
def test_dirichlet_with_a_size_keeps_it(counts: list[int], data: st.DataObject, seed: int, alpha: float) -> None:
    labels = labelled(counts)
    per_device = data.draw(st.integers(1, len(labels)))
    devices = data.draw(st.integers(1, 40))
    partition = dirichlet(labels, None, devices, per_device, seed, alpha)
    assert {len(part) for part in promises(partition, len(labels), devices)} == {per_device}
    if devices * per_device <= len(labels):
        assert len(set(partition.examples.tolist())) == devices * per_device


@pytest.mark.parametrize("alpha", [0.1, 0.5, 3.0])
@pytest.mark.parametrize("counts", [(1000,) * 5, (400, 400, 1200, 2000, 1000)])
def test_class_shares_vary_as_a_dirichlet_distribution_says(alpha: float, counts: tuple[int, ...]) -> None:
    """Counts of a class on a device are Dirichlet-multinomial where nothing is used up (devices reuse examples).

    Mean m p and variance m p (1 - p) (m + A) / (1 + A), A = alpha K. 20 000 devices of m = 20, seed 0: the standard
    error of the variance is below 3 % of it (fourth moments of a share), so 12 % is four of them.
    """
    labels, m, devices = np.repeat(np.arange(5), counts), 20, 20_000
    partition = dirichlet(labels, None, devices, m, 0, alpha)
    drawn = np.stack([(labels[partition.examples] == k).reshape(devices, m).sum(1) for k in range(5)])
    p, total = np.array(counts) / sum(counts), 5 * alpha
    variance = m * p * (1 - p) * (m + total) / (1 + total)
    assert np.abs(drawn.mean(1) - m * p).max() < 5 * np.sqrt(variance / devices).max()
    assert np.abs(drawn.var(1) / variance - 1).max() < 0.12


def test_where_all_is_dealt_small_alpha_means_few_classes_and_large_alpha_all() -> None:
    labels = np.arange(6000) % 10
    few, usual, many = (
        np.mean([len(set(labels[part].tolist())) for part in owned(dirichlet(labels, None, 100, None, 0, alpha))])
        for alpha in (0.001, 0.5, 1000.0)
    )
    assert few < 3 < usual < 9.5 < many


def test_no_device_is_privileged_by_its_number() -> None:
    """Classes run out for the last who ask, and who is last is drawn: the first and the last half own alike many."""
    labels = np.arange(20_000) % 10
    classes = [len(set(labels[part].tolist())) for part in owned(dirichlet(labels, None, 2000, None, 0, 0.1))]
    first, last = np.mean(classes[:1000]), np.mean(classes[1000:])
    assert abs(first - last) < 5 * np.std(classes) * (2 / 1000) ** 0.5


# --- power law -------------------------------------------------------------------------------------------------------


@given(total=st.integers(1, 300), data=st.data(), seed=seeds, exponent=st.floats(0, 50))
def test_power_law_sizes_are_as_said(total: int, data: st.DataObject, seed: int, exponent: float) -> None:
    devices = data.draw(st.integers(1, total))
    parts = promises(power_law(np.zeros(total, np.int64), None, devices, None, seed, exponent), total, devices)
    assert dealt_once(parts, total)
    weights = [r**-exponent for r in range(1, devices + 1)]
    for r, size in enumerate(sorted(map(len, parts), reverse=True)):
        assert abs(size - 1 - (total - devices) * weights[r] / sum(weights)) < 1 + 1e-6


def test_zipfs_law_in_closed_form() -> None:
    """1000 devices share 1000 (1 + 1/2 + ... + 1/1000) examples beyond their first: the r-th largest gets 1000 / r."""
    harmonic = sum(1 / r for r in range(1, 1001))
    total = 1000 + round(1000 * harmonic)
    sizes = np.sort(np.diff(power_law(np.zeros(total, np.int64), None, 1000, None, 5, 1.0).offsets))[::-1]
    assert np.abs(sizes - 1 - 1000 / np.arange(1, 1001)).max() <= 1


def test_which_device_is_large_depends_on_the_seed_alone() -> None:
    labels = np.zeros(5000, np.int64)
    largest = [int(np.diff(power_law(labels, None, 500, None, seed).offsets).argmax()) for seed in range(40)]
    assert len(set(largest)) > 30 and max(largest) > 300 and min(largest) < 200


@given(total=st.integers(1, 60), devices=st.integers(1, 90), per_device=st.integers(1, 20), seed=seeds)
def test_power_law_with_a_mean_size_keeps_the_mean(total: int, devices: int, per_device: int, seed: int) -> None:
    try:
        partition = power_law(np.zeros(total, np.int64), None, devices, per_device, seed, 0.7)
    except ConfigError as error:
        assert f"but there are {total}" in str(error)
        return
    promises(partition, total, devices)
    assert len(partition.examples) == devices * per_device
    uses = np.bincount(partition.examples, minlength=total)
    assert uses.max() <= -(-devices * per_device // total), "examples are used equally often, but for one pass"


# --- users -----------------------------------------------------------------------------------------------------------


@given(counts=class_sizes, per_device=st.integers(1, 30), seed=seeds)
def test_users_are_cut_into_whole_devices(counts: list[int], per_device: int, seed: int) -> None:
    users = labelled(counts)
    assume(per_device <= max(counts))
    devices = sum(count // per_device for count in counts)
    parts = promises(by_user(users, users, None, per_device, seed), len(users), devices)
    assert {len(part) for part in parts} == {per_device}
    assert all(len(set(users[part].tolist())) == 1 for part in parts)
    assert len({example for part in parts for example in part}) == devices * per_device
    of_users = Counter(int(users[part[0]]) for part in parts)
    assert of_users == {3 * (i + 1): n // per_device for i, n in enumerate(counts) if n >= per_device}


def test_users_who_all_have_too_little_are_refused() -> None:
    users = labelled([5, 3, 4])
    with pytest.raises(ConfigError, match="no user has that many examples; use 1 to 5"):
        by_user(users, users, None, 6, 0)


# --- all of them -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@given(counts=class_sizes, data=st.data(), seed=seeds)
def test_shards_of_any_size_own_nothing_twice_and_use_examples_evenly(
    counts: list[int], data: st.DataObject, seed: int
) -> None:
    devices = data.draw(st.integers(1, 20))
    sizes = [[data.draw(st.integers(0, count)) for _ in range(devices)] for count in counts]
    triples = [(g, i, size) for g, row in enumerate(sizes) for i, size in enumerate(row) if size]
    assume({i for _, i, _ in triples} == set(range(devices)))
    labels = labelled(counts)
    groups = group("class", labels, rng(seed, "test"))
    shards = Shards(*(np.array(column, np.int64) for column in zip(*triples, strict=True)))
    partition = deal_shards(groups, shards, devices, rng(seed, "test deal"))
    for i, part in enumerate(promises(partition, len(labels), devices)):
        assert Counter(labels[part].tolist()) == {3 * (g + 1): row[i] for g, row in enumerate(sizes) if row[i]}
    for g, count in enumerate(counts):
        uses = np.bincount(partition.examples, minlength=len(labels))[labels == 3 * (g + 1)]
        assert uses.max() - uses.min() <= 1 and uses.sum() == sum(sizes[g]) and len(uses) == count


def skewed() -> dict[str, Callable[..., Partition]]:
    return {"c_class": c_class, "dirichlet": dirichlet, "power_law": power_law}


@pytest.mark.parametrize("name", skewed())
def test_the_same_seed_gives_the_same_partition(name: str) -> None:
    labels = np.arange(3000) % 7
    first, again, other = (owned(PARTITIONS[name](labels, None, 200, None, seed)) for seed in (1, 1, 2))
    assert first == again != other


@pytest.mark.parametrize("name", skewed())
@pytest.mark.slow
def test_a_million_devices_in_seconds_and_in_proportion_to_what_they_own(name: str) -> None:
    """Processor time, and 100 bytes for each of 1 000 000 devices x 3 examples."""
    labels = np.arange(60_000) % 10
    params = {"exponent": 0.5} if name == "power_law" else {}
    kept: list[Partition] = []
    began = time.process_time()
    peak = peak_bytes(lambda: kept.append(skewed()[name](labels, None, MILLION, 3, 0, **params)))
    assert time.process_time() - began < 30
    assert kept[0].devices == MILLION and len(kept[0].examples) == 3 * MILLION
    assert peak < 300 * MILLION


REFUSED: list[tuple[Callable[[IntArray], object], str]] = [
    (lambda y: c_class(y, None, 6, None, 0, 4), r"classes_per_device is 4, .* 3 classes; use 1 to 3"),
    (lambda y: c_class(y, None, 6, None, 0, 0), "use 1 to 3"),
    (lambda y: c_class(y, None, 1, None, 0, 2), "3 classes to 1 devices of 2 each; use at least 2 devices"),
    (lambda y: c_class(y, None, 5, None, 0, 3), "too few examples; use fewer devices, or set per_device"),
    (lambda y: c_class(y, None, 6, 1, 0, 2), "per_device = 1 is impossible.*use 2 to 6"),
    (lambda y: c_class(y, None, 6, 7, 0, 2), "the smallest class has 3; use 2 to 6"),
    (lambda y: c_class(y, None, None, 7, 0, 2), "c_class needs the number of devices"),
    (lambda y: dirichlet(y, None, 3, None, 0, 0.0), "alpha is 0.0, .*above 0"),
    (lambda y: dirichlet(y, None, 3, None, 0, float("nan")), "alpha is nan"),
    (lambda y: dirichlet(y, None, 3, None, 0, float("inf")), "alpha is inf"),
    (lambda y: dirichlet(y, None, 3, 13, 0), "the data set has 12 examples.*use 1 to 12"),
    (lambda y: dirichlet(y, None, 13, None, 0), "12 examples cannot be dealt once each to 13 devices"),
    (lambda y: power_law(y, None, 3, None, 0, -1.0), "exponent is -1.0"),
    (lambda y: power_law(y, None, 3, 0, 0), "use at least 1"),
    (lambda y: power_law(y, None, 3, 12, 0, 1.0), r"would own \d+ different examples, but there are 12; use a smaller"),
    (lambda y: power_law(y, None, 13, None, 0), "use at most 12 devices"),
    *(
        (lambda y, rule=rule: rule(y.reshape(6, 2), None, 3, None, 0), r"labels \[2\]; use iid, by_user or power_law")
        for rule in (one_class, c_class, dirichlet)
    ),
]


@pytest.mark.parametrize(("make", "sentence"), REFUSED)
def test_impossible_partitions_are_refused(make: Callable[[IntArray], object], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence) as caught:
        make(labelled([5, 3, 4]))
    assert "\n" not in str(caught.value)


def test_examples_with_many_labels_can_be_dealt_without_looking_at_them() -> None:
    tokens, users = np.zeros((60, 9), np.int64), np.arange(60) // 20
    for rule in (iid, power_law, by_user):
        assert dealt_once(owned(rule(tokens, users, 6, None, 0)), 60)
    assert [b - a for a, b in pairwise(by_user(tokens, users, None, 7, 0).offsets.tolist())] == [7] * 6
