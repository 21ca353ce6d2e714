"""Distances, and the rules that choose by them, against their naive twins."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sparsefed.core.errors import ConfigError
from sparsefed.core.types import Context
from sparsefed.defenses.bulyan import around_median, bulyan, select
from sparsefed.defenses.combine import Stack
from sparsefed.defenses.krum import krum, multi_krum
from sparsefed.defenses.nnm import mixing, nnm
from sparsefed.defenses.rule import assemble
from sparsefed.kernels.blocks import as_blocks
from sparsefed.kernels.distances import gram, gram_torch, squared_distances, squared_distances_torch
from tests.support import reference as twin

CONTEXT = Context(round=0, lr=1.0)
SCALES = ["ties", "offset", "attackers", "plain", "huge", "tiny"]


def drawn(seed: int, n: int, d: int, scale: str) -> Tensor:
    """Rows that are hard in one way each; duplicates among all of them."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(n, d))
    if scale == "ties":
        rows = rng.integers(-1, 2, size=(n, d)).astype(float)
    elif scale == "offset":  # differences of 1e-3 on a common 1e3, where float32 Gram matrices drown
        rows = 1e-3 * rows + 1e3 * rng.normal(size=d)
    elif scale == "attackers":  # honest rows 1e-3 apart beside others of 1e6
        rows *= np.where(np.arange(n) < n // 4, 1e6, 1e-3)[:, None]
        rows += rng.normal(size=d)
    elif scale in ("huge", "tiny"):  # squares leave float32, above and below
        rows *= 1e29 if scale == "huge" else 1e-26
    copies = rng.integers(0, n, size=n)
    rows = np.where((rng.random(n) < 0.3)[:, None], rows[copies], rows)
    return torch.from_numpy(rows.astype(np.float32))


def lists(rows: Tensor) -> list[list[float]]:
    return [[float(x) for x in row] for row in rows.tolist()]


def step(name: str, builder: Callable[..., Any], rows: Tensor, **params: Any) -> Tensor:
    defense = assemble(name, builder, params)
    return defense.step(defense.init(rows.shape[1]), as_blocks(rows, len(rows)), CONTEXT).delta


def close(got: Tensor, wanted: list[float], size: float) -> bool:
    """Up to float32 sums of numbers of this size."""
    return bool(np.allclose(got.numpy().astype(float), wanted, rtol=2e-6, atol=1e-6 * size))


def largest_of(wanted: list[float], rows: Tensor, scale: str) -> float:
    """The size of the numbers that were summed: beside attackers of 1e6, that of the honest rows alone."""
    return max(map(abs, wanted)) if scale == "attackers" else float(rows.abs().max())


def decided(scores: list[float], rows: list[list[float]], scale: str) -> bool:
    """Whether rounding cannot change who comes first: scores are exact, or clearly apart where rows differ."""
    ranked = sorted(zip(scores, rows, strict=True))
    return scale == "ties" or all(a[1] == b[1] or b[0] - a[0] > 1e-9 * b[0] for a, b in pairwise(ranked))


def picks_are_decided(rows: list[list[float]], f: int) -> bool:
    """The same of every pick of Bulyan."""
    left = [list(row) for row in rows]
    while len(left) > 2 * f:
        scores = twin.krum_scores(left, f, max(1, len(left) - f - 2))
        if not decided(scores, left, "plain"):
            return False
        left.remove(twin.by_score(left, scores)[0])
    return True


# --- distances -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize(("n", "d"), [(1, 1), (2, 1), (5, 3), (8, 511), (9, 513), (71, 40), (6, 1025)])
def test_distances_and_products_are_those_of_the_definition(scale: str, n: int, d: int) -> None:
    rows = drawn(n * d, n, d, scale)
    wanted = [[twin.squared_distance(a, b) for b in lists(rows)] for a in lists(rows)]
    for distances in (squared_distances(rows), squared_distances_torch(rows)):
        np.testing.assert_allclose(distances.numpy(), wanted, rtol=1e-12, atol=0)
        assert distances.dtype == torch.float64
        assert torch.equal(distances, distances.T)
    norms = rows.double().norm(dim=1)
    for products in (gram(rows), gram_torch(rows)):
        exact = torch.tensor(
            [[twin.inner_product(a, b) for b in lists(rows)] for a in lists(rows)], dtype=torch.float64
        )
        assert ((products - exact).abs() <= 1e-12 * norms[:, None] * norms).all()
        assert torch.equal(products, products.T)


@pytest.mark.parametrize("scale", SCALES)
def test_large_rows_have_distances_to_1e5_whatever_they_are(scale: str) -> None:
    rows = drawn(3, 41, 5003, scale)  # large enough for float32 tiles
    fast, exact = squared_distances(rows), squared_distances_torch(rows)
    np.testing.assert_allclose(fast.numpy(), exact.numpy(), rtol=1e-5, atol=0)
    assert torch.equal(fast == 0, exact == 0)  # equal rows, and no others


def test_constant_rows_do_not_drift() -> None:
    """The worst case of float32 sums: every rounding goes the same way."""
    rows = torch.full((40, 5000), 0.1) * torch.arange(40)[:, None]
    np.testing.assert_allclose(squared_distances(rows).numpy(), squared_distances_torch(rows).numpy(), rtol=1e-5)


def test_one_row_that_differs_by_less_than_float32_squares_is_seen() -> None:
    rows = torch.ones(41, 5003)
    rows[7] = 0
    rows[8] = 0
    rows[8, 4000] = 1e-30
    distances = squared_distances(rows)
    assert distances[7, 8] == pytest.approx(1e-60, rel=1e-5)
    assert distances[0, 1] == 0


def test_distances_do_not_depend_on_the_order_of_rows_nor_on_threads() -> None:
    rows = drawn(5, 30, 9000, "plain")
    order = torch.randperm(30, generator=torch.Generator().manual_seed(1))
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = squared_distances(rows)
        assert torch.equal(squared_distances(rows[order]), one[order][:, order])
        torch.set_num_threads(3)
        np.testing.assert_allclose(squared_distances(rows).numpy(), one.numpy(), rtol=1e-14)
    finally:
        torch.set_num_threads(before)


# --- the rules against their twins -----------------------------------------------------------------------------------

cases = st.tuples(
    st.integers(0, 2**32 - 1), st.integers(0, 3), st.integers(0, 6), st.integers(1, 5), st.sampled_from(SCALES)
)
Case = tuple[int, int, int, int, str]


@settings(max_examples=60, deadline=None)
@given(cases)
def test_krum_is_its_twin(case: Case) -> None:
    seed, f, more, d, scale = case
    rows = drawn(seed, 2 * f + 3 + more, d, scale)
    scores = twin.krum_scores(lists(rows), f)
    chosen = step("krum", krum, rows, f=f).tolist()
    if decided(scores, lists(rows), scale):
        assert chosen == twin.krum_twin(lists(rows), f)
    assert scores[lists(rows).index(chosen)] <= min(scores) * (1 + 1e-9)


@settings(max_examples=60, deadline=None)
@given(cases)
def test_krum_as_the_box_prints_it_is_its_twin(case: Case) -> None:
    seed, f, more, d, scale = case
    rows = drawn(seed, 2 * f + 3 + more, d, scale)
    scores = twin.box_krum_scores(lists(rows), f)
    chosen = step("krum", krum, rows, f=f, variant="paper-box").tolist()
    if decided(scores, lists(rows), scale) and (scale != "ties" or d == 1):  # square roots of integers tie by rounding
        assert chosen == twin.box_krum_twin(lists(rows), f)
    assert scores[lists(rows).index(chosen)] <= min(scores) * (1 + 1e-9)


@settings(max_examples=60, deadline=None)
@given(cases, st.integers(1, 9))
def test_multi_krum_is_its_twin(case: Case, m: int) -> None:
    seed, f, more, d, scale = case
    rows = drawn(seed, 2 * f + 3 + more, d, scale)
    if decided(twin.krum_scores(lists(rows), f), lists(rows), scale):
        m = min(m, len(rows))
        for params, size in (({"m": m}, m), ({}, len(rows) - f)):
            wanted = twin.multi_krum_twin(lists(rows), f, size)
            assert close(step("multi_krum", multi_krum, rows, f=f, **params), wanted, largest_of(wanted, rows, scale))


@settings(max_examples=80, deadline=None)
@given(cases)
def test_bulyan_is_its_twin(case: Case) -> None:
    seed, f, more, d, scale = case
    rows = drawn(seed, 4 * f + 3 + more, d, scale)
    if scale == "ties" or picks_are_decided(lists(rows), f):
        size = largest_of(twin.bulyan_twin(lists(rows), f), rows, scale)
        assert close(step("bulyan", bulyan, rows, f=f), twin.bulyan_twin(lists(rows), f), size)
        wanted = twin.bulyan_around_median_twin(lists(rows), f)
        assert close(step("bulyan", bulyan, rows, f=f, variant="around_median"), wanted, size)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 9), st.integers(0, 8), st.integers(1, 5), st.sampled_from(SCALES))
def test_mixing_is_its_twin(seed: int, n: int, f: int, d: int, scale: str) -> None:
    rows, f = drawn(seed, n, d, scale), min(f, n - 1)
    mixed = nnm(f)(Stack(rows, np.arange(n), n), CONTEXT)
    for row, wanted in zip(mixed.rows, twin.nnm_twin(lists(rows), f), strict=True):
        assert close(row, wanted, largest_of(wanted, rows, scale))
    assert mixed.senders.tolist() == list(range(n))
    assert torch.equal(rows, drawn(seed, n, d, scale))


def test_krum_stays_with_honest_rows_that_a_float32_gram_matrix_cannot_tell_apart() -> None:
    rows = drawn(1, 40, 6000, "attackers")
    wanted = squared_distances_torch(rows).sort(1).values[:, 1 : 40 - 10 - 1].sum(1).argmin()
    assert torch.equal(step("krum", krum, rows, f=10), rows[wanted])


def test_bulyan_picks_the_same_rows_at_scale_as_krum_repeated() -> None:
    rows, f = drawn(2, 60, 200, "plain"), 6
    exact, left = squared_distances_torch(rows), list(range(60))
    while len(left) > 2 * f:
        others = exact[left][:, left].sort(1).values[:, 1 : len(left) - f - 1].sum(1)
        left.pop(int(others.argmin()))
    picked = {tuple(row) for row in lists(rows[select(rows, f)])}
    assert picked == {tuple(row) for i, row in enumerate(lists(rows)) if i not in left}


# --- laws and errors -------------------------------------------------------------------------------------------------

RULES: list[tuple[Callable[..., Any], dict[str, Any]]] = [
    (krum, {}),
    (krum, {"variant": "paper-box"}),
    (multi_krum, {}),
    (multi_krum, {"m": 2}),
    (bulyan, {}),
    (bulyan, {"variant": "around_median"}),
]


@pytest.mark.parametrize(("builder", "params"), RULES)
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), f=st.integers(0, 2), d=st.integers(1, 3))
def test_the_order_of_clients_decides_nothing(
    builder: Callable[..., Any], params: dict[str, Any], seed: int, f: int, d: int
) -> None:
    rows = drawn(seed, 11, d, "ties")  # every score ties with others, and rows that tie differ
    order = np.random.default_rng(seed).permutation(11)
    one, other = step("rule", builder, rows, f=f, **params), step("rule", builder, rows[order], f=f, **params)
    torch.testing.assert_close(one, other, rtol=0, atol=1e-6)


def test_mixing_moves_with_the_clients() -> None:
    rows = drawn(9, 12, 2, "ties")
    order = torch.randperm(12, generator=torch.Generator().manual_seed(2))
    weights = mixing(squared_distances(rows), 5)
    assert torch.equal(mixing(squared_distances(rows[order]), 5), weights[order][:, order])
    torch.testing.assert_close(weights.sum(1), torch.ones(12, dtype=torch.float64))


def test_mixing_with_f_0_is_the_mean_and_with_all_but_one_is_nothing() -> None:
    rows = drawn(4, 6, 3, "plain")
    mixed = nnm(0)(Stack(rows, np.arange(6), 6), CONTEXT).rows
    torch.testing.assert_close(mixed, rows.mean(0).expand(6, 3), rtol=1e-5, atol=1e-6)
    assert torch.equal(nnm(5)(Stack(rows, np.arange(6), 6), CONTEXT).rows, rows)


def test_krum_says_whom_it_chose() -> None:
    rows = torch.tensor([[9.0], [1.0], [1.1], [1.2], [-7.0]])
    defense = assemble("krum", krum, {"f": 1})
    assert defense.step(defense.init(1), as_blocks(rows, 2), CONTEXT).stats["winner"] == 2


@pytest.mark.parametrize(
    ("builder", "params", "n", "sentence"),
    [
        (krum, {"f": 2}, 6, "needs at least n = 7"),
        (krum, {"f": -1}, 6, "f >= 0"),
        (krum, {"f": 1, "variant": "box"}, 6, "paper-box"),
        (multi_krum, {"f": 1, "m": 0}, 6, "m >= 1"),
        (multi_krum, {"f": 1, "m": 7}, 6, "only 6 updates"),
        (bulyan, {"f": 1}, 6, "needs at least n = 7"),
        (bulyan, {"f": 1, "variant": "median"}, 7, "around_median"),
    ],
)
def test_what_is_impossible_is_refused_with_a_sentence(
    builder: Callable[..., Any], params: dict[str, Any], n: int, sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        step("rule", builder, torch.ones(n, 2), **params)


def test_mixing_refuses_as_many_attackers_as_clients() -> None:
    with pytest.raises(ConfigError, match="nnm with f = 3 needs at least n = 4"):
        nnm(3)(Stack(torch.ones(3, 2), np.arange(3), 3), CONTEXT)


def test_attackers_who_send_nan_do_not_stop_a_rule() -> None:
    rows = drawn(6, 11, 4, "plain")
    rows[:4] = torch.nan
    for builder, params in ((krum, {"f": 4}), (multi_krum, {"f": 4, "m": 9}), (bulyan, {"f": 2})):
        assert bool(step("rule", builder, rows, **params).isfinite().all())


def test_around_median_takes_the_smaller_of_two_that_are_equally_far() -> None:
    assert around_median(torch.tensor([[-1.0], [-1.0], [0.0], [0.0], [1.0]]), 1).item() == pytest.approx(-1 / 3)
