"""Partitions, cohorts and threat models: laws by hypothesis, loops as the slow truth, memory by tracemalloc."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sparsefed.core.errors import ConfigError
from sparsefed.core.federation import (
    SAMPLING,
    Federation,
    Sampling,
    epoch,
    federate,
    permuted,
    rounds_per_epoch,
    uniform,
)
from sparsefed.core.rng import rng
from sparsefed.core.threat import ThreatModel, acts, malicious_ids, malicious_mask
from sparsefed.data.partitions.partition import PARTITIONS, Partition, apportion, by_user, iid, one_class
from tests.support.partitions import labelled, owned, peak_bytes

MILLION = 1_000_000
GROUPED = ("iid", "one_class", "by_user")  # the others: test_partitions.py

seeds = st.integers(0, 2**32)
group_sizes = st.lists(st.integers(1, 30), min_size=1, max_size=8)


def federation(
    partition: Partition,
    examples: int,
    sample: Sampling = uniform,
    n: int = 1,
    threat: ThreatModel | None = None,
    seed: int = 0,
) -> Federation:
    """A federation whose image i is 2 x 3 x 1 and tells i, and whose label i is 7 i."""
    x = torch.arange(examples * 6).remainder(251).to(torch.uint8).reshape(examples, 2, 3, 1)
    return federate(x, 7 * torch.arange(examples), partition, sample, n, threat or ThreatModel(), seed)


# --- partitions ---


@pytest.mark.parametrize("name", GROUPED)
@given(data=st.data(), counts=group_sizes, seed=seeds)
def test_every_example_is_dealt_exactly_once(name: str, data: st.DataObject, counts: list[int], seed: int) -> None:
    labels = labelled(counts)
    devices = data.draw(st.integers(len(counts), len(labels)))
    partition = PARTITIONS[name](labels, labels, devices, None, seed)
    assert partition.devices == devices
    assert partition.offsets.dtype == np.int64
    assert partition.examples.dtype == np.int32
    assert sorted(partition.examples.tolist()) == list(range(len(labels)))
    assert all(owned(partition))  # no device without examples


@given(total=st.integers(1, 200), data=st.data(), seed=seeds)
def test_iid_sizes_differ_by_at_most_one(total: int, data: st.DataObject, seed: int) -> None:
    devices = data.draw(st.integers(1, total))
    sizes = np.diff(iid(np.zeros(total, np.int64), None, devices, None, seed).offsets)
    assert sizes.max() - sizes.min() <= 1


@pytest.mark.parametrize("name", ["one_class", "by_user"])
@given(data=st.data(), counts=group_sizes, seed=seeds)
def test_a_device_owns_one_group_and_groups_are_cut_evenly(
    name: str, data: st.DataObject, counts: list[int], seed: int
) -> None:
    labels = labelled(counts)
    devices = data.draw(st.integers(len(counts), len(labels)))
    sizes: dict[int, list[int]] = {}
    for part in owned(PARTITIONS[name](labels, labels, devices, None, seed)):
        (label,) = set(labels[part].tolist())
        sizes.setdefault(label, []).append(len(part))
    assert all(max(of_one) - min(of_one) <= 1 for of_one in sizes.values())


@pytest.mark.parametrize("name", GROUPED)
@given(data=st.data(), counts=group_sizes, seed=seeds)
def test_per_device_is_kept_and_examples_are_reused_only_where_needed(
    name: str, data: st.DataObject, counts: list[int], seed: int
) -> None:
    labels = labelled(counts)
    per_device = data.draw(st.integers(1, min(counts)))
    devices = data.draw(st.integers(len(counts), 3 * len(labels)))
    partition = PARTITIONS[name](labels, labels, devices, per_device, seed)
    parts = owned(partition)
    assert len(parts) == devices
    assert all(len(part) == len(set(part)) == per_device for part in parts)
    if name != "iid":
        assert all(len(set(labels[part].tolist())) == 1 for part in parts)
    one_pass = len(labels) // per_device if name == "iid" else sum(count // per_device for count in counts)
    if devices <= one_pass:
        assert len(set(partition.examples.tolist())) == devices * per_device


def test_leftovers_of_a_pass_do_not_cost_a_class_its_images() -> None:
    """Classes of 5, 30, 30 hold 1 + 10 + 10 devices of 3; shared out by images, the first would get 2 and reuse one."""
    partition = one_class(labelled([5, 30, 30]), None, 21, 3, seed=0)
    assert len(set(partition.examples.tolist())) == 63


def test_the_recipe_is_a_partition_of_all_images() -> None:
    """10 000 devices x 6 images of one class for FMNIST, x 5 for CIFAR; with and without naming the 6."""
    for images, per_device in ((60_000, 6), (50_000, 5)):
        labels = rng(0, "test labels").permutation(np.arange(images) % 10)
        for given_size in (per_device, None):
            partition = one_class(labels, None, 10_000, given_size, seed=0)
            assert (np.diff(partition.offsets) == per_device).all()
            assert (np.sort(partition.examples) == np.arange(images)).all()
            of_devices = labels[partition.examples].reshape(10_000, per_device)
            assert (of_devices == of_devices[:, :1]).all()
            assert (np.bincount(of_devices[:, 0]) == 1000).all()


def test_passes_are_fresh_shuffles_and_use_examples_equally() -> None:
    labels = np.repeat(np.arange(10), 60)
    partition = one_class(labels, None, 1000, 6, seed=3)  # 10 passes over each class
    assert (np.bincount(partition.examples) == 10).all()
    passes = partition.examples.reshape(10, 10, 60)
    assert len(np.unique(passes.reshape(100, 60), axis=0)) == 100
    assert (np.sort(passes, axis=2) == np.arange(600).reshape(10, 1, 60)).all()


def test_a_million_devices_are_lean() -> None:
    labels = np.arange(60_000) % 10
    kept: list[Partition] = []
    for rule in (one_class, iid):
        kept.clear()
        assert peak_bytes(lambda rule=rule: kept.append(rule(labels, None, MILLION, 6, 0))) < 40e6  # type: ignore[misc]
        (partition,) = kept
        assert partition.devices == MILLION
        assert partition.offsets.nbytes + partition.examples.nbytes == 8 * (MILLION + 1) + 24 * MILLION
        assert (np.bincount(partition.examples, minlength=60_000) > 0).all()


@given(weights=st.lists(st.integers(1, 12), min_size=1, max_size=4), extra=st.integers(0, 12))
def test_apportion_makes_the_largest_device_as_small_as_can_be(weights: list[int], extra: int) -> None:
    """Naive twin: give everyone one device, then each further one to the group that needs it most."""
    naive = [1] * len(weights)
    for _ in range(extra):
        burden = [w / g for w, g in zip(weights, naive, strict=True)]
        naive[max(range(len(weights)), key=lambda i: (burden[i], i))] += 1
    shares = apportion(np.array(weights), len(weights) + extra)
    assert shares.tolist() == naive


@given(counts=group_sizes, data=st.data(), seed=seeds)
def test_fewer_devices_than_users_keep_whole_users(counts: list[int], data: st.DataObject, seed: int) -> None:
    users = labelled(counts)
    devices = data.draw(st.integers(1, len(counts)))
    parts = owned(by_user(np.zeros_like(users), users, devices, None, seed))
    kept = [users[part[0]] for part in parts]
    assert len(set(kept)) == devices
    for user, part in zip(kept, parts, strict=True):
        assert sorted(part) == np.flatnonzero(users == user).tolist()


def test_which_users_are_kept_and_who_owns_what_depends_on_the_seed() -> None:
    users = np.arange(400) // 4
    first, again, other = (by_user(users, users, 10, None, seed) for seed in (1, 1, 2))
    assert owned(first) == owned(again)
    assert owned(first) != owned(other)
    for rule in (iid, one_class):
        assert owned(rule(users, None, 100, None, 1)) == owned(rule(users, None, 100, None, 1))
        assert owned(rule(users, None, 100, None, 1)) != owned(rule(users, None, 100, None, 2))


def test_by_user_without_a_number_is_one_device_a_user() -> None:
    users = np.array([8, 1, 8, 5, 8, 1])
    parts = owned(by_user(np.zeros(6, np.int64), users, None, None, 0))
    assert [sorted(part) for part in parts] == [[1, 5], [3], [0, 2, 4]]


def test_a_partition_cannot_be_written_to() -> None:
    partition = iid(np.zeros(4, np.int64), None, 2, None, 0)
    for array in (partition.offsets, partition.examples):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1


@pytest.mark.parametrize(
    ("name", "devices", "per_device", "sentence"),
    [
        ("iid", None, None, "needs the number of devices"),
        ("one_class", None, None, "needs the number of devices"),
        ("iid", 0, None, "at least 1 device, but was given 0"),
        ("by_user", -1, None, "at least 1 device, but was given -1"),
        ("iid", 13, None, "at most 12 devices, or set per_device"),
        ("one_class", 13, None, "at most 12 devices, or set per_device"),
        ("by_user", 13, None, "at most 12 devices, or set per_device"),
        ("one_class", 2, None, "use at least 3 devices, or the partition iid"),
        ("iid", 2, 13, "the data set has 12 examples.* use 1 to 12"),
        ("one_class", 5, 4, "the class 6 has 3 examples.* use 1 to 3"),
        ("by_user", 5, 4, "the user 6 has 3 examples.* use 1 to 3"),
        ("one_class", 5, 0, "per_device = 0 is impossible"),
    ],
)
def test_impossible_partitions_are_refused(
    name: str, devices: int | None, per_device: int | None, sentence: str
) -> None:
    labels = labelled([5, 3, 4])
    with pytest.raises(ConfigError, match=sentence):
        PARTITIONS[name](labels, labels, devices, per_device, 0)


def test_by_user_needs_users_and_every_partition_needs_examples() -> None:
    labels = labelled([5, 3, 4])
    with pytest.raises(ConfigError, match="use iid or one_class here"):
        by_user(labels, None, 3, None, 0)
    with pytest.raises(ConfigError, match="was given 5 for 12"):
        by_user(labels, labels[:5], 3, None, 0)
    for rule in PARTITIONS.values():
        with pytest.raises(ConfigError, match="no examples"):
            rule(labels[:0], labels[:0], 1, None, 0)


# --- cohorts ---


@given(size=st.integers(1, 700), key=seeds)
def test_the_keyed_permutation_is_a_bijection(size: int, key: int) -> None:
    keys = rng(key, "test keys").integers(2**64, size=12, dtype=np.uint64)
    assert sorted(permuted(np.arange(size), size, keys).tolist()) == list(range(size))


@given(size=st.integers(1, 2**40), key=seeds, data=st.data())
def test_the_keyed_permutation_is_pointwise_and_stays_inside(size: int, key: int, data: st.DataObject) -> None:
    keys = rng(key, "test keys").integers(2**64, size=12, dtype=np.uint64)
    places = data.draw(st.lists(st.integers(0, size - 1), max_size=20, unique=True))
    together = permuted(np.array(places, np.int64), size, keys)
    assert together.tolist() == [int(permuted(np.array([place]), size, keys)[0]) for place in places]
    assert len(set(together.tolist())) == len(places)
    assert ((together >= 0) & (together < size)).all()


@pytest.mark.slow
@pytest.mark.parametrize("size", [6, 9])
def test_the_keyed_permutation_sends_two_neighbours_anywhere(size: int) -> None:
    """Where 0 and 1 land under 5000 keys, seed 6: chi-square over the size (size - 1) pairs within 5 sigma."""
    keys = rng(6, "test keys").integers(2**64, size=(5000, 12), dtype=np.uint64)
    landed = np.stack([permuted(np.arange(2), size, key) for key in keys])
    cells = np.bincount(landed[:, 0] * size + landed[:, 1], minlength=size**2)
    expected, freedom = len(keys) / (size * (size - 1)), size * (size - 1) - 1
    pairs = np.delete(cells, np.arange(size) * (size + 1))  # 0 and 1 never land on one place
    assert pairs.sum() == len(keys)
    assert ((pairs - expected) ** 2 / expected).sum() < freedom + 5 * (2 * freedom) ** 0.5


@given(devices=st.integers(1, 300), data=st.data(), seed=seeds, number=st.integers(0, 1000))
def test_an_epoch_visits_every_device_once(devices: int, data: st.DataObject, seed: int, number: int) -> None:
    n = data.draw(st.one_of(st.just(devices), st.integers(1, devices)))
    rounds = rounds_per_epoch(devices, n)
    cohorts = [epoch(devices, n, seed, number * rounds + turn) for turn in range(1, rounds + 1)]
    assert sorted(np.concatenate(cohorts).tolist()) == list(range(devices))
    assert [len(cohort) for cohort in cohorts[:-1]] == [n] * (rounds - 1)


def test_epochs_come_in_different_orders() -> None:
    cohorts = [tuple(epoch(50, 50, 0, number)) for number in range(1, 21)]
    assert len(set(cohorts)) == 20
    assert tuple(range(50)) not in cohorts


@given(devices=st.integers(1, 300), data=st.data(), seed=seeds, round=st.integers(1, 5000))
def test_uniform_draws_n_different_devices(devices: int, data: st.DataObject, seed: int, round: int) -> None:
    n = data.draw(st.one_of(st.just(devices), st.integers(1, devices)))
    cohort = uniform(devices, n, seed, round)
    assert len(set(cohort.tolist())) == len(cohort) == n
    assert cohort.dtype == np.int64
    assert ((cohort >= 0) & (cohort < devices)).all()


@pytest.mark.slow
@pytest.mark.parametrize("name", SAMPLING)
def test_devices_and_pairs_of_devices_meet_equally_often(name: str) -> None:
    """4000 cohorts of 3 of 9, seed 5: chi-square of singles (epoch: of first cohorts only) and of pairs.

    Without replacement the statistic of singles has mean (1 - 3/9) 9 = 6, that of the 36 pairs less than 36; a bound
    of 30 and 80 is far in the tail of both, and a device asked a fifth too often breaks it.
    """
    step = 3 if name == "epoch" else 1
    cohorts = np.stack([SAMPLING[name](9, 3, 5, 1 + step * t) for t in range(4000)])
    singles = np.bincount(cohorts.ravel(), minlength=9)
    met = np.zeros((9, 9))
    for i, j in ((0, 1), (0, 2), (1, 2)):
        np.add.at(met, (cohorts[:, [i, j]].min(1), cohorts[:, [i, j]].max(1)), 1)
    pairs = met[np.triu_indices(9, 1)]
    assert singles.sum() == pairs.sum() == 12_000
    assert ((singles - 12_000 / 9) ** 2 / (12_000 / 9)).sum() < 30
    assert ((pairs - 12_000 / 36) ** 2 / (12_000 / 36)).sum() < 80


@pytest.mark.parametrize("name", SAMPLING)
def test_cohorts_are_seekable(name: str) -> None:
    partition = iid(np.zeros(1000, np.int64), None, 1000, None, 0)
    played = federation(partition, 1000, SAMPLING[name], n=30)
    history = [played.cohort(round) for round in range(1, 81)]
    fresh = federation(partition, 1000, SAMPLING[name], n=30)
    for round in (7, 80, 34, 35, 1):
        assert fresh.cohort(round).tolist() == history[round - 1].tolist()
    assert len({tuple(cohort) for cohort in history}) == 80
    assert federation(partition, 1000, SAMPLING[name], n=30, seed=1).cohort(7).tolist() != history[6].tolist()
    with pytest.raises(ConfigError, match="rounds count from 1"):
        played.cohort(0)


@pytest.mark.parametrize("name", SAMPLING)
def test_a_cohort_costs_the_same_in_any_population(name: str) -> None:
    def draw(devices: int) -> int:
        return peak_bytes(lambda: [SAMPLING[name](devices, 100, 0, round) for round in (1, 2, 50)])

    draw(10_000)  # whatever is made once is made here
    assert draw(10 * MILLION) < draw(10_000) + 2000


@pytest.mark.parametrize("n", [100, 1000, 20_000, 100_000, 500_000])
def test_uniform_needs_memory_in_proportion_to_the_cohort(n: int) -> None:
    assert peak_bytes(lambda: uniform(MILLION, n, 0, 1)) < 60 * 8 * n


# --- examples ---


@given(counts=group_sizes, data=st.data(), seed=seeds)
def test_gather_equals_the_loop(counts: list[int], data: st.DataObject, seed: int) -> None:
    labels = labelled(counts)
    devices = data.draw(st.integers(len(counts), len(labels)))
    partition = one_class(labels, None, devices, None, seed)
    these = federation(partition, len(labels))
    ids = data.draw(st.lists(st.integers(0, devices - 1), max_size=12))
    batch = these.gather(np.array(ids, np.int64))
    expected = [example for device in ids for example in owned(partition)[device]]
    assert batch.sizes.tolist() == [len(owned(partition)[device]) for device in ids]
    assert batch.y.tolist() == [7 * example for example in expected]
    assert batch.x.shape == (len(expected), 2, 3, 1)
    assert batch.x.dtype == torch.uint8
    for image, example in zip(batch.x, expected, strict=True):
        assert torch.equal(image, these.x[example])


def test_gather_costs_the_cohort_alone_and_refuses_strangers() -> None:
    few, many = (
        federation(iid(np.zeros(600, np.int64), None, devices, 6, 0), 600, n=100) for devices in (10_000, MILLION)
    )
    ids = np.arange(100, 200)
    few.gather(ids)
    assert peak_bytes(lambda: many.gather(ids)) <= peak_bytes(lambda: few.gather(ids)) + 2000
    for stranger in (-1, 10_000):
        with pytest.raises(IndexError, match="from 0 to 9999"):
            few.gather(np.array([3, stranger]))


def test_federations_that_cannot_be_are_refused() -> None:
    partition = iid(np.zeros(10, np.int64), None, 5, None, 0)
    for n in (0, 6):
        with pytest.raises(ConfigError, match="use 1 to 5 a round"):
            federation(partition, 10, n=n)
    with pytest.raises(ConfigError, match="made for more than these 9"):
        federation(partition, 9)
    with pytest.raises(ConfigError, match=r"torch\.float64"):
        federate(torch.zeros(10, 2), torch.zeros(10, dtype=torch.float64), partition, uniform, 1, ThreatModel(), 0)


# --- who is malicious ---


@given(devices=st.integers(1, 500), data=st.data(), seed=seeds)
def test_a_count_draws_that_many_sorted_devices(devices: int, data: st.DataObject, seed: int) -> None:
    count = data.draw(st.integers(0, devices))
    ids = malicious_ids(ThreatModel(count=count), devices, seed)
    assert ids.dtype == np.int64
    assert ids.tolist() == sorted(set(ids.tolist()))
    assert len(ids) == count
    assert all(0 <= i < devices for i in ids)


def test_shares_counts_and_ids_say_who() -> None:
    assert len(malicious_ids(ThreatModel(share=0.02), 10_000, 0)) == 200
    assert len(malicious_ids(ThreatModel(share=0.0), 10_000, 0)) == 0
    assert len(malicious_ids(ThreatModel(), 10_000, 0)) == 0
    assert malicious_ids(ThreatModel(ids=(9, 0, 4)), 10, 0).tolist() == [0, 4, 9]
    first, again, other = (malicious_ids(ThreatModel(count=50), MILLION, seed).tolist() for seed in (1, 1, 2))
    assert first == again != other


def test_malicious_devices_are_drawn_evenly() -> None:
    """2000 seeds, 2 of 10 devices each: chi-square of a device's count has mean 8; 35 is far in the tail."""
    drawn = np.concatenate([malicious_ids(ThreatModel(share=0.2), 10, seed) for seed in range(2000)])
    counts = np.bincount(drawn, minlength=10)
    assert counts.sum() == 4000
    assert ((counts - 400) ** 2 / 400).sum() < 35


@given(start=st.integers(1, 20), length=st.one_of(st.none(), st.integers(0, 30)), every=st.integers(1, 7))
def test_attackers_act_in_the_rounds_they_should(start: int, length: int | None, every: int) -> None:
    stop = None if length is None else start + length
    threat = ThreatModel(count=1, start=start, stop=stop, every=every)
    listed = set(range(start, 61 if stop is None else stop + 1, every))
    assert {round for round in range(1, 61) if acts(threat, round)} == {round for round in listed if round <= 60}


@given(cohort=st.lists(st.integers(0, 40), max_size=20), bad=st.sets(st.integers(0, 40), max_size=10))
def test_the_mask_equals_the_loop(cohort: list[int], bad: set[int]) -> None:
    mask = malicious_mask(np.array(cohort, np.int64), np.array(sorted(bad), np.int64))
    assert mask.tolist() == [device in bad for device in cohort]


def test_a_federation_knows_who_attacks_and_when() -> None:
    partition = iid(np.zeros(10, np.int64), None, 10, None, 0)
    these = federation(partition, 10, n=10, threat=ThreatModel(ids=(7, 2), start=2, every=2))
    ids = np.array([2, 3, 7])
    assert these.attackers(ids, 1).tolist() == [False] * 3
    assert these.attackers(ids, 2).tolist() == [True, False, True]
    assert these.attackers(ids, 3).tolist() == [False] * 3


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: ThreatModel(share=1.0), "use 0 to below 1"),
        (lambda: ThreatModel(share=-0.1), "use 0 to below 1"),
        (lambda: ThreatModel(share=float("nan")), "use 0 to below 1"),
        (lambda: ThreatModel(count=-1), "use 0 or more"),
        (lambda: ThreatModel(share=0.1, count=3), "given share and count"),
        (lambda: ThreatModel(count=0, ids=()), "given count and ids"),
        (lambda: ThreatModel(ids=(3, 3)), "given twice"),
        (lambda: ThreatModel(ids=(-3,)), "negative"),
        (lambda: ThreatModel(count=1, start=0), "at least 1"),
        (lambda: ThreatModel(count=1, every=0), "at least 1"),
        (lambda: ThreatModel(count=1, start=5, stop=4), "use stop >= start"),
        (lambda: malicious_ids(ThreatModel(count=11), 10, 0), "11 attackers are more than the 10 devices"),
        (lambda: malicious_ids(ThreatModel(ids=(10,)), 10, 0), "use ids from 0 to 9"),
        (lambda: malicious_ids(ThreatModel(share=0.02), 10, 0), "less than half a device"),
    ],
)
def test_impossible_threats_are_refused(make: Callable[[], object], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        make()
