"""FLAME and LASA against their naive twins, their laws, and attackers; FLAME's clustering against scikit-learn's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sparsefed.core.errors import ConfigError
from sparsefed.core.rng import rng
from sparsefed.core.types import Context, Step
from sparsefed.defenses import Combine, assemble
from sparsefed.defenses.flame import cosine_distances, flame, majority
from sparsefed.defenses.lasa import lasa
from sparsefed.kernels import as_blocks
from tests.support import reference

Rows = npt.NDArray[np.float32]
SEEDS = st.integers(0, 2**32 - 1)


def run(combine: Combine, rows: Rows | Tensor, block_size: int = 1000, **context: Any) -> Step:
    """One round of the rule alone: no clipping around it, no momentum, rate 1."""
    defense = assemble("rule", lambda: combine, {"rho": 0.0})
    return defense.step(defense.init(rows.shape[1]), as_blocks(rows, block_size), Context(0, 1.0, **context))


def cohort(seed: int, n: int, d: int, kind: str) -> Rows:
    """Updates of the kinds that rules of this family meet, or trip over."""
    draw = rng(seed, "cohort")
    honest = draw.normal(size=d) + 0.3 * draw.normal(size=(n, d))
    crowd = max(1, n // 3)
    if kind == "ties":
        return draw.integers(-2, 3, size=(n, d)).astype(np.float32)
    if kind == "zeros":
        honest[draw.random(n) < 0.5] = 0
        honest[:, draw.random(d) < 0.5] = 0
    if kind == "duplicates":
        honest[:crowd] = -5 * honest[0]
    if kind == "offset":
        honest = 1e3 + 0.1 * draw.normal(size=(n, d))
    if kind == "tiny on offset":
        honest = 1e4 + 1e-6 * draw.normal(size=(n, d))
    if kind == "huge":
        honest[:crowd] = 1e6 * draw.normal(size=(crowd, d))
    if kind == "small":
        honest *= 1e-6
    return honest.astype(np.float32)


KINDS = st.sampled_from(["plain", "ties", "zeros", "duplicates", "offset", "tiny on offset", "huge", "small"])


def assert_close(ours: Tensor, twin: Sequence[float], rows: Rows) -> None:
    """float32 sums: the error is a share of what was added up, not of what is left after cancellation."""
    scale = float(np.median(np.linalg.norm(rows.astype(np.float64), axis=1)))
    np.testing.assert_allclose(ours.numpy(), np.array(twin), rtol=2e-6, atol=1e-6 * scale)


# ------------------------------------------------------------------------------------------------------------- FLAME


@settings(max_examples=150, deadline=None)
@given(seed=SEEDS, n=st.integers(1, 12), d=st.integers(1, 9), kind=KINDS, with_model=st.booleans())
def test_flame_is_its_twin(seed: int, n: int, d: int, kind: str, with_model: bool) -> None:
    rows = cohort(seed, n, d, kind)
    theta = 10 * rng(seed, "theta").normal(size=d).astype(np.float32) if with_model else None
    step = run(flame.__wrapped__(noise=0.0), rows, theta=None if theta is None else torch.from_numpy(theta))
    twin, admitted = reference.flame(rows.tolist(), None if theta is None else theta.tolist())
    assert step.stats["selected"] == admitted
    assert_close(step.delta, twin, rows)


@settings(max_examples=100, deadline=None)
@given(seed=SEEDS, n=st.integers(1, 9), d=st.integers(1, 9), kind=KINDS, length=st.sampled_from([None, 0.0, 1.0, 1e4]))
def test_cosine_distances_are_the_twins(seed: int, n: int, d: int, kind: str, length: float | None) -> None:
    rows = cohort(seed, n, d, kind)
    theta = None if length is None else (length * rng(seed, "theta").normal(size=d)).astype(np.float32)
    ours = cosine_distances(torch.from_numpy(rows), None if theta is None else torch.from_numpy(theta))
    compared = (rows.astype(np.float64) if theta is None else theta.astype(np.float64) - rows).tolist()
    twin = [[reference.flame_cosine_distance(x, y) for y in compared] for x in compared]
    np.testing.assert_allclose(ours.numpy(), np.array(twin), rtol=1e-9, atol=2e-15)


@pytest.mark.parametrize("with_model", [True, False])
def test_small_angles_keep_their_digits(with_model: bool) -> None:
    """Of models that moved a little, and of updates with much in common, beside attackers that have nothing."""
    draw = rng(0, "angles")
    common, moves = draw.normal(size=500), 1e-5 * draw.normal(size=(7, 500))
    theta = common.astype(np.float32)
    rows = (moves if with_model else np.concatenate([common + 10 * moves, 1e6 * draw.normal(size=(3, 500))])).astype(
        "f4"
    )
    ours = cosine_distances(torch.from_numpy(rows), torch.from_numpy(theta) if with_model else None)[:7, :7]
    compared = (theta - rows.astype(np.float64) if with_model else rows.astype(np.float64))[:7].tolist()
    twin = np.array([[reference.flame_cosine_distance(x, y) for y in compared] for x in compared])
    assert 0 < twin.max() < 2e-8
    np.testing.assert_allclose(ours.numpy(), twin, rtol=1e-9)


def hdbscan(distances: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
    from sklearn.cluster import HDBSCAN

    n = len(distances)
    found = HDBSCAN(
        min_cluster_size=n // 2 + 1, min_samples=1, allow_single_cluster=True, metric="precomputed", copy=True
    ).fit(distances)
    kept: npt.NDArray[np.bool_] = found.labels_ == 0
    return kept


@pytest.mark.slow
@settings(max_examples=120, deadline=None)
@given(seed=SEEDS, n=st.integers(2, 24), levels=st.sampled_from([None, 2, 4, 20]))
def test_the_majority_is_what_hdbscan_labels(seed: int, n: int, levels: int | None) -> None:
    """With and without ties: `levels` is how many different distances there are."""
    draw = rng(seed, "distances")
    drawn = draw.random((n, n)) if levels is None else draw.integers(0, levels, (n, n)) / 4
    distances = np.triu(drawn, 1) + np.triu(drawn, 1).T
    np.testing.assert_array_equal(majority(distances), hdbscan(distances))
    assert np.flatnonzero(majority(distances)).tolist() == reference.flame_majority(distances.tolist())


def test_the_majority_of_real_updates_is_what_hdbscan_labels() -> None:
    for seed in range(20):
        distances = cosine_distances(torch.from_numpy(cohort(seed, 25, 40, "huge"))).numpy()
        np.testing.assert_array_equal(majority(distances), hdbscan(distances))


@pytest.mark.parametrize(("n", "kept"), [(1, 1), (2, 2), (3, 3)])
def test_flame_of_few_or_equal_updates(n: int, kept: int) -> None:
    rows = np.tile(np.array([[1.0, -2.0, 3.0]], np.float32), (n, 1))
    step = run(flame.__wrapped__(noise=0.0), rows)
    assert step.stats["selected"] == kept
    np.testing.assert_allclose(step.delta.numpy(), rows[0], rtol=1e-6)


def test_flame_bears_every_norm_that_a_server_lets_in() -> None:
    draw = rng(0, "extremes")
    rows = draw.normal(size=(6, 8)) / np.sqrt(8)
    rows *= np.array([[1e29], [1e-30], [1.0], [1.0], [0.0], [1e6]])
    step = run(flame.__wrapped__(), rows.astype(np.float32))
    assert bool(torch.isfinite(step.delta).all())
    assert float(step.delta.norm()) <= 2.0


def test_the_noise_has_its_size_and_its_own_draw_a_round() -> None:
    rows = cohort(1, 9, 20_000, "plain")
    defense = assemble("flame", flame, {"noise": 0.01, "rho": 0.0})

    def noise(seed: int, round: int) -> Tensor:
        step = defense.step({}, as_blocks(rows, 9), Context(round, 1.0, seed))
        return step.delta - run(flame.__wrapped__(noise=0.0), rows).delta

    expected = 0.01 * float(np.median(np.linalg.norm(rows, axis=1)))
    assert float(noise(0, 0).std()) == pytest.approx(expected, rel=0.03)
    assert abs(float(noise(0, 0).mean())) < 4 * expected / 20_000**0.5
    assert torch.equal(noise(0, 3), noise(0, 3))
    assert not torch.equal(noise(0, 3), noise(0, 4))
    assert not torch.equal(noise(0, 3), noise(1, 3))


def test_flame_compares_updates_where_it_is_told_to_or_knows_no_model() -> None:
    rows = cohort(3, 11, 6, "huge")
    theta = torch.full((6,), 1e3)
    told = run(flame.__wrapped__(0.0, "updates"), rows, theta=theta)
    assert torch.equal(told.delta, run(flame.__wrapped__(0.0), rows).delta)
    assert not torch.equal(told.delta, run(flame.__wrapped__(0.0), rows, theta=theta).delta)


def test_without_usable_updates_nothing_happens() -> None:
    rows = np.full((3, 4), np.nan, np.float32)
    for combine in (flame.__wrapped__(), lasa.__wrapped__()):
        assert torch.equal(run(combine, rows).delta, torch.zeros(4))


# -------------------------------------------------------------------------------------------------------------- LASA


@settings(max_examples=200, deadline=None)
@given(
    seed=SEEDS,
    n=st.integers(1, 12),
    sizes=st.lists(st.integers(1, 6), max_size=4),
    kind=KINDS,
    sparsity=st.sampled_from([0.0, 0.3, 0.9]),
    radii=st.sampled_from([(1.0, 1.0), (0.5, 2.0), (2.0, 0.5)]),
)
def test_lasa_is_its_twin(
    seed: int, n: int, sizes: list[int], kind: str, sparsity: float, radii: tuple[float, float]
) -> None:
    rows = cohort(seed, n, sum(sizes) or 5, kind)
    step = run(lasa.__wrapped__(sparsity, *radii), rows, layers=tuple(sizes))
    twin, chosen = reference.lasa(rows.tolist(), sizes, sparsity, *radii)
    assert step.stats["selected"] == pytest.approx(sum(map(len, chosen)) / len(chosen))
    assert_close(step.delta, twin, rows)


def test_lasa_chooses_layer_by_layer() -> None:
    """A client whose first layer is flipped is left out there, and heard in the other; as one layer, it is out."""
    rows = np.array([[-1, -1, 4, 3]] + 9 * [[1, 1, 3, 4]], np.float32)
    layered, whole = run(lasa.__wrapped__(sparsity=0.0), rows, layers=(2, 2)), run(lasa.__wrapped__(sparsity=0.0), rows)
    np.testing.assert_allclose(layered.delta.numpy(), [1, 1, 3.1, 3.9], rtol=1e-6)
    np.testing.assert_allclose(whole.delta.numpy(), [1, 1, 3, 4], rtol=1e-6)
    assert (layered.stats["selected"], whole.stats["selected"]) == (9.5, 9.0)


def test_lasa_refuses_layers_that_are_not_the_models() -> None:
    with pytest.raises(ConfigError, match="add up to 5 coordinates, but the updates have 4"):
        run(lasa.__wrapped__(), np.ones((3, 4), np.float32), layers=(2, 3))


# -------------------------------------------------------------------------------------------------------------- both


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(seed=SEEDS, n=st.integers(1, 12), kind=KINDS, block_size=st.integers(1, 12))
def test_neither_the_order_of_clients_nor_blocks_matter(seed: int, n: int, kind: str, block_size: int) -> None:
    rows = cohort(seed, n, 7, kind)
    before = rows.copy()
    order = rng(seed, "order").permutation(n)
    for combine in (flame.__wrapped__(), lasa.__wrapped__()):
        whole = run(combine, rows, layers=(3, 4))
        cut = run(combine, rows[order], block_size, layers=(3, 4))
        assert whole.stats["selected"] == pytest.approx(cut.stats["selected"])
        assert_close(cut.delta, whole.delta.tolist(), rows)
    np.testing.assert_array_equal(rows, before)


@pytest.mark.parametrize("boost", [1.0, 10.0, 1e6])
@pytest.mark.parametrize("rule", ["flame", "flame with the model", "lasa"])
def test_a_fifth_that_colludes_is_held_off(rule: str, boost: float) -> None:
    """Colluders send one flipped, boosted update; the mean follows them, the rule stays with the honest."""
    draw = rng(7, "colluders")
    sizes = (300, 200)
    direction = draw.normal(size=500) + np.repeat([0.6, -0.6], sizes)  # layers have signs of their own, as LASA assumes
    rows = (direction + 0.5 * draw.normal(size=(50, 500))).astype(np.float32)
    rows[:10] = -boost * direction
    honest = rows[10:].mean(0)
    theta = torch.from_numpy(5 * draw.normal(size=500).astype(np.float32)) if "model" in rule else None
    delta = run(
        lasa.__wrapped__(0.1) if rule == "lasa" else flame.__wrapped__(), rows, layers=sizes, theta=theta
    ).delta.numpy()

    def off(vector: npt.NDArray[Any]) -> float:
        return float(np.linalg.norm(vector - honest) / np.linalg.norm(honest))

    assert off(rows.mean(0)) > 0.35
    assert off(delta) < 0.15


@pytest.mark.parametrize(
    ("build", "sentence"),
    [
        (lambda: flame.__wrapped__(noise=-1.0), "noise is -1.0"),
        (lambda: assemble("flame", flame, {"compare": "angles"}), "compare is 'angles'"),
        (lambda: lasa.__wrapped__(sparsity=1.0), "sparsity is 1.0"),
        (lambda: lasa.__wrapped__(lambda_n=0.0), "lambda_n is 0.0"),
        (lambda: lasa.__wrapped__(lambda_s=-1.0), "lambda_s is -1.0"),
    ],
)
def test_impossible_parameters_are_refused(build: Any, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        build()
