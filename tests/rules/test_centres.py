"""Geometric median, centered clipping, bucketing and ARC against their naive twins, and the laws they must obey."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from sparsefed.core.errors import ConfigError
from sparsefed.core.rng import rng
from sparsefed.core.types import Context
from sparsefed.defenses import assemble
from sparsefed.defenses.arc import arc
from sparsefed.defenses.bucketing import bucketing
from sparsefed.defenses.centered_clipping import centered_clipping
from sparsefed.defenses.combine import Pre, Stack, after, mean
from sparsefed.defenses.geometric_median import GRAM_ROWS, geometric_median
from sparsefed.defenses.pipeline import Combine
from sparsefed.kernels.blocks import RowsBlock
from sparsefed.kernels.centre_kernels import PIECE, centre_of, recentre, recentre_torch
from tests.support import reference

FLOAT32 = 2.0**-23
ROUND = Context(round=3, lr=1.0, seed=5)
KINDS = ("lattice", "plain", "offset", "huge", "colluders", "zeros", "tiny")


def made(kind: str, n: int, d: int, seed: int) -> Tensor:
    """A cohort [n, d] with what rules trip over."""
    draw = np.random.default_rng(seed)
    rows = draw.normal(size=(n, d))
    if kind == "lattice":  # ties and duplicates
        rows = draw.integers(-2, 3, size=(n, d)).astype(float)
    elif kind == "offset":  # close together, far from zero
        rows = 10 ** draw.uniform(3, 4) + rows * 10 ** draw.uniform(-3, 0)
    elif kind == "huge":  # a minority far out
        rows[: (n - 1) // 2] *= 1e6
    elif kind == "colluders":
        rows[: n // 3] = rows[0]
    elif kind == "zeros":
        rows[draw.random(n) < 0.6] = 0
    elif kind == "tiny":
        rows *= 1e-6
    return torch.from_numpy(rows[draw.permutation(n)]).float()


cohorts = st.builds(made, st.sampled_from(KINDS), st.integers(1, 9), st.integers(1, 6), st.integers(0, 10**6))


def combined(combine: Combine, rows: Tensor) -> Tensor:
    """One round from a zero state; the rows must come out as they went in."""
    before = rows.clone()
    vector = combine.step(combine.init(rows.shape[1]), [RowsBlock(rows)], ROUND).vector
    assert torch.equal(rows, before)
    assert vector.dtype == torch.float32 and vector.shape == rows.shape[1:]
    return vector


def pre_aggregated(pre: Pre, rows: Tensor, senders: Sequence[int] | None = None, context: Context = ROUND) -> Stack:
    before = rows.clone()
    names = np.arange(len(rows)) if senders is None else np.asarray(senders)
    out = pre(Stack(rows, names, len(rows)), context)
    assert torch.equal(rows, before)
    return out


def assert_close(ours: Tensor, twin: Sequence[float], scale: float, rel: float) -> None:
    for mine, theirs in zip(ours.tolist(), twin, strict=True):
        assert abs(mine - theirs) <= 2 * FLOAT32 * abs(theirs) + rel * scale


def spread(rows: Tensor) -> float:
    """The median distance from the coordinate median: attackers do not widen it."""
    wide = rows.double()
    return float((wide - wide.median(0).values).norm(dim=1).median())


# --- the sweep ---


@settings(deadline=None, max_examples=60)
@given(rows=cohorts, seed=st.integers(0, 1000), without_base=st.booleans(), idle=st.booleans())
def test_recentre_is_the_loop(rows: Tensor, seed: int, without_base: bool, idle: bool) -> None:
    draw = np.random.default_rng(seed)
    weights = torch.from_numpy(draw.uniform(-0.5, 1, len(rows)) * (draw.random(len(rows)) < 0.7) * (not idle))
    base = None if without_base else torch.from_numpy(draw.normal(size=rows.shape[1]))
    zero = [0.0] * rows.shape[1]
    point, squares = reference.combination(rows.tolist(), weights.tolist(), zero if base is None else base.tolist())
    for found in (recentre(rows, weights, base), recentre_torch(rows, weights, base)):
        np.testing.assert_allclose(found.vector.numpy(), point, rtol=1e-12, atol=1e-12 * float(rows.abs().max()))
        np.testing.assert_allclose(found.squares.numpy(), squares, rtol=1e-10, atol=1e-12)
    assert torch.equal(centre_of(rows, weights, base), recentre(rows, weights, base).vector)


@pytest.mark.parametrize("n", [3, 8, 300])
def test_wide_rows_and_threads(n: int) -> None:
    rows = torch.randn(n, 2 * PIECE + 77, generator=torch.Generator().manual_seed(n))
    weights = torch.rand(n, generator=torch.Generator().manual_seed(0), dtype=torch.float64) / n
    before, found = torch.get_num_threads(), []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        found.append(recentre(rows, weights, torch.ones(rows.shape[1])))
    torch.set_num_threads(before)
    assert all(torch.equal(a.vector, found[0].vector) and torch.equal(a.squares, found[0].squares) for a in found)
    exact = (1 - weights.sum()) + weights @ rows.double()
    torch.testing.assert_close(found[0].vector, exact, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(found[0].squares, (rows.double() - exact).square().sum(1), rtol=1e-12, atol=0.0)


def test_a_transposed_tensor_is_read_rightly() -> None:
    rows = torch.randn(6, 5, generator=torch.Generator().manual_seed(1))
    weights = torch.full((5,), 0.2, dtype=torch.float64)
    assert torch.equal(recentre(rows.T, weights).squares, recentre(rows.T.contiguous(), weights).squares)


# --- the geometric median ---


@settings(deadline=None, max_examples=150)
@given(rows=cohorts, nu=st.sampled_from([0.1, 1e-6]), steps=st.integers(1, 12), from_mean=st.booleans())
def test_steps_are_weiszfelds(rows: Tensor, nu: float, steps: int, from_mean: bool) -> None:
    """n / 6 + 2 sweeps and then inner products: up to nine rows and twelve steps, both are seen."""
    rule = geometric_median.__wrapped__(nu=nu, iterations=steps, tolerance=0.0, start="mean" if from_mean else "zero")
    twin = reference.weiszfeld(rows.tolist(), nu, steps, from_mean)
    furthest = float((rows.double() - torch.tensor(twin)).norm(dim=1).median())
    assert_close(combined(rule, rows), twin, furthest + nu, 1e-5)


@settings(deadline=None, max_examples=100)
@given(rows=cohorts)
@example(made("zeros", 4, 2, 873))  # nearly on a line, and nearly flat: the steps run out
def test_the_median_has_the_least_sum_of_distances(rows: Tensor) -> None:
    exact = rows.tolist()
    flow = geometric_median.__wrapped__().step({}, [RowsBlock(rows)], ROUND)
    objective = reference.sum_of_distances(exact, flow.vector.tolist())
    best = min(reference.sum_of_distances(exact, point) for point in [reference.weiszfeld(exact, 1e-12, 300), *exact])
    # Against the honest part: next to an attacker at 1e6, a millionth of the whole sum would hide any error.
    honest = len(rows) * spread(rows) or best
    sizes = rows.double().norm(dim=1)
    size = float(sizes[sizes > 0].median()) if sizes.any() else 0.0
    rounding = len(rows) * FLOAT32 * max(size, float(flow.vector.double().norm()))  # nu, and the answer, are float32
    settled = flow.stats["iterations"] < 1000
    assert objective <= best + (1e-6 if settled else 1e-3) * honest + rounding + 1e-30


@pytest.mark.parametrize(("n", "d", "seed"), [(4, 2, 1396), (3, 4, 1361), (3, 5, 2677)])
def test_first_centres_that_are_a_million_away_blur_nothing(n: int, d: int, seed: int) -> None:
    """Inner products around such a centre have too few digits for the honest rows: the rule must take new ones."""
    flow = geometric_median.__wrapped__().step({}, [RowsBlock(made("huge", n, d, seed))], ROUND)
    assert flow.stats["iterations"] < 500


@pytest.mark.parametrize("n", [5, 60])
@pytest.mark.parametrize("far", [1.0, 1e6])
def test_a_majority_of_equal_rows_is_the_median(n: int, far: float) -> None:
    rows = torch.randn(n, 7, generator=torch.Generator().manual_seed(2)) * far
    rows[: n // 2 + 1] = torch.arange(7.0)
    torch.testing.assert_close(combined(geometric_median.__wrapped__(), rows), torch.arange(7.0), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("n", [1, 2, 3, 8, 40])
def test_equal_rows_are_their_own_median(n: int) -> None:
    row = torch.tensor([1e4, -1e-6, 0.1, 3e30])
    assert torch.equal(combined(geometric_median.__wrapped__(), row.repeat(n, 1)), row)
    assert torch.equal(combined(geometric_median.__wrapped__(), torch.zeros(n, 3)), torch.zeros(3))


def test_of_two_rows_it_is_the_mean_and_of_three_on_a_line_the_middle_one() -> None:
    assert combined(geometric_median.__wrapped__(), torch.tensor([[0.0, 4.0], [2.0, 0.0]])).tolist() == [1.0, 2.0]
    middle = combined(geometric_median.__wrapped__(), torch.tensor([[0.0], [1.0], [100.0]]))
    assert middle.item() == pytest.approx(1.0, abs=1e-6)


def test_the_fermat_point_of_a_triangle() -> None:
    """Known in closed form: (1, 1/sqrt(3)) for the equilateral triangle with side 2."""
    rows = torch.tensor([[0.0, 0.0], [2.0, 0.0], [1.0, math.sqrt(3.0)]])
    expected = torch.tensor([1.0, 1 / math.sqrt(3.0)])
    for offset, rel in ((0.0, 1e-6), (4096.0, 1e-6)):
        torch.testing.assert_close(
            combined(geometric_median.__wrapped__(), rows + offset), expected + offset, rtol=rel, atol=0.0
        )


def test_it_leaves_a_row_where_the_mean_happens_to_be() -> None:
    """The mean is the fourth row, three of five rows are zero: zero is the median, and no step may get stuck."""
    rows = torch.zeros(5, 2)
    rows[3], rows[4] = torch.tensor([1.0, 2.0]), torch.tensor([4.0, 8.0])
    assert float(combined(geometric_median.__wrapped__(), rows).norm()) < 1e-6


@settings(deadline=None, max_examples=40)
@given(rows=cohorts, exponent=st.integers(-20, 20), seed=st.integers(0, 100))
def test_it_commutes_with_scaling_and_the_order_of_rows(rows: Tensor, exponent: int, seed: int) -> None:
    found = combined(geometric_median.__wrapped__(), rows)
    scaled = combined(geometric_median.__wrapped__(), rows * 2.0**exponent) / 2.0**exponent
    torch.testing.assert_close(scaled, found, rtol=1e-6, atol=1e-6 * spread(rows) + 1e-12)
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))
    reordered = combined(geometric_median.__wrapped__(), rows[order])
    torch.testing.assert_close(reordered, found, rtol=1e-5, atol=1e-4 * spread(rows) + 1e-12)


def test_sweeps_and_products_agree_on_many_rows() -> None:
    """On a plane Weiszfeld is slow: the rule has to go on with inner products, past its sweeps."""
    rows = torch.randn(90, 2, generator=torch.Generator().manual_seed(3))
    rows[:40] = rows[:40] * 0.01 + 1e5
    combine = geometric_median.__wrapped__(iterations=200, tolerance=1e-12)
    flow = combine.step({}, [RowsBlock(rows)], ROUND)
    assert flow.stats["iterations"] > 90 // GRAM_ROWS + 2
    assert_close(flow.vector, reference.weiszfeld(rows.tolist(), 1e-9, 200), 1.0, 1e-5)


def test_many_coordinates_settle_in_a_few_sweeps() -> None:
    rows = torch.randn(60, 2000, generator=torch.Generator().manual_seed(4))
    rows[:12] = 1.0
    flow = geometric_median.__wrapped__().step({}, [RowsBlock(rows)], ROUND)
    assert flow.stats["iterations"] <= 60 // GRAM_ROWS + 2
    assert_close(flow.vector, reference.weiszfeld(rows.tolist(), 1e-9, 30), 1.0, 1e-6)


# --- centered clipping ---


@settings(deadline=None, max_examples=100)
@given(
    cohort=st.lists(cohorts, min_size=1, max_size=3),
    radius=st.sampled_from([1e-3, 1.0, 100.0, math.inf]),
    iterations=st.integers(1, 4),
)
def test_centered_clipping_is_its_twin_round_after_round(
    cohort: Sequence[Tensor], radius: float, iterations: int
) -> None:
    d = cohort[0].shape[1]
    rounds = [rows.repeat(1, d)[:, :d] for rows in cohort]
    combine = centered_clipping.__wrapped__(radius, iterations)
    state, twin, largest = combine.init(d), [0.0] * d, 0.0
    assert not state["centre"].any()
    for rows in rounds:
        before, old = rows.clone(), {name: tensor.clone() for name, tensor in state.items()}
        flow = combine.step(state, [RowsBlock(rows)], ROUND)
        assert torch.equal(rows, before) and all(torch.equal(state[name], old[name]) for name in old)
        twin = reference.centered_clipping(rows.tolist(), twin, radius, iterations)
        # The state between rounds is float32; and pulls of this length may cancel.
        largest = max(largest, *map(abs, twin), 1e-9 * min(radius, 1.0))
        assert_close(flow.vector, twin, largest, 1e-5)
        assert torch.equal(flow.state["centre"], flow.vector)
        state = flow.state


def test_an_attacker_moves_the_centre_by_its_share_of_the_radius() -> None:
    rows = torch.zeros(10, 3)
    rows[0] = torch.tensor([3e29, 0.0, 4e29])
    flow = centered_clipping.__wrapped__(2.0).step({"centre": torch.zeros(3)}, [RowsBlock(rows)], ROUND)
    torch.testing.assert_close(flow.vector, torch.tensor([0.12, 0.0, 0.16]))
    assert flow.stats == {"outside": 0.1}


def test_more_iterations_reach_what_is_far_away() -> None:
    rows = torch.full((49, 4), 50.0)
    near = [float((combined(centered_clipping.__wrapped__(10.0, k), rows) - 50).norm()) for k in (1, 5, 12)]
    assert near[0] == pytest.approx(90.0) and near[1] == pytest.approx(50.0) and near[2] == pytest.approx(0, abs=1e-4)


# --- both as defenses ---

RULES: Sequence[tuple[Callable[..., Any], dict[str, Any]]] = (
    (geometric_median, {}),
    (centered_clipping, {"radius": 1.0}),
)


@pytest.mark.parametrize(("builder", "params"), RULES)
def test_blocks_and_dropped_rows_change_nothing(builder: Callable[..., Any], params: dict[str, Any]) -> None:
    rows = made("plain", 9, 5, 0)
    defense = assemble("rule", builder, {"rho": 0.0, **params})
    whole = defense.step(defense.init(5), [RowsBlock(rows)], ROUND).delta
    bad = torch.cat([rows, torch.full((1, 5), math.nan)])
    split = [RowsBlock(part, np.arange(len(part))) for part in torch.split(bad, 4)]
    assert torch.equal(defense.step(defense.init(5), split, ROUND).delta, whole)
    nothing = defense.step(defense.init(5), [RowsBlock(bad[-1:])], ROUND)
    assert torch.equal(nothing.delta, torch.zeros(5)) and nothing.stats["dropped"] == 1.0


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: geometric_median.__wrapped__(nu=0.0), "nu > 0"),
        (lambda: geometric_median.__wrapped__(iterations=0), "iterations >= 1"),
        (lambda: geometric_median.__wrapped__(tolerance=-1.0), "tolerance >= 0"),
        (lambda: geometric_median.__wrapped__(start="median"), "valid choices: mean, zero"),  # type: ignore[arg-type]
        (lambda: centered_clipping.__wrapped__(0.0), "radius > 0"),
        (lambda: centered_clipping.__wrapped__(1.0, iterations=0), "iterations >= 1"),
        (lambda: bucketing(0), "size >= 1"),
        (lambda: arc(-1), "f >= 0"),
    ],
)
def test_impossible_parameters_are_refused(make: Callable[[], object], word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        make()


# --- bucketing ---


@settings(deadline=None, max_examples=60)
@given(rows=cohorts, size=st.integers(1, 5), seed=st.integers(0, 50), round=st.integers(0, 50))
def test_bucketing_is_its_twin_whoever_comes_first(rows: Tensor, size: int, seed: int, round: int) -> None:
    context = Context(round, 1.0, seed)
    senders = [10**12 + 7 * i for i in range(len(rows))]
    keys = [int(key) for key in rng(seed, "bucketing", round).integers(2**64, size=2, dtype=np.uint64)]
    out = pre_aggregated(bucketing(size), rows, senders, context)
    twin = reference.bucketing(rows.tolist(), senders, keys, size)
    np.testing.assert_allclose(out.rows.double().numpy(), twin, rtol=1e-6, atol=1e-6 * float(rows.abs().max()))
    assert out.senders.tolist() == list(range(len(twin))) and out.received == len(twin)
    back = pre_aggregated(bucketing(size), rows.flip(0), senders[::-1], context)
    assert torch.equal(back.rows, out.rows)


@pytest.mark.parametrize(("n", "size"), [(7, 3), (8, 2), (1, 2), (5, 1), (4, 9)])
def test_every_row_is_in_one_bucket(n: int, size: int) -> None:
    out = pre_aggregated(bucketing(size), torch.eye(n)).rows
    assert len(out) == -(-n // size)
    sizes = [int((row > 0).sum()) for row in out]
    assert sizes[:-1] == [size] * (len(out) - 1) and sum(sizes) == n
    torch.testing.assert_close(out.sum(1), torch.ones(len(out)))
    assert bool(((out > 0).sum(0) == 1).all())


@pytest.mark.parametrize("vary", ["round", "seed"])
def test_who_shares_a_bucket_is_drawn_anew_and_fairly(vary: str) -> None:
    """Each of the 15 pairs of 6 senders shares a bucket of 2 in a fifth of the draws."""
    draws, together = 600, dict.fromkeys(itertools.combinations(range(6), 2), 0)
    for t in range(draws):
        context = Context(t, 1.0, 0) if vary == "round" else Context(0, 1.0, t)
        for row in pre_aggregated(bucketing(2), torch.eye(6), context=context).rows:
            together[tuple(torch.nonzero(row).flatten().tolist())] += 1
    chi = sum((count - draws / 5) ** 2 / (draws / 5 * 0.8) for count in together.values())
    assert chi < 40  # about 15 degrees of freedom; the draws are fixed by the seed


def test_buckets_go_before_any_rule() -> None:
    rows = made("plain", 8, 4, 1)
    torch.testing.assert_close(combined(after([bucketing(2)], mean()), rows), rows.mean(0))


# --- ARC ---


@settings(deadline=None, max_examples=100)
@given(rows=cohorts, f=st.integers(0, 4))
def test_arc_is_its_twin(rows: Tensor, f: int) -> None:
    f = min(f, (len(rows) - 1) // 2)
    out = pre_aggregated(arc(f), rows)
    for mine, twin in zip(out.rows.double().numpy(), reference.arc(rows.tolist(), f), strict=True):
        np.testing.assert_allclose(mine, twin, rtol=1e-6, atol=1e-30)
    assert f > 0 or torch.equal(out.rows, rows)


@pytest.mark.parametrize(("n", "f", "k"), [(3, 1, 1), (10, 2, 3), (10, 4, 4), (100, 10, 18), (25, 5, 8), (49, 21, 24)])
def test_arc_cuts_the_longest_k(n: int, f: int, k: int) -> None:
    rows = torch.diag(torch.arange(1.0, n + 1))
    out = pre_aggregated(arc(f), rows).rows
    assert int((out.diagonal() < rows.diagonal()).sum()) == k
    assert float(out.max()) == n - k


def test_arc_bears_the_largest_and_the_smallest_numbers() -> None:
    rows = torch.tensor([[1e-12, 0.0], [1e30, 0.0], [0.0, 1e-12]])
    cut = torch.tensor([[1e-12, 0.0], [1e-12, 0.0], [0.0, 1e-12]])
    torch.testing.assert_close(pre_aggregated(arc(1), rows).rows, cut, rtol=1e-6, atol=0.0)
    zeros = torch.cat([torch.zeros(4, 2), torch.ones(1, 2)])
    assert not pre_aggregated(arc(1), zeros).rows.any()


def test_arc_needs_an_honest_majority() -> None:
    with pytest.raises(ConfigError, match="arc with f = 2 needs at least n = 5 updates a round, but there are 4"):
        pre_aggregated(arc(2), torch.ones(4, 2))
    lost = arc(2)(Stack(torch.diag(torch.tensor([1.0, 2.0, 3.0])), np.arange(3), 5), ROUND)
    assert lost.rows.diagonal().tolist() == [1.0, 2.0, 2.0]  # two dropped: it goes on with f = 1
