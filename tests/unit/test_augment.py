"""Augmentation: the naive twin, the distributions, and that a device's images depend on nothing but its own key."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sparsefed import config as configs
from sparsefed.attacks import Attack, Knowledge
from sparsefed.config import BuiltSimulation
from sparsefed.core.engine import Cohort, Engine, LocalStep
from sparsefed.core.errors import ConfigError
from sparsefed.core.federation import Federation, federate, uniform
from sparsefed.core.rng import Words, rng
from sparsefed.core.round import run_round, simulate
from sparsefed.core.threat import ThreatModel
from sparsefed.core.types import Block
from sparsefed.data.augment import AUGMENTATIONS, cifar, example_keys, femnist, moved, none, reflected
from sparsefed.data.partitions.partition import iid
from tests.support import reference
from tests.support.configs import refusal

seeds = st.integers(0, 2**32)
HALF = 0.5 + 255 * 2 / 512 + 0.1  # rounding to a grey level, and of each coordinate to 1/256 of a pixel


def images(count: int, height: int, width: int, channels: int, seed: int = 0) -> Tensor:
    return torch.from_numpy(
        rng(seed, "test images").integers(256, size=(count, height, width, channels), dtype=np.uint8)
    )


def some_keys(count: int, seed: int = 0) -> Words:
    return rng(seed, "test keys").integers(2**64, size=count, dtype=np.uint64)


# --- the twin --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@given(
    sides=st.tuples(st.integers(1, 9), st.integers(1, 9), st.integers(1, 3)),
    crop=st.integers(0, 12),
    mirror=st.booleans(),
    seed=seeds,
)
def test_without_a_turn_every_byte_is_the_twins(
    sides: tuple[int, int, int], crop: int, mirror: bool, seed: int
) -> None:
    x, keys = images(3, *sides, seed=seed), some_keys(3, seed)
    found = moved(x, keys, crop=crop, mirror=mirror)
    for image, key, ours in zip(x.tolist(), keys.tolist(), found.tolist(), strict=True):
        assert ours == reference.moved_by_key(image, key, crop, 0.0, mirror)


@settings(max_examples=60)
@given(
    sides=st.tuples(st.integers(1, 9), st.integers(1, 9), st.integers(1, 3)),
    crop=st.integers(0, 5),
    degrees=st.one_of(st.sampled_from([1e-9, 5.0, 90.0, 180.0, 720.0]), st.floats(0.01, 360)),
    mirror=st.booleans(),
    seed=seeds,
)
def test_with_a_turn_a_pixel_is_the_twins_up_to_rounding(
    sides: tuple[int, int, int], crop: int, degrees: float, mirror: bool, seed: int
) -> None:
    x, keys = images(2, *sides, seed=seed), some_keys(2, seed)
    found = moved(x, keys, crop=crop, degrees=degrees, mirror=mirror).double()
    twins = [
        reference.moved_by_key(i, k, crop, degrees, mirror) for i, k in zip(x.tolist(), keys.tolist(), strict=True)
    ]
    assert (found - torch.tensor(twins, dtype=torch.float64)).abs().max() <= HALF


@given(place=st.integers(-60, 60), side=st.integers(1, 9))
def test_reflections_are_those_of_the_twin(place: int, side: int) -> None:
    assert reflected(np.array([place]), side).tolist() == [reference.reflected_pixel(place, side)]


def test_a_crop_is_a_crop_of_the_padded_image() -> None:
    """NumPy's own reflection says which of the 81 crops, plain or mirrored, an image can become: it is one of them."""
    x = images(40, 8, 7, 3)
    for image, found in zip(x.numpy(), cifar(x, some_keys(40)).numpy(), strict=True):
        padded = np.pad(image, ((4, 4), (4, 4), (0, 0)), mode="reflect")
        crops = [padded[i : i + 8, j : j + 7] for i in range(9) for j in range(9)]
        assert any((found == crop).all() or (found == crop[:, ::-1]).all() for crop in crops)


def test_the_named_ones_are_what_they_say() -> None:
    x, keys = images(30, 28, 28, 1), some_keys(30)
    assert none(x, keys) is x
    assert torch.equal(cifar(x, keys), moved(x, keys, crop=4, mirror=True))
    assert torch.equal(femnist(x, keys), moved(x, keys, crop=2, degrees=5.0))
    assert torch.equal(moved(x, keys), x)


@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_an_image_depends_on_its_key_alone_and_nothing_is_written_to(name: str) -> None:
    x, keys = images(20, 9, 8, 3), some_keys(20)
    before, found = x.clone(), AUGMENTATIONS[name](x, keys)
    assert torch.equal(x, before) and found.dtype == torch.uint8 and found.shape == x.shape
    for i in range(20):
        assert torch.equal(AUGMENTATIONS[name](x[i : i + 1], keys[i : i + 1])[0], found[i])
    order = np.random.Generator(np.random.Philox(1)).permutation(20)
    assert torch.equal(AUGMENTATIONS[name](x[torch.from_numpy(order)], keys[order]), found[torch.from_numpy(order)])


# --- the distributions -----------------------------------------------------------------------------------------------


def chi_square(cells: np.ndarray[Any, Any]) -> float:
    """How many standard deviations the chi-square of these equally likely cells is above its mean."""
    expected, freedom = cells.mean(), cells.size - 1
    return float((((cells - expected) ** 2 / expected).sum() - freedom) / (2 * freedom) ** 0.5)


def shifts(keys: Words) -> tuple[np.ndarray[Any, Any], ...]:
    """(down, right, mirrored) of `cifar`, read off images whose pixels tell where they are."""
    side = 17
    image = np.stack(np.meshgrid(np.arange(side), np.arange(side), indexing="ij"), axis=-1).astype(np.uint8)
    found = cifar(torch.from_numpy(np.tile(image, (len(keys), 1, 1, 1))), keys).numpy().astype(int)
    middle = side // 2  # a mirrored window has the same column there
    mirrored = found[:, middle, middle + 1, 1] < found[:, middle, middle, 1]
    return found[:, middle, middle, 0] - middle + 4, found[:, middle, middle, 1] - middle + 4, mirrored.astype(int)


def test_shifts_and_mirrorings_are_uniform_and_independent() -> None:
    """All 9 x 9 x 2 outcomes are equally likely: 32 400 examples of 5400 devices, seed 0."""
    down, right, mirrored = shifts(example_keys(0, 1, np.arange(5400), np.full(5400, 6)))
    assert set(down) == set(right) == set(range(9))
    assert abs(chi_square(np.bincount((down * 9 + right) * 2 + mirrored, minlength=162))) < 5


@pytest.mark.parametrize("along", ["round", "device", "place", "seed"])
def test_neighbours_move_independently(along: str) -> None:
    """The shifts of an example and of its neighbour in the next round, device, place or seed: all 81 pairs alike."""
    ids, sizes = np.arange(4000), np.full(4000, 2)
    one, other = example_keys(0, 1, ids, sizes), example_keys(0, 1, ids, sizes)
    if along == "place":
        one, other = one[0::2], other[1::2]
    else:
        other = {
            "round": example_keys(0, 2, ids, sizes),
            "device": example_keys(0, 1, ids + 1, sizes),
            "seed": example_keys(1, 1, ids, sizes),
        }[along]
    assert len(set(one.tolist()) | set(other.tolist())) >= len(one) + (2 if along == "device" else len(other))
    assert abs(chi_square(np.bincount(shifts(one)[0] * 9 + shifts(other)[0], minlength=81))) < 5


def test_angles_are_uniform_up_to_the_limit() -> None:
    """A slope from left to right, turned by t, rises by sin(t) from top to bottom: Kolmogorov-Smirnov against uniform.

    The slope is read off grey levels 20 rows apart, to 1 in 160; 10 degrees are 28 of these steps.
    """
    ramp = torch.from_numpy(np.tile((8 * np.arange(31)).astype(np.uint8)[None, :, None], (3000, 31, 1, 1)))
    found = moved(ramp, some_keys(3000), degrees=10.0).double()[..., 0]
    sines = (found[:, 25, 12:19] - found[:, 5, 12:19]).mean(1) / (20 * 8)
    angles = torch.rad2deg(torch.asin(sines)).sort().values
    assert 9.5 < angles.max() <= 10.5 and -10.5 <= angles.min() < -9.5
    uniform_share = (angles + 10).clamp(0, 20) / 20
    assert (uniform_share - torch.arange(3000) / 3000).abs().max() < 1.95 / 3000**0.5 + 0.02


# --- in a federation -------------------------------------------------------------------------------------------------


def federation(seed: int = 0, name: str = "cifar") -> Federation:
    x, y = images(60, 6, 5, 1), torch.arange(60)
    partition = iid(y.numpy(), None, 17, None, 0)
    return federate(x, y, partition, uniform, 5, ThreatModel(), seed, AUGMENTATIONS[name])


@given(ids=st.lists(st.integers(0, 16), min_size=1, max_size=8, unique=True), round=st.integers(1, 10**6), seed=seeds)
def test_a_device_trains_on_the_same_whoever_else_is_there(ids: list[int], round: int, seed: int) -> None:
    these = federation(seed)
    together = these.training(np.array(ids), round)
    alone = [these.training(np.array([i]), round) for i in ids]
    assert torch.equal(together.x, torch.cat([batch.x for batch in alone]))
    assert torch.equal(together.y, these.gather(np.array(ids)).y)
    assert together.sizes.tolist() == these.gather(np.array(ids)).sizes.tolist()


def test_rounds_seeds_and_devices_differ_and_gathering_does_not_augment() -> None:
    these, ids = federation(), np.arange(17)
    raw = these.gather(ids).x
    assert torch.equal(raw, these.x[torch.from_numpy(these.partition.examples.astype(np.int64))])
    seen = [these.training(ids, 1).x, these.training(ids, 2).x, federation(seed=1).training(ids, 1).x, raw]
    assert all(not torch.equal(a, b) for i, a in enumerate(seen) for b in seen[:i])
    assert torch.equal(these.training(ids, 1).x, seen[0])
    assert torch.equal(federation(name="none").training(ids, 1).x, raw)


BASE: dict[str, Any] = {
    "seed": 3,
    "rounds": 8,
    "data": {"name": "digits", "partition": "dirichlet", "alpha": 0.3, "devices": 100, "augment": "femnist"},
    "model": {"name": "softmax"},
    "train": {"cohort": 20, "lr": 0.5, "engine": "loop"},
    "defense": {"name": "sparsefed", "k": 60, "clip_norm": 1.0},
}


def built(**changes: Any) -> BuiltSimulation:
    return configs.build(configs.parse({**BASE, **changes}))


def test_resumed_is_uninterrupted_and_augmenting_changes_the_run() -> None:
    whole = list(simulate(built().setup, built().begin(), 8))
    resumed = list(simulate(built().setup, whole[3].state, 8))
    assert [r.metrics for r in resumed] == [r.metrics for r in whole[4:]]
    assert torch.equal(resumed[-1].state.theta, whole[-1].state.theta)
    plain = list(simulate((raw := built(data={**BASE["data"], "augment": "none"})).setup, raw.begin(), 8))
    assert not torch.equal(plain[-1].state.theta, whole[-1].state.theta)


def one_by_one(engine: Engine) -> Engine:
    """The same engine, every device in a block of its own."""

    def compute(theta: Tensor, cohort: Cohort, step: LocalStep) -> Iterator[Block]:
        for i in reversed(range(len(cohort.ids))):
            yield from engine(theta, Cohort(cohort.ids[i : i + 1], cohort.sizes[i : i + 1], cohort.gather), step)

    return compute


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["loop", "fused"])
def test_blocks_do_not_change_what_is_trained_on(engine: str) -> None:
    ours = built(train={**BASE["train"], "engine": engine})
    cut = replace(ours.setup, engine=one_by_one(ours.setup.engine))
    one, other = run_round(ours.setup, ours.begin()), run_round(cut, ours.begin())
    torch.testing.assert_close(one.state.theta, other.state.theta, rtol=1e-5, atol=1e-6)


def test_only_what_honest_devices_train_on_is_augmented() -> None:
    """Attackers get their images as they are, and neither the server's examples nor the test set are ever handed in.

    The keys tell: those of the honest devices, of this round, and no others.
    """
    handed: list[int] = []
    got: list[Knowledge] = []

    def counting(x: Tensor, keys: Words) -> Tensor:
        handed.extend(keys.tolist())
        return cifar(x, keys)

    def craft(knowledge: Knowledge) -> Tensor:
        got.append(knowledge)
        return torch.zeros_like(knowledge.theta)

    ours = built(threat={"share": 0.3}, attack={"name": "sign_flip"}, defense={"name": "fltrust"})
    assert ours.setup.root is not None
    these = replace(ours.setup.federation, augment=counting)
    attack = Attack(craft, needs=frozenset({"own data"}))
    protocol = replace(ours.setup, federation=these, attack=attack)
    first = run_round(protocol, ours.begin()).state
    handed.clear()
    list(simulate(protocol, first, 2, ours.evaluate))
    ids = these.cohort(2)
    hostile = these.attackers(ids, 2)
    assert 0 < hostile.sum() < len(ids)
    assert sorted(handed) == sorted(example_keys(3, 2, ids[~hostile], these.sizes(ids[~hostile])).tolist())
    assert got[1].own is not None and torch.equal(got[1].own.x, these.gather(ids[hostile]).x)


# --- in a config -----------------------------------------------------------------------------------------------------


OWN = """
import torch
from sparsefed.data.augment import moved

def mine(x, keys):
    return moved(x, keys, crop=1, degrees=15.0)

def floats(x, keys):
    return x.float()

def silent(x, keys):
    pass
"""


def test_an_augmentation_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_augmentation.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    own = built(data={**BASE["data"], "augment": "own_augmentation:mine"}).setup.federation
    ids = own.cohort(1)
    expected = moved(own.gather(ids).x, example_keys(3, 1, ids, own.sizes(ids)), crop=1, degrees=15.0)
    assert torch.equal(own.training(ids, 1).x, expected)
    for name, says in (("floats", "torch.float32"), ("silent", "NoneType")):
        act = partial(built, data={**BASE["data"], "augment": f"own_augmentation:{name}"})
        assert f"returned {says}" in refusal(act)


def test_what_is_no_image_is_not_augmented() -> None:
    tokens, partition = torch.zeros(6, 9, dtype=torch.int64), iid(np.zeros(6, np.int64), None, 2, None, 0)
    federate(tokens, tokens, partition, uniform, 1, ThreatModel(), 0)
    with pytest.raises(ConfigError, match=r'only images can be augmented.*use augment = "none"'):
        federate(tokens, tokens, partition, uniform, 1, ThreatModel(), 0, cifar)
