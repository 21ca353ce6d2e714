"""The choice of k: twins with loops, the paper's box against the smallest k, and the curve that one sort makes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparsefed.core.errors import ConfigError
from sparsefed.core.rng import rng
from sparsefed.theory import choice_of_k as choice
from sparsefed.theory.choice_of_k import Gradient
from tests.support import reference

Rows = list[list[float]]


def rows(values: st.SearchStrategy[float]) -> st.SearchStrategy[Rows]:
    """Some gradients of the same length."""
    return st.integers(1, 9).flatmap(
        lambda d: st.lists(st.lists(values, min_size=d, max_size=d), min_size=1, max_size=4)
    )


few = st.sampled_from([0.0, -0.0, 1.0, -1.0, 2.0, 3.0, -5.0])  # many ties and zeros, and every sum exact
floats = st.floats(-1e6, 1e6, width=32)
omegas = st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.75, 1.0]) | st.floats(0, 1)


def arrays(gradients: Sequence[Sequence[float]]) -> list[Gradient]:
    return [np.array(gradient, np.float32) for gradient in gradients]


# --- the smallest k --------------------------------------------------------------------------------------------------


@given(rows(few) | rows(floats), omegas)
def test_the_smallest_k_is_what_trying_every_k_finds(gradients: Rows, omega: float) -> None:
    """Bit for bit: both sum from the smallest up."""
    found = choice.smallest_k(choice.share_curve(arrays(gradients)), omega)
    assert found.k == reference.smallest_k(gradients, omega, as_share=True)
    assert found.lost == reference.average_lost(gradients, found.k, as_share=True)
    assert found.selections == len(gradients)


@given(rows(few) | rows(floats), st.floats(0, 20))
def test_the_same_with_masses(gradients: Rows, omega: float) -> None:
    found = choice.smallest_k(choice.mass_curve(arrays(gradients)), omega)
    assert found.k == reference.smallest_k(gradients, omega, as_share=False)


@given(rows(few) | rows(floats))
def test_one_sort_knows_every_k(gradients: Rows) -> None:
    d = len(gradients[0])
    curve = choice.share_curve(arrays(gradients), grid=range(d + 1))
    assert curve.mean.tolist() == [reference.average_lost(gradients, k, as_share=True) for k in range(d + 1)]
    assert (np.diff(curve.mean) <= 0).all() and curve.mean[d] == 0
    for each, sample in zip(gradients, curve.samples, strict=True):
        assert sample.tolist() == [reference.average_lost([each], k, as_share=True) for k in range(d + 1)]
    (first, *_), masses = arrays(gradients), choice.mass_curve(arrays(gradients[:1])).mean
    for k in range(d + 1):
        assert choice.mass_lost(first, k) == pytest.approx(masses[k], rel=1e-12)
        assert choice.share_lost(first, k) == pytest.approx(curve.samples[0, k], rel=1e-12)


@given(rows(floats), st.floats(0, 1), st.floats(0, 1))
def test_who_may_lose_more_needs_no_larger_k(gradients: Rows, one: float, other: float) -> None:
    curve = choice.share_curve(arrays(gradients))
    assert choice.smallest_k(curve, max(one, other)).k <= choice.smallest_k(curve, min(one, other)).k


@given(rows(few), st.integers(1, 50), omegas)
def test_zeros_behind_a_gradient_cost_nothing(gradients: Rows, zeros: int, omega: float) -> None:
    wider = [[0.0] * zeros + gradient for gradient in gradients]
    curves = [choice.share_curve(arrays(each)) for each in (gradients, wider)]
    assert choice.smallest_k(curves[0], omega).k == choice.smallest_k(curves[1], omega).k


def test_a_gradient_that_is_zero_loses_nothing() -> None:
    curve = choice.share_curve([np.zeros(5, np.float32)])
    assert curve.mean.tolist() == [0.0] * 6
    assert choice.smallest_k(curve, 0.0) == (1, 0.0, 1)


def test_equal_coordinates_lose_in_proportion() -> None:
    """The worst case, 1 - k/d."""
    curve = choice.share_curve([np.full(1000, -0.25, np.float32)] * 3)
    np.testing.assert_allclose(curve.mean, 1 - np.arange(1001) / 1000, atol=1e-15)
    assert choice.smallest_k(curve, 0.75).k == 250


# --- the paper's box -------------------------------------------------------------------------------------------------


@given(st.lists(rows(few), min_size=1, max_size=5), st.integers(1, 12), omegas)
def test_the_box_as_printed(turns: list[Rows], r: int, omega: float) -> None:
    """Gradients that change from turn to turn, and need not have the length of the first."""
    d = len(turns[0][0])
    drawn = [[(gradient * d)[:d] for gradient in turn] for turn in turns]
    for as_share, ours in ((False, choice.paper_choice), (True, choice.paper_choice_of_share)):
        asked: list[int] = []

        def draw(asked: list[int] = asked) -> Iterator[Gradient]:
            asked.append(len(asked))
            yield from arrays(drawn[asked[-1] % len(drawn)])

        k, took = reference.selecting_k(lambda turn: drawn[turn % len(drawn)], omega, d, r, as_share)
        found = ours(draw, omega, d, r)
        assert (found.k, len(asked)) == (k, took)
        assert found.selections == sum(len(drawn[turn % len(drawn)]) for turn in range(took))


@given(rows(few), st.integers(1, 12), omegas)
def test_on_the_same_gradients_the_box_is_less_than_a_step_above_the_smallest(
    gradients: Rows, r: int, omega: float
) -> None:
    d, fixed = len(gradients[0]), arrays(gradients)
    curve = choice.share_curve(fixed)
    least = choice.smallest_k(curve, omega)
    paper = choice.paper_choice_of_share(lambda: fixed, omega, d, r)
    assert least.k <= paper.k < least.k + d / r
    assert choice.stepped_k(curve, omega, r) == paper
    assert least.selections <= paper.selections


@given(st.integers(1, 500), st.integers(1, 600))
def test_the_steps_end_at_d(d: int, r: int) -> None:
    found = choice.steps(d, r)
    assert len(found) == r and found[-1] == d and found[0] == max(1, -(-d // r))
    assert all(0 <= k - i * d / r < 1 + 1e-9 for i, k in enumerate(found, start=1))


def test_far_fewer_selections() -> None:
    """What it is for: a gradient as models have them, an epoch of 100 rounds."""
    drawn = [rng(3, "choice", i).standard_normal(20_000).astype(np.float32) ** 3 for i in range(10)]
    curve = choice.share_curve(drawn)
    least, paper = choice.smallest_k(curve, 0.1), choice.paper_choice_of_share(lambda: drawn, 0.1, 20_000, 100)
    assert least.selections == 10 and paper.selections == 10 * (paper.k // 200) >= 200
    assert 0 <= paper.k - least.k < 200


# --- what is refused -------------------------------------------------------------------------------------------------


def test_what_cannot_be_chosen_by_is_refused_in_a_sentence() -> None:
    one = np.ones(4, np.float32)
    with pytest.raises(ConfigError, match="no sample gradients"):
        choice.share_curve([])
    with pytest.raises(ConfigError, match="no sample gradients"):
        choice.paper_choice(list, 1.0, 4, 2)
    with pytest.raises(ConfigError, match="not finite: the model has diverged"):
        choice.mass_curve([one, np.array([1, np.nan, 0, 0], np.float32)])
    with pytest.raises(ConfigError, match="3 coordinates, but the model 4 parameters"):
        choice.mass_curve([one, one[:3]])
    with pytest.raises(ConfigError, match=r"omega is 1.5, but is a share"):
        choice.paper_choice_of_share(lambda: [one], 1.5, 4, 2)
    with pytest.raises(ConfigError, match="not negative"):
        choice.smallest_k(choice.share_curve([one]), -0.1)
    with pytest.raises(ConfigError, match="not negative"):
        choice.paper_choice(lambda: [one], -1.0, 4, 2)
    with pytest.raises(ConfigError, match="r is 0"):
        choice.steps(4, 0)
