"""The convergence theorem: what is printed, what can be proved, what a run does."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from sparsefed import config as configs
from sparsefed import data
from sparsefed.commands.certify import convergence_document as convergence_page
from sparsefed.commands.certify.measured_convergence import Convergence, check, measure_convergence
from sparsefed.config import Config
from sparsefed.core.errors import ConfigError
from sparsefed.core.rng import rng
from sparsefed.core.types import Context
from sparsefed.defenses import build
from sparsefed.kernels import as_blocks
from sparsefed.reports.document import Table
from sparsefed.reports.pictures import picture
from sparsefed.results.numbers import length
from sparsefed.theory.convergence import Descent, corollary, derived, memories, printed, sharp, terms, worst_delta
from tests.support import reference

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


@pytest.mark.slow
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


# --- measured --------------------------------------------------------------------------------------------------------


def settings_of(**changes: Any) -> Config:
    tables: dict[str, Any] = {
        "rounds": 400,
        "evaluate_every": 50,
        "data": {"name": "digits", "partition": "one_class", "devices": 90},
        "model": {"name": "softmax"},
        "train": {"cohort": 30, "lr": 0.01, "schedule": "constant", "sampling": "uniform", "weight_decay": 0.0},
        "defense": {"name": "sparsefed", "k": 150, "rho": 0.0, "clip_norm": math.inf},
    }
    for path, value in changes.items():
        table, key = path.split("__")
        tables[table] = tables.get(table, {}) | {key: value}
    return configs.parse(tables)


@pytest.fixture(scope="module")
def found() -> Convergence:
    return measure_convergence(settings_of())


def autograd(theta: Tensor) -> tuple[float, Tensor, list[Tensor]]:
    """f, grad f and every device's gradient at a model, by torch, in float64, a device at a time."""
    arrays = data.load("digits")
    federation = configs.build(settings_of()).setup.federation
    layer = theta.double().requires_grad_()
    losses = []
    for device in range(federation.device_count):
        batch = federation.gather(np.array([device]))
        x = ((batch.x.double() / 255 - arrays.mean[0]) / arrays.std[0]).flatten(1)
        losses.append(torch.nn.functional.cross_entropy(x @ layer[:640].view(10, 64).T + layer[640:], batch.y))
    each = [torch.autograd.grad(loss, layer, retain_graph=True)[0] for loss in losses]
    f = torch.stack(losses).mean()
    return float(f.detach()), torch.autograd.grad(f, layer)[0], each


@pytest.mark.slow
def test_what_is_looked_at_is_the_objective_of_uniform_cohorts(found: Convergence) -> None:
    loss, gradient, each = autograd(configs.build(settings_of()).theta)
    point = found.points[0]
    assert point.loss == pytest.approx(loss, rel=1e-6)
    assert point.gradient == pytest.approx(float(gradient @ gradient), rel=1e-5)
    torch.testing.assert_close(torch.stack(each).mean(0), gradient)
    # Of cohorts of 30 of 90: a device is in one in three, a pair in 30 * 29 of 90 * 89.
    products = torch.stack(each) @ torch.stack(each).T
    pairs = (float(products.sum()) - float(products.trace())) * 30 * 29 / (90 * 89)
    assert point.moment == pytest.approx((float(products.trace()) / 3 + pairs) / 30**2, rel=1e-5)


def test_the_smoothness_is_never_exceeded_and_nearly_reached(found: Convergence) -> None:
    """The largest curvature over many models: two classes equally likely, all others out of reach."""
    federation, arrays = configs.build(settings_of()).setup.federation, data.load("digits")
    batch = federation.gather(np.arange(90))
    x = torch.cat([((batch.x.double() / 255 - arrays.mean[0]) / arrays.std[0]).flatten(1), torch.ones(1500, 1)], 1)
    v = torch.from_numpy(np.repeat(1 / (90 * batch.sizes), batch.sizes))
    direction = torch.linalg.eigh((x * v[:, None]).T @ x).eigenvectors[:, -1]
    pair = torch.zeros(10, dtype=torch.float64)
    pair[0], pair[1] = math.sqrt(0.5), -math.sqrt(0.5)

    def curvature(layer: Tensor, side: Tensor) -> float:
        p = torch.softmax(x @ layer.T, 1)
        along = (x @ direction)[:, None] * side
        return float((v * ((p * along**2).sum(1) - (p * along).sum(1) ** 2)).sum())

    out_of_reach = torch.zeros(10, 65, dtype=torch.float64)
    out_of_reach[2:, -1] = -40.0
    assert curvature(out_of_reach, pair) == pytest.approx(found.proven.smoothness, rel=1e-6)
    for seed in range(50):
        layer, side = (torch.from_numpy(rng(seed, "layer").normal(size=size)) for size in ((10, 65), 10))
        assert curvature(layer, side / side.norm()) <= found.proven.smoothness


def test_the_moment_for_every_model_is_never_exceeded(found: Convergence) -> None:
    for size in (0.0, 0.1, 3.0, 100.0):
        theta = size * torch.from_numpy(rng(4, "models").normal(size=650).astype(np.float32))
        _, gradient, each = autograd(theta)
        square, mean_square = float(gradient @ gradient), float((torch.stack(each) ** 2).sum() / 90)
        phi = 60 / (30 * 89)
        assert phi * mean_square + (1 - phi) * square <= found.proven.moment
    assert found.measured.moment < found.proven.moment


def test_a_run_stays_below_its_bounds_and_they_come_to_say_something(found: Convergence) -> None:
    assert len(found.deltas) == 400 and all(150 / 650 <= delta < 1 for delta in found.deltas)
    assert [point.rounds for point in found.points] == sorted({*range(0, 401, 50), 1, 2, 5, 10, 20})
    plain = [derived(found.measured, min(found.deltas), rounds) for rounds in range(1, 401)]
    for least, bound, worst, whole in zip(
        found.curves["least"], found.curves["bound"], found.curves["worst"], plain, strict=True
    ):
        assert least <= bound <= min(worst, whole)
    assert (
        found.curves["least"][0] == found.points[0].gradient and found.curves["least"][-1] == found.points[-2].gradient
    )
    assert found.curves["bound"][-1] < found.curves["bound"][0] and found.says_something_from("bound") is not None


@pytest.mark.slow
def test_with_all_devices_every_round_the_bound_holds_for_sure() -> None:
    """No chance is left: the gradient is the objective's, and the run is the expectation."""
    whole = measure_convergence(settings_of(train__cohort=90, train__lr=0.02))
    assert whole.points[3].moment == pytest.approx(whole.points[3].gradient)
    seen = [point for point in whole.points if point.rounds < 400]
    assert all(least <= bound for least, bound in zip(whole.curves["least"], whole.curves["bound"], strict=True))
    assert np.mean([point.gradient for point in seen]) <= whole.curves["bound"][-1]


def test_the_rounds_are_those_of_a_run(found: Convergence) -> None:
    built = configs.build(settings_of())
    some = islice(built.reports(built.begin()), 20)
    assert tuple(report.metrics["delta"] for report in some) == found.deltas[:20]


def test_progress_is_told() -> None:
    seen: list[tuple[float, float]] = []
    measure_convergence(
        settings_of(data__devices=20, train__cohort=2).model_copy(update={"rounds": 3}),
        on_progress=lambda progress: seen.append((progress.done, progress.total)),
    )
    assert seen == [(t, 3) for t in range(1, 4)]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"model__name": "mlp"}, "model.name is 'mlp'.*'softmax'"),
        ({"defense__rho": 0.9}, "defense.rho is 0.9.*for 0.0"),
        ({"train__sampling": "epoch"}, "train.sampling is 'epoch'.*'uniform'"),
        ({"train__schedule": "cosine"}, "'constant'"),
        ({"train__weight_decay": 1e-4}, "train.weight_decay is 0.0001"),
        ({"train__mode": "fedavg"}, "'uncompressed'"),
        ({"defense__pre": [{"name": "nnm", "f": 1}]}, r"defense.pre is \[\{'name': 'nnm'"),
        ({"defense__clip_norm": 0.01}, "round 1 clipped or dropped.*clip_norm = inf"),
        ({"threat__count": 3, "attack__name": "sign_flip"}, "without attackers; set attack = false"),
    ],
)
def test_what_the_theorem_does_not_speak_of_is_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        measure_convergence(settings_of(**change))


def test_the_default_momentum_is_refused() -> None:
    config = configs.parse(
        {"model": {"name": "softmax"}, "data": {"name": "digits"}, "defense": {"name": "sparsefed", "k": 5}}
    )
    with pytest.raises(ConfigError, match=r"defense\.rho is 0\.9"):
        check(config)


# --- told ------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_page_tells_what_was_found(found: Convergence, tmp_path: Path) -> None:
    page, numbers = found.save(tmp_path / "new")
    text = page.read_text()
    assert "<h1>SparseFed convergence</h1>" in text and json.loads(numbers.read_text())["title"] in text
    rows = next(block.rows for block in found.document().sections[0].blocks if isinstance(block, Table))
    for row in rows:
        assert all(f"<td>{cell.text}</td>" in text for cell in row[1:])
    assert [row[0].text for row in rows] == ["1", "2", "5", "10", "20", "50", "100", "200", "400"]
    said = convergence_page.sentences(found)
    assert f"at most {length(found.curves['bound'][-1])} with what was measured" in said[0]
    assert f"from round {found.says_something_from('bound')} on with what was measured" in said[1]


def test_the_chart_draws_every_curve_and_the_start(found: Convergence) -> None:
    spec = convergence_page.chart(found).to_dict()
    data_of = [layer["data"].get("values") or spec["datasets"][layer["data"]["name"]] for layer in spec["layer"]]
    lines = {value["line"] for value in data_of[0]}
    assert lines == set(convergence_page.HEAD[1:])
    assert data_of[1][0]["value"] == pytest.approx(found.points[0].gradient, rel=1e-3)
    assert picture(convergence_page.chart(found), "png").startswith(b"\x89PNG")
