"""The convergence theorem: what is printed, what can be proved, what a run does."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from sparsefed.certify.convergence import Descent, corollary, derived, memories, printed, sharp, terms, worst_delta
from sparsefed.defenses import build
from sparsefed.errors import ConfigError
from sparsefed.rng import rng
from sparsefed.types import Context
from sparsefed.vectors import as_blocks
from tests import reference

Vector = npt.NDArray[np.float64]
NUMBERS = st.floats(1e-3, 1e3)
DESCENTS = st.builds(Descent, NUMBERS, NUMBERS, NUMBERS, NUMBERS)
SHARES = st.floats(0.01, 1.0)


# --- the formulas ----------------------------------------------------------------------------------------------------


@given(DESCENTS, SHARES, st.integers(1, 10**6))
def test_the_bounds_are_their_printed_terms(descent: Descent, delta: float, rounds: int) -> None:
    g, l, s, gap = descent.rate, descent.smoothness, descent.moment, descent.gap  # noqa: E741
    way, memory = 2 * gap / (g * rounds), 4 * g**2 * l**2 * s * (1 - delta) / delta**2
    assert printed(descent, delta, rounds) == pytest.approx(way + g * l * s / 2 + memory)
    assert derived(descent, delta, rounds) == pytest.approx(way + g * l * s + memory)
    assert terms(descent, delta, rounds) == pytest.approx((way, g * l * s, memory))


@given(DESCENTS, st.lists(SHARES, min_size=1, max_size=40))
def test_the_sharp_bound_is_never_above_the_derived_one(descent: Descent, deltas: list[float]) -> None:
    best = sharp(descent, deltas)
    for rounds in range(1, len(deltas) + 1):
        assert best[rounds - 1] <= derived(descent, min(deltas), rounds) * (1 + 1e-12)
    assert bool((memories(deltas) <= 2 * math.sqrt(1 - min(deltas)) / min(deltas) + 1e-12).all())


@given(NUMBERS, NUMBERS, NUMBERS, SHARES, st.integers(1, 10**6))
def test_the_corollary_is_the_theorem_at_the_constant_rate(
    smoothness: float, moment: float, gap: float, delta: float, rounds: int
) -> None:
    descent = Descent(1 / math.sqrt(rounds), smoothness, moment, gap)
    assert corollary(smoothness, moment, gap, delta, rounds) == pytest.approx(printed(descent, delta, rounds))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Descent(0.0, 1, 1, 1), "rate is 0"),
        (lambda: Descent(1.0, math.inf, 1, 1), "smoothness is inf"),
        (lambda: Descent(1.0, 1, -1, 1), "moment is -1"),
        (lambda: derived(Descent(1.0, 1, 1, 1), 0.0, 3), "delta is 0"),
        (lambda: sharp(Descent(1.0, 1, 1, 1), [0.5, 1.5]), "delta is 1.5"),
        (lambda: corollary(1, 1, 1, 0.5, 0), "number of rounds is 0"),
    ],
)
def test_impossible_numbers_are_a_sentence(make: Callable[[], object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        make()


# --- is it a bound? --------------------------------------------------------------------------------------------------


def overshooting(rate: float, b: float, square: float, rounds: int) -> Vector:
    """E |grad f(x_t)|^2 for t < rounds of EF-SGD with C(p) = (1 + b) p on f = x^2 / 2, E |g|^2 = 1 wherever |x| <= 1.

    Exact: the second moments (E x^2, E x e, E e^2) follow a linear recursion, as E[g | x] = x. The noise has the
    variance 1 - x^2, so the moment bound holds at every x that is reached; `test_the_example_stays` says that
    |x| <= 1 is never left. Beyond, f may go on with slope 1 and no noise, so all assumptions hold everywhere.
    """
    xx, xe, ee = square, 0.0, 0.0
    found = []
    for _ in range(rounds):
        found.append(xx)
        xp, pp, ep = rate * xx + xe, rate**2 + 2 * rate * xe + ee, rate * xe + ee
        assert ep <= math.sqrt(ee * pp) + 1e-12
        xx, xe, ee = xx - 2 * (1 + b) * xp + (1 + b) ** 2 * pp, -b * xp + b * (1 + b) * pp, b**2 * pp
    return np.array(found)


def test_the_example_stays_where_its_moments_are_exact() -> None:
    """With noise +-sqrt(1 - x^2): |g| <= sqrt 2, so |e| <= E = b c sqrt 2 / (1 - b), and the next |x| is at most
    sqrt((1 - m)^2 + m^2) + (1 + b) E with m = (1 + b) c."""
    c, b = 0.5, 0.06
    m = (1 + b) * c
    assert math.hypot(1 - m, m) + (1 + b) * b * c * math.sqrt(2) / (1 - b) < 1
    signs = rng(0, "signs")
    x, e, last = np.full(1000, 0.6), np.zeros(1000), []
    for _ in range(200):
        p = c * (x + signs.choice([-1.0, 1.0], 1000) * np.sqrt(1 - x**2)) + e
        x, e = x - (1 + b) * p, -b * p
        last.append(float((x**2).mean()))
    assert abs(x).max() < 1
    assert float(np.mean(last[50:])) == pytest.approx(overshooting(c, b, 0.36, 200)[-1], rel=0.02)  # 150 000 draws


def test_the_printed_constant_is_exceeded_and_the_derived_one_is_not() -> None:
    c, b, rounds, start = 0.5, 0.06, 4000, 0.3
    delta, descent = 1 - b**2, Descent(c, 1.0, 1.0, start / 2)
    gradients = overshooting(c, b, start, rounds)
    assert gradients[-1] == pytest.approx((c / 2) / (1 - c * b / (1 - b)), rel=1e-9)  # the closed form of the docstring
    assert gradients.min() > 1.01 * printed(descent, delta, rounds)
    assert gradients.mean() <= sharp(descent, [delta] * rounds)[-1] <= derived(descent, delta, rounds)
    # The same in the units of the main text's theorem, where the rate is 1 / sqrt(R): l = c sqrt(R).
    smoothness = c * math.sqrt(rounds)
    assert gradients.min() > 1.01 * corollary(smoothness, 1.0, start / 2 / smoothness, delta, rounds)


@settings(max_examples=300)
@given(st.floats(0.01, 0.9), st.floats(0.0, 0.5), st.floats(0.0, 1.0), st.integers(1, 300))
def test_what_is_derived_bounds_the_example_everywhere(rate: float, b: float, start: float, rounds: int) -> None:
    m = (1 + b) * rate
    assume(math.hypot(1 - m, m) + (1 + b) * b * rate * math.sqrt(2) / (1 - b) <= 1)
    gradients = overshooting(rate, b, start, rounds)
    assert gradients.mean() <= sharp(Descent(rate, 1.0, 1.0, start / 2), [1 - b**2] * rounds)[-1] * (1 + 1e-9)


def test_without_compression_half_of_the_noise_is_attained() -> None:
    """So `sharp` cannot be improved where delta = 1."""
    gradients = overshooting(0.2, 0.0, 0.1, 3000)
    assert gradients.mean() == pytest.approx(sharp(Descent(0.2, 1.0, 1.0, 0.05), [1.0] * 3000)[-1], rel=1e-2)


def test_the_norm_without_its_square_is_not_bounded() -> None:
    """f with the slope 0.1 from far away, descended without noise at 1 / sqrt(R): nobody has arrived after R rounds."""
    slope, rounds = 0.1, 10_000
    way = slope * math.sqrt(rounds)
    bound = corollary(1e-6, slope**2, slope * way, 1.0, rounds)
    assert slope**2 <= bound < slope


class Waves:
    """f = sum_i h_i (1 - cos(x_i - s_i)): smooth, not convex, f* = 0."""

    def __init__(self, seed: int, d: int) -> None:
        draw = rng(seed, "objective")
        self.heights, self.shift = draw.uniform(0.2, 1.0, d), draw.normal(size=d)
        self.smoothness = float(self.heights.max())  # f'' = h cos

    def value(self, x: Vector) -> float:
        return float((self.heights * (1 - np.cos(x - self.shift))).sum())

    def gradient(self, x: Vector) -> Vector:
        found: Vector = self.heights * np.sin(x - self.shift)
        return found

    @property
    def steepest(self) -> float:
        """|grad f|^2 at most."""
        return float((self.heights**2).sum())


@settings(deadline=None, max_examples=150)
@given(st.integers(0, 10**6), st.integers(1, 8), st.data(), st.floats(0.01, 2.0))
def test_no_descent_without_noise_exceeds_what_is_derived(seed: int, d: int, data: st.DataObject, rate: float) -> None:
    """Not convex, any rate, and a compressor that errs in any direction as far as its delta allows."""
    objective, draw = Waves(seed, d), rng(seed, "compressor")
    keep = data.draw(st.floats(0.05, 1.0))
    x, e, squares, deltas = draw.normal(size=d), np.zeros(d), [], []
    start = objective.value(x)
    for _ in range(30):
        g = objective.gradient(x)
        squares.append(float(g @ g))
        p = rate * g + e
        wrong = draw.normal(size=d)
        left = wrong * math.sqrt((1 - keep) * float(p @ p) / float(wrong @ wrong))
        x, e = x - (p - left), left
        deltas.append(keep)
    bound = sharp(Descent(rate, objective.smoothness, objective.steepest, start), deltas)
    assert bool((np.cumsum(squares) / np.arange(1, 31) <= bound * (1 + 1e-9)).all())


# --- our server is EF-SGD --------------------------------------------------------------------------------------------


def ef_sgd(gradients: Sequence[list[float]], k: int, rates: Sequence[float]) -> Iterator[list[float]]:
    """The appendix' box with top-k, from x_0 = 0, with loops: the models after each round."""
    x = [0.0] * len(gradients[0])
    e = list(x)
    for g, rate in zip(gradients, rates, strict=True):
        p = [rate * a + b for a, b in zip(g, e, strict=True)]
        chosen = set(reference.topk(p, k))
        x = [a - (p[i] if i in chosen else 0.0) for i, a in enumerate(x)]
        e = [0.0 if i in chosen else a for i, a in enumerate(p)]
        yield x


def server(gradients: Sequence[list[float]], k: int, rates: Sequence[float], **more: Any) -> Iterator[list[float]]:
    """The models of our server, each round's cohort being two devices whose mean is the gradient."""
    defense = build("sparsefed", k=k, rho=0.0, clip_norm=math.inf, **more)
    d = len(gradients[0])
    state, theta = defense.init(d), torch.zeros(d, dtype=torch.float64)
    for t, (g, rate) in enumerate(zip(gradients, rates, strict=True), 1):
        cohort = torch.stack([torch.zeros(d), 2 * torch.tensor(g)])
        step = defense.step(state, as_blocks(cohort, 1), Context(t, rate))
        state, theta = step.state, theta - step.delta.double()
        yield theta.tolist()


VECTORS = st.integers(1, 10).flatmap(
    lambda d: st.lists(st.lists(st.integers(-5, 5).map(float), min_size=d, max_size=d), min_size=1, max_size=8)
)


@pytest.mark.parametrize("preset", ["paper", "authors-2021-05", "authors-2021-08"])
@settings(deadline=None, max_examples=60)
@given(VECTORS, st.data(), st.sampled_from([2.0, 1.0, 0.125]))
def test_at_a_constant_rate_the_server_is_ef_sgd_exactly(
    preset: str, gradients: list[list[float]], data: st.DataObject, rate: float
) -> None:
    k = data.draw(st.integers(1, len(gradients[0])))
    rates = [rate] * len(gradients)  # powers of 2 and small integers: float32 is exact, ties and all
    assert list(server(gradients, k, rates, preset=preset)) == list(ef_sgd(gradients, k, rates))


@pytest.mark.parametrize("rate", [0.1, 0.03])
def test_at_any_constant_rate_it_is_to_rounding(rate: float) -> None:
    gradients = rng(3, "gradients").normal(size=(50, 40)).tolist()
    ours, theirs = (list(f(gradients, 7, [rate] * 50)) for f in (server, ef_sgd))
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


def test_at_a_rate_that_changes_it_is_not() -> None:
    gradients, rates = [[4.0, 3.0], [0.0, 0.0]], [1.0, 0.5]
    assert list(ef_sgd(gradients, 1, rates)) == [[-4.0, 0.0], [-4.0, -3.0]]
    assert list(server(gradients, 1, rates)) == [[-4.0, 0.0], [-4.0, -1.5]]  # what waited is applied at today's rate
    assert list(server(gradients, 1, rates, preset="authors-2021-05")) == [[-4.0, 0.0], [-4.0, -3.0]]


def test_top_k_is_no_worse_than_its_worst_contraction() -> None:
    assert worst_delta(100, 25) == 0.25
    flat = [1.0] * 100
    assert sum(flat[i] ** 2 for i in reference.topk(flat, 25)) / 100 == 0.25
