"""Trimmed mean, median and vote of signs: kernels and torch paths against their twins, and the rules around them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from sparsefed.core.errors import ConfigError
from sparsefed.core.rng import rng
from sparsefed.core.types import Context, Step
from sparsefed.defenses import assemble
from sparsefed.defenses.coordinate import median, trimmed_mean
from sparsefed.defenses.rlr import rlr
from sparsefed.kernels import as_blocks, columns
from tests.support import reference

Rows = npt.NDArray[np.float32]
Trim = Callable[[Tensor, int], Tensor]
FEW = columns.FEW


def array(values: Sequence[Any]) -> Rows:
    return np.array(values, np.float32)


def normal(generator: np.random.Generator, n: int, d: int) -> Rows:
    return generator.normal(size=(n, d)).astype(np.float32)


def ties(generator: np.random.Generator, n: int, d: int) -> Rows:
    """Few values, zeros of both signs among them."""
    return generator.choice(array([-1.5, -0.0, 0.0, 1e-40, 2.0]), size=(n, d))


def colluders(generator: np.random.Generator, n: int, d: int) -> Rows:
    """A third of the rows are one huge row, beside honest ones that are close together."""
    rows = generator.choice([-1.0, 1.0], d) + 1e-3 * generator.normal(size=(n, d))
    rows[: n // 3] = 1e6 * generator.normal(size=d)
    return generator.permutation(rows).astype(np.float32)


def offset(generator: np.random.Generator, n: int, d: int) -> Rows:
    """Small differences on a large common offset: neighbours in float32, so the low bits decide."""
    return (generator.choice([-4e3, 4e3], d) + 1e-3 * generator.normal(size=(n, d))).astype(np.float32)


def extreme(generator: np.random.Generator, n: int, d: int) -> Rows:
    """Every magnitude that float32 has, subnormal to what the server still accepts."""
    return (generator.choice([-1.0, 1.0], (n, d)) * 10.0 ** generator.uniform(-44, 27, (n, d))).astype(np.float32)


KINDS = (normal, ties, colluders, offset, extreme)


@st.composite
def cohorts(draw: st.DrawFn, most: int = 60) -> Rows:
    n, d = draw(st.integers(1, most)), draw(st.sampled_from([1, 2, 5, 130]))
    return draw(st.sampled_from(KINDS))(rng(draw(st.integers(0, 10**6)), "cohort"), n, d)


def assert_close(ours: Tensor, theirs: list[float], rows: Rows, f: int) -> None:
    """Within float32 rounding of the result, where survivors may cancel: of the largest survivor's size."""
    assert ours.dtype == torch.float32
    n = len(rows)
    size = np.abs(np.sort(rows.astype(np.float64), axis=0)[f : n - f]).max(axis=0)
    error = np.abs(ours.double().numpy() - np.array(theirs))
    assert (error <= 1e-7 * size + 1e-44).all(), f"off by {error.max()} at n = {n}, f = {f}"


@pytest.mark.parametrize("trim", [columns.trimmed_mean, columns.trimmed_mean_torch])
@settings(deadline=None, max_examples=60)
@given(rows=cohorts(), share=st.floats(0, 1))
@example(rows=ties(rng(0, "odd"), 2 * FEW + 3, 3), share=1.0)
@example(rows=ties(rng(0, "even"), 2 * FEW + 4, 3), share=1.0)
@example(rows=ties(rng(0, "third"), 2 * FEW + 5, 3), share=1.0)
def test_trimmed_mean_is_its_twin(trim: Trim, rows: Rows, share: float) -> None:
    f = round(share * ((len(rows) - 1) // 2))
    assert_close(trim(torch.from_numpy(rows), f), reference.column_trimmed_mean(rows.tolist(), f), rows, f)


@settings(deadline=None, max_examples=40)
@given(rows=cohorts())
def test_median_is_its_twin(rows: Rows) -> None:
    f = (len(rows) - 1) // 2
    assert_close(columns.median(torch.from_numpy(rows)), reference.column_median(rows.tolist()), rows, f)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("f", [0, 1, 3, 4, FEW, FEW + 1, 60, 98, 99])
def test_both_ways_to_trim_agree_with_sorting(kind: Callable[..., Rows], f: int) -> None:
    for n in (200, 203):
        rows = kind(rng(f, "both", n), n, 260)  # two tiles and a narrow one
        middle = np.sort(rows, axis=0)[f : n - f].astype(np.float64).mean(axis=0)
        assert_close(columns.trimmed_mean(torch.from_numpy(rows), f), middle.tolist(), rows, f)


@pytest.mark.parametrize("f", [1, FEW + 1])
def test_a_huge_attacker_leaves_no_trace(f: int) -> None:
    honest = normal(rng(0, "honest"), 2 * FEW + 9, 140)
    sides = np.repeat(array([-1e30, 1e30]), f)[:, None] * np.ones((1, 140), np.float32)
    attacked = torch.from_numpy(np.concatenate([honest, sides]))
    torch.testing.assert_close(columns.trimmed_mean(attacked, f), torch.from_numpy(honest.mean(0)))


def test_no_result_depends_on_threads_or_on_how_the_rows_lie() -> None:
    rows = torch.from_numpy(normal(rng(0, "threads"), 70, 20_000))
    assert rows.numel() > 3 * columns.MIN_NUMBERS
    wide = torch.cat([rows, rows], dim=1)
    before, threads = rows.clone(), torch.get_num_threads()
    for f in (2, 30, 34):
        try:
            torch.set_num_threads(1)
            one = columns.trimmed_mean(rows, f)
            torch.set_num_threads(3)
            assert torch.equal(columns.trimmed_mean(rows, f), one)
        finally:
            torch.set_num_threads(threads)
        assert torch.equal(columns.trimmed_mean(rows.T.contiguous().T, f), one)
        assert torch.equal(columns.trimmed_mean(wide[:, :20_000], f), one)
    assert torch.equal(rows, before)


def test_more_rows_than_a_count_can_hold_are_sorted() -> None:
    rows = torch.from_numpy(normal(rng(0, "many"), 40_001, 2))
    torch.testing.assert_close(columns.median(rows), rows.median(dim=0).values)
    assert_close(columns.trimmed_mean(rows, 3), np.sort(rows.double(), 0)[3:-3].mean(0).tolist(), rows.numpy(), 3)


@pytest.mark.parametrize("votes", [columns.sign_votes, columns.sign_votes_torch])
@settings(deadline=None, max_examples=30)
@given(rows=cohorts())
def test_votes_are_counted(votes: Callable[[Tensor], tuple[Tensor, Tensor]], rows: Rows) -> None:
    total, count = votes(torch.from_numpy(rows))
    assert count.tolist() == [sum((v > 0) - (v < 0) for v in column) for column in rows.T.tolist()]
    exact = [math.fsum(column) for column in rows.T.tolist()]
    np.testing.assert_allclose(total.numpy(), exact, rtol=0, atol=1e-13 * max(1.0, float(np.abs(rows).sum())))


# The rules.

BUILDERS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "trimmed_mean": (trimmed_mean, {"f": 2}),
    "median": (median, {}),
    "rlr": (rlr, {"threshold": 3}),
}


def one_round(name: str, rows: Rows, block_size: int = 100, **params: Any) -> Step:
    builder, usual = BUILDERS[name]
    defense = assemble(name, builder, usual | params)
    return defense.step(defense.init(rows.shape[1]), as_blocks(rows, block_size), Context(0, 1.0))


@settings(deadline=None, max_examples=40)
@given(rows=cohorts(most=12), threshold=st.integers(0, 12))
@example(rows=array([[1.0, -1.0], [1.0, 0.0], [-4.0, 0.0]]), threshold=1)
def test_rlr_is_its_twin(rows: Rows, threshold: int) -> None:
    threshold = min(threshold, len(rows))
    step = one_round("rlr", rows, threshold=threshold)
    twin = reference.robust_learning_rate(rows.tolist(), threshold)
    assert_close(step.delta, twin, rows, 0)
    close = [abs(int(np.sign(column).sum())) < threshold for column in rows.T]
    assert step.stats["turned"] == sum(close) / len(close)


def test_rlr_goes_back_where_the_vote_is_close() -> None:
    honest = array([[1.0, 0.1]] * 4 + [[1.0, -0.1]] * 4)
    attacked = np.concatenate([honest, array([[1.0, 8.0]] * 2)])
    step = one_round("rlr", attacked, threshold=4)
    torch.testing.assert_close(step.delta, torch.tensor([1.0, -1.6]))
    assert step.stats["turned"] == 0.5
    torch.testing.assert_close(one_round("rlr", attacked, threshold=0).delta, torch.tensor([1.0, 1.6]))


@pytest.mark.parametrize("name", BUILDERS)
def test_neither_order_nor_blocks_matter(name: str) -> None:
    rows = colluders(rng(3, "order"), 13, 50)
    whole = one_round(name, rows).delta
    for block_size in (1, 4):
        torch.testing.assert_close(one_round(name, rows, block_size).delta, whole)
    torch.testing.assert_close(one_round(name, rng(4, "order").permutation(rows)).delta, whole)


@pytest.mark.parametrize("name", BUILDERS)
def test_a_round_of_unusable_updates_moves_nothing(name: str) -> None:
    step = one_round(name, np.full((6, 3), np.nan, np.float32))
    assert step.delta.tolist() == [0.0, 0.0, 0.0]
    assert step.stats["dropped"] == 6


def test_f_zero_is_the_mean_and_one_update_is_itself() -> None:
    rows = normal(rng(0, "mean"), 9, 40)
    torch.testing.assert_close(one_round("trimmed_mean", rows, f=0).delta, torch.from_numpy(rows.mean(0)))
    for name, params in (("trimmed_mean", {"f": 0}), ("median", {}), ("rlr", {"threshold": 1})):
        assert torch.equal(one_round(name, rows[:1], **params).delta, torch.from_numpy(rows[0]))


def test_dropped_updates_lower_f_and_the_threshold() -> None:
    rows = normal(rng(0, "dropped"), 7, 5)
    rows[:4] = np.inf
    middle = torch.from_numpy(np.median(rows[4:], axis=0))
    torch.testing.assert_close(one_round("trimmed_mean", rows, f=3).delta, middle)
    torch.testing.assert_close(one_round("median", rows).delta, middle)
    agree = np.abs(rows)
    torch.testing.assert_close(one_round("rlr", agree, threshold=7).delta, torch.from_numpy(agree[4:].mean(0)))


def test_impossible_parameters_are_refused_with_a_sentence() -> None:
    rows = normal(rng(0, "refused"), 4, 2)
    with pytest.raises(ConfigError, match="f = 2 needs at least n = 5 updates a round, but there are 4"):
        one_round("trimmed_mean", rows, f=2)
    with pytest.raises(ConfigError, match="f is -1"):
        trimmed_mean(-1)
    with pytest.raises(ConfigError, match="threshold is -1"):
        rlr(-1)
    with pytest.raises(ConfigError, match="threshold = 5 needs at least n = 5 updates a round, but there are 4"):
        one_round("rlr", rows, threshold=5)
