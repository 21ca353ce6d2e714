"""Noise on the mean, on the model, the clip norm that follows a quantile, and what the noise is worth as privacy."""

from __future__ import annotations

import math
import sys
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from sparsefed.core.errors import ConfigError
from sparsefed.core.federation import epoch
from sparsefed.core.rng import rng
from sparsefed.core.schedule import triangular
from sparsefed.core.types import Context, Defense, Step
from sparsefed.defenses import assemble, build
from sparsefed.defenses.crfl import crfl
from sparsefed.defenses.dp_noise import SIGMA_FIGURES, SIGMA_TABLE, dp_noise
from sparsefed.kernels import as_blocks
from sparsefed.theory import privacy
from sparsefed.theory.privacy import Guarantee, guarantee, of_run
from tests.support import reference
from tests.support import reference as twin

CLOSE: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-6}
Rows = npt.NDArray[np.float32]
KINDS = ("plain", "duplicates", "zeros", "offset", "attackers", "unusable")


def cohort(seed: int, round: int, n: int, d: int, kind: str) -> Rows:
    """Rows of every difficult kind."""
    draw = rng(seed, "rows", round)
    rows = draw.normal(size=(n, d)) * draw.uniform(0.1, 5, size=(n, 1))
    if kind == "duplicates":
        rows[:] = rows[draw.integers(0, n, n)]
    if kind == "zeros":
        rows[draw.random(n) < 0.7] = 0
    if kind == "offset":
        rows = 10.0 ** draw.integers(3, 5) + rows * 10.0 ** draw.integers(-6, -2)
    if kind == "attackers":
        rows = rows[:1] + rows * 1e-4
        rows[: n // 3] *= -1e6
    if kind == "unusable":
        rows[draw.random(n) < 0.4, draw.integers(d)] = draw.choice([math.nan, math.inf, -math.inf])
    return rows.astype(np.float32)


def z(seed: int, purpose: str, round: int, d: int) -> list[float]:
    """The noise of a round, drawn as the rules say that they draw it."""
    return [float(value) for value in rng(seed, purpose, round).standard_normal(d, dtype=np.float32)]


def noisy(**params: Any) -> Defense:
    return assemble("dp_noise", dp_noise, {"clip_norm": 5.0, **params})


def step(defense: Defense, rows: Rows, context: Context, state: Any = None, block: int = 3) -> Step:
    state = defense.init(rows.shape[1]) if state is None else state
    return defense.step(state, as_blocks(rows, block), context)


def assert_near(ours: Tensor, theirs: list[float], scale: float = 1.0) -> None:
    assert ours.tolist() == pytest.approx(theirs, rel=CLOSE["rtol"], abs=CLOSE["atol"] * max(1.0, scale))


# Noise on the mean or on the update.


@settings(deadline=None, max_examples=80)
@given(
    seed=st.integers(0, 10**6),
    n=st.integers(1, 7),
    d=st.integers(1, 6),
    kind=st.sampled_from(KINDS),
    placement=st.sampled_from(["mean", "update"]),
    sigma=st.sampled_from([0.0, 0.025, 2.0]),
    rho=st.sampled_from([0.0, 0.9]),
    mode=st.sampled_from(["uncompressed", "fedavg"]),
    clip_norm=st.sampled_from([1e-3, 5.0, 1e9]),
)
def test_dp_noise_is_its_twin(
    seed: int, n: int, d: int, kind: str, placement: str, sigma: float, rho: float, mode: str, clip_norm: float
) -> None:
    defense = noisy(sigma=sigma, placement=placement, rho=rho, mode=mode, clip_norm=clip_norm)
    server = twin.DpNoise(d, sigma, placement, clip_norm, rho, mode == "fedavg")
    state = defense.init(d)
    for t in (1, 2, 3):
        rows, lr = cohort(seed, t, n, d, kind), 0.5 / t
        done = step(defense, rows, Context(t, lr, seed), state)
        state = done.state
        largest = float(np.abs(rows[np.isfinite(rows)]).max(initial=0))
        assert_near(done.delta, server.step(rows.tolist(), lr, z(seed, "dp-noise", t, d)), min(largest, clip_norm))


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 10**6), n=st.integers(1, 6), k=st.integers(1, 5), kind=st.sampled_from(KINDS[:3]))
def test_with_topk_the_noise_is_under_or_over_sparsefed(seed: int, n: int, k: int, kind: str) -> None:
    d, sigma, lr = 5, 0.5, 0.25
    under, over = noisy(sigma=sigma, k=k), noisy(sigma=sigma, k=k, placement="update")
    plain, memory = build("sparsefed", k=k, clip_norm=5.0), reference.TopkMemory(d, k, 0.9)
    states = [defense.init(d) for defense in (under, over, plain)]
    for t in (1, 2, 3):
        rows, noise = cohort(seed, t, n, d, kind), z(seed, "dp-noise", t, d)
        mean = twin.noise_mean(rows.tolist(), 5.0) or []
        ours = [step(x, rows, Context(t, lr, seed), s) for x, s in zip((under, over, plain), states, strict=True)]
        expected = memory.step([u + sigma * e for u, e in zip(mean, noise, strict=True)])
        assert_near(ours[0].delta, [lr * value for value in expected])
        assert_near(ours[1].delta, [a + sigma * e for a, e in zip(ours[2].delta.tolist(), noise, strict=True)])
        states = [one.state for one in ours]


@pytest.mark.parametrize("placement", ["mean", "update"])
def test_without_noise_it_is_the_clipping_rule_to_the_bit(placement: str) -> None:
    none, clipping = noisy(sigma=0, placement=placement), build("clipping", clip_norm=5.0)
    states = [none.init(7), clipping.init(7)]
    for t in range(3):
        rows = cohort(1, t, 6, 7, "plain")
        a, b = (step(x, rows, Context(t, 0.1), s) for x, s in zip((none, clipping), states, strict=True))
        assert torch.equal(a.delta, b.delta)
        states = [a.state, b.state]


@pytest.mark.parametrize("sigma", [SIGMA_TABLE, SIGMA_FIGURES])
def test_the_noise_is_normal_with_the_stated_deviation_and_new_each_round(sigma: float) -> None:
    d, rows = 40_000, np.zeros((3, 40_000), np.float32)
    defense = noisy(sigma=sigma, rho=0.0)
    first, second, other = (
        step(defense, rows, Context(t, 1.0, seed)).delta.double() / sigma for t, seed in ((1, 0), (2, 0), (1, 1))
    )
    for sample in (first, second, other):
        assert abs(float(sample.mean())) < 5 / math.sqrt(d)
        assert abs(float(sample.square().mean()) - 1) < 5 * math.sqrt(2 / d)
        assert abs(float((sample.abs() < 1).double().mean()) - 0.682689) < 5 * math.sqrt(0.2166 / d)
    for a, b in ((first, second), (first, other), (second, other)):
        assert abs(float(a @ b)) / d < 5 / math.sqrt(d)


@pytest.mark.parametrize(
    ("params", "word"),
    [
        ({"sigma": -1.0}, "sigma is -1.0"),
        ({"sigma": math.nan}, "sigma is nan"),
        ({"sigma": math.inf}, "sigma is inf"),
        ({"sigma": 1.0, "placement": "nowhere"}, "placement"),
        ({"sigma": 1.0, "k": 0}, "k is 0"),
    ],
)
def test_impossible_noise_is_refused(params: dict[str, Any], word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        noisy(**params)


# Noise on the model.


@settings(deadline=None, max_examples=80)
@given(
    seed=st.integers(0, 10**6),
    n=st.integers(1, 7),
    d=st.integers(1, 6),
    kind=st.sampled_from(KINDS),
    model_norm=st.sampled_from([1e-3, 2.0, 15.0, 1e9]),
    sigma=st.sampled_from([0.0, 0.01, 3.0]),
    theta_size=st.sampled_from([0.0, 1.0, 1e3]),
)
def test_crfl_is_its_twin(
    seed: int, n: int, d: int, kind: str, model_norm: float, sigma: float, theta_size: float
) -> None:
    rows = cohort(seed, 1, n, d, kind)
    theta = (rng(seed, "theta").normal(size=d) * theta_size).astype(np.float32)
    defense = assemble("crfl", crfl, {"model_norm": model_norm, "sigma": sigma, "clip_norm": 5.0})
    done = step(defense, rows, Context(4, 0.5, seed, theta=torch.from_numpy(theta)))
    mean = twin.noise_mean(rows.tolist(), 5.0)
    if mean is None:
        assert not done.delta.any()
        return
    noise = [sigma * value for value in z(seed, "crfl-noise", 4, d)]
    model = twin.crfl_model(theta.tolist(), [0.5 * u for u in mean], model_norm, noise)
    assert_near(done.delta, [t - w for t, w in zip(theta.tolist(), model, strict=True)], theta_size)
    after = theta.astype(np.float64) - done.delta.double().numpy() - noise
    assert np.linalg.norm(after) <= model_norm * (1 + 1e-5) + 1e-6 * (theta_size + 4 * sigma) * d


def test_a_small_update_of_a_large_model_does_not_drown() -> None:
    theta = torch.full((4,), 4096.0)
    rows = np.full((2, 4), 1e-4, np.float32)
    defense = assemble("crfl", crfl, {"model_norm": 1e6, "sigma": 0.0})
    assert step(defense, rows, Context(1, 1.0, theta=theta)).delta.tolist() == pytest.approx([1e-4] * 4, rel=1e-6)


def test_crfl_reports_what_it_kept_and_leaves_theta_alone() -> None:
    theta = torch.tensor([3.0, 4.0])
    defense = assemble("crfl", crfl, {"model_norm": 1.0, "sigma": 0.1})
    done = step(defense, np.zeros((2, 2), np.float32), Context(1, 1.0, theta=theta))
    assert (done.stats["model_length"], done.stats["model_kept"]) == pytest.approx((5.0, 0.2))
    assert theta.tolist() == [3.0, 4.0]


def test_crfl_asks_for_the_model_and_for_a_length() -> None:
    defense = assemble("crfl", crfl, {"model_norm": 1.0, "sigma": 0.1})
    with pytest.raises(ConfigError, match="theta"):
        step(defense, np.ones((2, 2), np.float32), Context(1, 1.0))
    for wrong in ({"model_norm": 0.0, "sigma": 0.1}, {"model_norm": 1.0, "sigma": -0.1}):
        with pytest.raises(ConfigError, match="choose"):
            assemble("crfl", crfl, wrong)


# The clip norm that follows a quantile.


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 10**6),
    n=st.integers(1, 8),
    d=st.integers(1, 4),
    kind=st.sampled_from(KINDS),
    clip_norm=st.sampled_from([1e-3, 1.0, 5.0, 1e4]),
    quantile=st.sampled_from([0.1, 0.5, 0.9]),
    rate=st.sampled_from([0.2, 1.0]),
)
def test_quantile_clipping_is_its_twin(
    seed: int, n: int, d: int, kind: str, clip_norm: float, quantile: float, rate: float
) -> None:
    defense = build("clipping", clip="quantile", clip_norm=clip_norm, quantile=quantile, clip_rate=rate, rho=0.0)
    server, state = twin.QuantileClip(clip_norm, quantile, rate), defense.init(d)
    for t in range(1, 6):
        rows, context = cohort(seed, t, n, d, kind), Context(t, 1.0)
        # float32 state: a norm that is the clip norm up to rounding may fall on either side
        assume(not any(math.isclose(twin.noise_norm(row), server.clip_norm, rel_tol=1e-5) for row in rows.tolist()))
        assert defense.budget(state, context) == pytest.approx(server.clip_norm, rel=1e-5)
        used = server.clip_norm
        done = step(defense, rows, context, state)
        assert_near(done.delta, server.step(rows.tolist()) or [0.0] * d, used)
        state = done.state


def test_an_update_as_long_as_the_clip_norm_counts_as_unclipped() -> None:
    defense = build("clipping", clip="quantile", clip_norm=2.0, quantile=0.25, clip_rate=1.0)
    done = step(defense, np.array([[2.0], [-2.0], [2.5], [0.0]], np.float32), Context(1, 1.0))
    assert defense.budget(done.state, Context(2, 1.0)) == pytest.approx(2 * math.exp(-(0.75 - 0.25)))


@pytest.mark.slow
@pytest.mark.parametrize("quantile", [0.2, 0.5, 0.8])
@pytest.mark.parametrize("start", [1e-2, 1e2])
def test_the_clip_norm_settles_at_the_quantile(quantile: float, start: float) -> None:
    """Norms are exponential, their quantile is -ln(1 - q); 200 rounds to find it, 200 to average over."""
    defense = build("clipping", clip="quantile", clip_norm=start, quantile=quantile, clip_rate=0.2)
    state, logs = defense.init(1), []
    for t in range(400):
        rows = rng(0, "norms", t).exponential(size=(50, 1)).astype(np.float32)
        state = step(defense, rows, Context(t, 1.0), state, block=50).state
        logs.append(math.log(defense.budget(state, Context(t, 1.0))))
    assert float(np.mean(logs[200:])) == pytest.approx(math.log(-math.log(1 - quantile)), abs=0.06)


# What the noise is worth: the accountant against the analytic curve.


def epsilon(sigma: float, norms: list[float], n: int, devices: int, sampling: str, **given: Any) -> float:
    made = guarantee(sigma, norms, cohort=n, population=devices, sampling=sampling, **given)
    assert made.epsilon is not None
    return made.epsilon


@settings(deadline=None, max_examples=60)
@given(mu=st.floats(0.01, 8), delta=st.sampled_from([1e-3, 1e-5, 1e-8]), sampling=st.sampled_from(["epoch", "uniform"]))
def test_one_release_has_the_analytic_epsilon(mu: float, delta: float, sampling: str) -> None:
    """All devices in one round: sampling hides nothing, and the move of the mean is 2 L / n."""
    ours = epsilon(2 * 5.0 / (10 * mu), [5.0], 10, 10, sampling, delta=delta)
    assert ours == pytest.approx(twin.gaussian_epsilon(mu, delta), rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("multiplier", [1.0, 4.0])
def test_other_accountants_of_the_library_are_no_smaller(multiplier: float) -> None:
    """Privacy loss distributions agree to 1e-4; Renyi's is at most a tenth larger. 4 releases each."""
    dp, count, delta = import_module("dp_accounting"), 4, 1e-5
    ours = epsilon(2 * multiplier, [1.0] * count, 1, 1, "epoch", delta=delta)
    event = dp.SelfComposedDpEvent(dp.GaussianDpEvent(multiplier), count)
    distribution, renyi = dp.pld.PLDAccountant(), dp.rdp.RdpAccountant()
    assert ours * (1 - 1e-9) <= distribution.compose(event).get_epsilon(delta) <= ours * (1 + 1e-4)
    assert ours <= renyi.compose(event).get_epsilon(delta) <= 1.1 * ours


def test_the_library_doubles_the_sensitivity_in_one_accountant_only() -> None:
    """Why the 2 of 'replace one' is in our mu: a change of the library here must not pass unseen."""
    dp = import_module("dp_accounting")
    replaced = dp.NeighboringRelation.REPLACE_ONE
    distribution = dp.pld.PLDAccountant(replaced).compose(dp.GaussianDpEvent(2.0)).get_epsilon(1e-5)
    assert distribution == pytest.approx(twin.gaussian_epsilon(1.0, 1e-5), rel=1e-4)
    renyi = dp.rdp.RdpAccountant(neighboring_relation=replaced)
    whole = renyi.compose(dp.SampledWithoutReplacementDpEvent(10, 10, dp.GaussianDpEvent(2.0))).get_epsilon(1e-5)
    assert twin.gaussian_epsilon(0.5, 1e-5) <= whole <= 1.2 * twin.gaussian_epsilon(0.5, 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("mu", [0.3, 1.0, 2.0])
@pytest.mark.parametrize("share", [0.01, 0.3])
def test_a_sampled_round_is_between_the_truth_of_one_pair_and_no_sampling(mu: float, share: float) -> None:
    n, devices, delta = int(1000 * share), 1000, 1e-5
    ours = epsilon(2 / (n * mu), [1.0], n, devices, "uniform", delta=delta)
    assert twin.sampled_delta(mu, share, ours) <= delta
    assert ours <= twin.gaussian_epsilon(mu, delta) * (1 + 1e-6)


def test_many_sampled_rounds_cost_no_less_than_poisson_sampling_and_at_most_two_and_a_half_times_that() -> None:
    """Each device on its own with the same chance, a mean that moves as far, and the tight accountant for it."""
    dp, mu, share, rounds = import_module("dp_accounting"), 1.0, 0.01, 2400
    event = dp.PoissonSampledDpEvent(share, dp.GaussianDpEvent(1 / mu))
    poisson = dp.pld.PLDAccountant(value_discretization_interval=1e-3).compose(event, rounds).get_epsilon(1e-5)
    assert poisson <= epsilon(2 / (100 * mu), [1.0] * rounds, 100, 10_000, "uniform", delta=1e-5) <= 2.5 * poisson


def test_weak_noise_is_accounted_by_the_rounds_a_device_can_be_in() -> None:
    mu, rounds, share, delta = 4.0, 300, 0.02, 1e-5
    ours = epsilon(2 / (2 * mu), [1.0] * rounds, 2, 100, "uniform", delta=delta)
    m = next(m for m in range(rounds) if twin.binomial_tail(rounds, share, m) <= delta / 2)
    expected = twin.gaussian_epsilon(mu * math.sqrt(m), delta - twin.binomial_tail(rounds, share, m))
    assert ours == pytest.approx(expected, rel=1e-6)


def test_an_epoch_counts_once_at_its_worst_round() -> None:
    """10 devices by 4: cohorts of 4, 4 and 2; the small one is the worst, and a begun epoch has not reached it."""
    sizes = [len(epoch(10, 4, 0, t)) for t in range(1, 9)]
    assert sizes == [4, 4, 2, 4, 4, 2, 4, 4]
    norms = [1.0, 1.0, 1.0, 1.0, 3.0, 1.0, 0.5, 0.25]
    mus = [max(2 * norm / size for norm, size in zip(norms[a:b], sizes[a:b], strict=True)) for a, b in ((0, 3), (3, 6))]
    mu = math.sqrt(mus[0] ** 2 + mus[1] ** 2 + (2 * 0.5 / 4) ** 2) / 0.7
    assert epsilon(0.7, norms, 4, 10, "epoch", delta=1e-5) == pytest.approx(twin.gaussian_epsilon(mu, 1e-5), rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("sampling", ["epoch", "uniform"])
def test_more_noise_costs_less_and_more_rounds_cost_more(sampling: str) -> None:
    by_sigma = [epsilon(sigma, [5.0] * 300, 100, 10_000, sampling) for sigma in (0.01, 0.1, 1.0)]
    by_rounds = [epsilon(0.2, [5.0] * rounds, 100, 10_000, sampling) for rounds in (1, 150, 900)]
    assert by_sigma == sorted(by_sigma, reverse=True)
    assert by_rounds == sorted(by_rounds)
    assert len(set(by_sigma)) == 3
    assert len(set(by_rounds)) == 3


@pytest.mark.slow
def test_clip_norms_that_vary_cost_between_their_root_mean_square_and_their_largest() -> None:
    norms = [1.0] * 20 + [0.9] * 20 + [0.3] * 20
    root = math.sqrt(sum(norm**2 for norm in norms) / len(norms))
    low, ours, high = (epsilon(0.1, x, 50, 1000, "uniform") for x in ([root] * 60, norms, [max(norms)] * 60))
    assert low < ours < high


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=20))
def test_moves_are_rounded_up_and_by_less_than_a_fifth_where_they_matter(mus: list[float]) -> None:
    for mu, rounded in zip(mus, privacy._rounded_up(mus), strict=True):
        assert mu <= rounded
        assert rounded <= max(1.19 * mu, max(mus) / 8, 1e-5)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("sampling", ["epoch", "uniform"])
def test_extreme_noise_still_has_a_number(sampling: str) -> None:
    assert epsilon(1e9, [5.0] * 10, 10, 1000, sampling) == 0
    assert epsilon(1e-9, [5.0] * 10, 10, 1000, sampling) > 1e15
    assert epsilon(1.0, [0.0] * 10, 10, 1000, sampling) == pytest.approx(0, abs=1e-4)


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 10**6),
    n=st.integers(2, 6),
    kind=st.sampled_from(KINDS),
    instead=st.sampled_from(["opposite", "zero", "far", "nan"]),
)
def test_one_device_replaced_moves_the_mean_by_no_more_than_accounted(
    seed: int, n: int, kind: str, instead: str
) -> None:
    """Also where the update becomes unusable: 2 L over the number of updates that are kept with it."""
    rows, defense = cohort(seed, 1, n, 3, kind), noisy(sigma=0, rho=0.0, clip_norm=2.0)
    other = rows.copy()
    other[0] = {"opposite": -rows[0], "zero": np.zeros(3), "far": -1e8, "nan": math.nan}[instead]
    a, b = (step(defense, x, Context(1, 1.0)) for x in (rows, other))
    kept = n - min(a.stats["dropped"], b.stats["dropped"])
    assume(max(a.stats["dropped"], b.stats["dropped"]) < n)
    assert float((a.delta - b.delta).norm()) <= 2 * 2.0 / kept * (1 + 1e-5)


def test_lost_updates_cost() -> None:
    assert epsilon(0.2, [5.0] * 24, 10, 10, "epoch", dropped=5) == pytest.approx(
        epsilon(0.1, [5.0] * 24, 10, 10, "epoch")
    )


# What a run guarantees.

RUN: dict[str, Any] = {"cohort": 100, "population": 10_000, "sampling": "epoch", "lrs": [0.1] * 2400}


def run(rule: str = "dp_noise", facts: dict[str, Any] | None = None, **params: Any) -> Guarantee:
    return of_run(rule, {"sigma": 0.2, "clip_norm": 5.0, **params}, **{**RUN, **(facts or {})})


@pytest.mark.parametrize(
    ("params", "facts", "reason"),
    [
        ({"sigma": 0.0}, {}, "no noise"),
        ({"clip_norm": None}, {}, "not clipped"),
        ({"clip_norm": math.inf}, {}, "not clipped"),
        ({"clip": "quantile"}, {}, "quantile"),
        ({"pre": "anything"}, {}, "pre-aggregation"),
        ({"placement": "update"}, {}, "momentum"),
        ({"placement": "update", "rho": 0.0, "k": 10}, {}, "top-k"),
        ({}, {"sampling": "mine:own"}, "mine:own"),
        ({}, {"dropped": 100}, "unusable"),
    ],
)
def test_no_guarantee_has_a_reason(
    params: dict[str, Any], facts: dict[str, Any], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "dp_accounting", None)  # nothing to account: nothing to install
    if "pre" in params:
        monkeypatch.setattr("sparsefed.defenses.pre_aggregation.PRE", {"anything": lambda: lambda rows, _: rows})
    made = run(facts=facts, **params)
    assert (made.epsilon, made.delta) == (None, None)
    assert made.sentence.startswith("no guarantee: ")
    assert reason in made.sentence


def test_what_follows_the_noise_costs_nothing() -> None:
    plain = run().epsilon
    assert plain == epsilon(0.2, [5.0] * 2400, 100, 10_000, "epoch")
    assert run(k=10).epsilon == run(rho=0.0).epsilon == run(preset="authors-2021-05").epsilon == plain


def test_clip_norms_follow_mode_preset_and_placement() -> None:
    lrs = [triangular(0.2, 240, 0.3)(t) for t in range(1, 241)]
    scaled = epsilon(0.2, [5 * lr for lr in lrs], 100, 10_000, "epoch")
    facts = {"lrs": lrs}
    assert run(facts=facts, mode="fedavg", preset="authors-2021-08").epsilon == scaled
    assert run(facts=facts, clip="adaptive").epsilon == scaled
    assert run(facts=facts, placement="update", rho=0.0).epsilon == scaled
    whole = epsilon(0.2, [5.0] * 240, 100, 10_000, "epoch")
    assert run(facts=facts, mode="fedavg").epsilon == whole
    assert run(facts=facts, mode="fedavg", placement="update", rho=0.0).epsilon == whole


def test_the_papers_noise_promises_next_to_nothing() -> None:
    """Its text says so too; here is the number: 24 releases at a multiplier of 0.25."""
    made = run(sigma=SIGMA_TABLE)
    assert made.epsilon == pytest.approx(twin.gaussian_epsilon(math.sqrt(24) * 4, 1e-5), rel=1e-6)
    assert made.sentence.startswith("epsilon = 275 at delta = 1e-05")  # 274.67, and never rounded down
    assert "very little" in made.sentence
    assert "very little" not in run(sigma=1.0).sentence


def test_delta_is_below_one_device() -> None:
    assert privacy.usual_delta(100) == 1e-5
    assert privacy.usual_delta(10**6) == pytest.approx(10**-6.6)


def test_another_rule_is_not_accounted_for() -> None:
    assert (
        of_run("crfl", {}, **RUN).sentence
        == "no guarantee: only the rule dp_noise is accounted for, and this is 'crfl'"
    )


def test_without_the_accountant_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(ConfigError, match=r"pip install 'sparsefed\[privacy\]'"):
        run()


@pytest.mark.parametrize(
    "wrong",
    [{"sigma": -1.0}, {"clip_norms": [math.nan]}, {"cohort": 11}, {"cohort": 0}, {"delta": 0.0}, {"delta": 1.0}],
)
def test_impossible_facts_are_refused(wrong: dict[str, Any]) -> None:
    facts: dict[str, Any] = {"sigma": 1.0, "clip_norms": [1.0], "cohort": 1, "population": 10, "sampling": "uniform"}
    with pytest.raises(ConfigError):
        guarantee(**{**facts, **wrong})
