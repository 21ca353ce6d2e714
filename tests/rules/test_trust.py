"""FLTrust, FoolsGold, DnC and SignGuard: against their twins, their laws, and what their papers claim."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from sparsefed.core.errors import ConfigError
from sparsefed.core.rng import rng
from sparsefed.core.types import Context, Defense, IntArray, State, Step
from sparsefed.defenses import aggregate, assemble
from sparsefed.defenses.dnc import dnc, outlier_scores
from sparsefed.defenses.fltrust import fltrust
from sparsefed.defenses.foolsgold import alphas, cosines, foolsgold
from sparsefed.defenses.signguard import coordinates, largest_cluster, signguard, signguard_sim
from sparsefed.kernels import RowsBlock
from tests.support import reference as twin

Rows = list[list[float]]
Builder = Callable[..., Any]

D, N = 30, 12
RULES: dict[str, tuple[Builder, dict[str, Any]]] = {
    "fltrust": (fltrust, {}),
    "foolsgold": (foolsgold, {}),
    "foolsgold, few remembered": (foolsgold, {"remember": 5}),
    "dnc": (dnc, {"f": 3}),
    "dnc, drawn": (dnc, {"f": 3, "iterations": 3, "subsample": 10}),
    "signguard": (signguard, {"share": 0.5}),
    "signguard_sim": (signguard_sim, {"share": 0.5}),
}


def made(builder: Builder, **params: Any) -> Defense:
    """The rule by itself: no momentum, no learning rate, no clipping."""
    return assemble("rule", builder, {"rho": 0.0, "mode": "fedavg", **params})


def sent(rows: Tensor, senders: Sequence[int] | IntArray | None = None, block_size: int = 100) -> list[RowsBlock]:
    names = np.arange(len(rows)) if senders is None else np.asarray(senders)
    cuts = range(0, len(rows), block_size)
    return [RowsBlock(rows[a : a + block_size], names[a : a + block_size]) for a in cuts]


def once(builder: Builder, rows: Tensor, root: Tensor | None = None, seed: int = 0, **params: Any) -> Tensor:
    defense = made(builder, **params)
    return defense.step(defense.init(rows.shape[1]), sent(rows), Context(0, 1.0, seed, root=root)).delta


def close(ours: Tensor, theirs: Sequence[float], scale: float) -> None:
    """Float32 sums of numbers of that scale."""
    np.testing.assert_allclose(ours.numpy(), theirs, rtol=2e-5, atol=1e-6 * scale)


def table(rows: Rows) -> Tensor:
    return torch.tensor(rows, dtype=torch.float32)


def scale_of(rows: Tensor) -> float:
    return float(rows.abs().max())


@st.composite
def cohorts(draw: st.DrawFn, least: int = 1) -> Tensor:
    """Small integers with duplicates and zeros; tiny rows on a large common offset; close rows beside huge ones."""
    d, n = draw(st.integers(1, 5)), draw(st.integers(least, 9))
    row = st.lists(st.integers(-3, 3).map(float), min_size=d, max_size=d)
    rows = draw(st.lists(row, min_size=n, max_size=n))
    kind = draw(st.sampled_from(["integers", "colluders", "offset", "huge"]))
    if kind == "colluders":
        rows = [rows[0] if i % 3 == 0 else r for i, r in enumerate(rows)]
    if kind == "offset":
        size, offset = draw(st.sampled_from([1e-3, 1e-6])), draw(st.sampled_from([1e3, 1e4]))
        base = draw(row)
        return (torch.tensor(rows, dtype=torch.float64) * size + offset * torch.tensor(base)).float()
    if kind == "huge":
        noise = torch.from_numpy(rng(draw(st.integers(0, 99)), "honest").normal(size=(n, d)))
        honest = 1 + 0.01 * noise
        honest[: (n - 1) // 3] = 1e6 * torch.tensor(rows[0])
        return honest.float()
    return table(rows)


# Laws.


def cohort(seed: int, n: int = N) -> Tensor:
    generator = rng(seed, "cohort")
    return torch.from_numpy((1 + generator.normal(size=(n, D)) * generator.uniform(0.3, 3, (n, 1))).astype(np.float32))


def three_rounds(name: str, seed: int, shuffled: bool = False, block_size: int = 100) -> list[Step]:
    """Partly the same senders each round."""
    builder, params = RULES[name]
    defense = made(builder, **params)
    state, steps = defense.init(D), []
    for t in range(3):
        rows, senders = cohort(seed + t), np.arange(N) * (t + 1)
        order = rng(seed, "order", t).permutation(N) if shuffled else np.arange(N)
        context = Context(t, 1.0, seed, root=torch.ones(D))
        steps.append(defense.step(state, sent(rows[torch.from_numpy(order)], senders[order], block_size), context))
        state = steps[-1].state
    return steps


@pytest.mark.parametrize("name", sorted(RULES))
@settings(deadline=None, max_examples=10)
@given(seed=st.integers(0, 10**6))
def test_neither_order_nor_blocks_matter(name: str, seed: int) -> None:
    whole = three_rounds(name, seed)
    for other in (three_rounds(name, seed, shuffled=True), three_rounds(name, seed, block_size=5)):
        for a, b in zip(whole, other, strict=True):
            torch.testing.assert_close(a.delta, b.delta, rtol=1e-5, atol=1e-6)
            assert a.stats == pytest.approx(b.stats)
            assert a.state.keys() == b.state.keys()
            assert all(torch.equal(a.state[key], b.state[key]) for key in a.state)


@pytest.mark.parametrize("name", sorted(RULES))
def test_nothing_given_is_written_to(name: str) -> None:
    builder, params = RULES[name]
    defense, rows, root = made(builder, **params), cohort(1), torch.ones(D)
    first = defense.step(defense.init(D), sent(rows), Context(0, 1.0, root=root)).state
    copies = {key: value.clone() for key, value in first.items()}
    steps = [defense.step(first, sent(rows), Context(1, 1.0, root=root)) for _ in range(2)]
    assert torch.equal(steps[0].delta, steps[1].delta)
    assert torch.equal(rows, cohort(1))
    assert torch.equal(root, torch.ones(D))
    assert first.keys() == copies.keys()
    assert all(torch.equal(first[key], copies[key]) for key in copies)
    assert all(value.dtype == torch.float32 for value in first.values())


@pytest.mark.parametrize("name", sorted(RULES))
@settings(deadline=None, max_examples=10)
@given(seed=st.integers(0, 10**6), factor=st.sampled_from([2.0**-20, 4.0, 2.0**40]))
def test_scale_equivariance(name: str, seed: int, factor: float) -> None:
    builder, params = RULES[name]
    plain = once(builder, cohort(seed), torch.ones(D), **params)
    scaled = once(builder, factor * cohort(seed), factor * torch.ones(D), **params)
    torch.testing.assert_close(scaled, factor * plain, rtol=1e-5, atol=1e-6 * factor)


@pytest.mark.parametrize("name", sorted(RULES))
def test_one_row_and_rows_at_the_limits(name: str) -> None:
    builder, params = RULES[name]
    params = {key: value for key, value in params.items() if key != "f"} | ({"f": 0} if "f" in params else {})
    one = cohort(2, n=1)
    alone = once(builder, one, one[0], **params)
    torch.testing.assert_close(alone, one[0])
    assert not once(builder, torch.zeros(4, D), torch.ones(D), **params).any()
    for limit in (1e-38, 1e29 / math.sqrt(D)):
        result = once(builder, limit * torch.sign(cohort(3)), torch.ones(D), **params)
        assert bool(torch.isfinite(result).all())


@pytest.mark.parametrize("name", sorted(RULES))
def test_unusable_updates_are_left_out(name: str) -> None:
    builder, params = RULES[name]
    dirty = torch.cat([cohort(4), cohort(5)[:2]])
    dirty[N, 0], dirty[N + 1, 3] = math.nan, math.inf
    torch.testing.assert_close(
        once(builder, dirty, torch.ones(D), **params), once(builder, cohort(4), torch.ones(D), **params)
    )
    nothing = once(builder, torch.full((9, D), math.nan), torch.ones(D), **params)
    assert nothing.shape == (D,)
    assert not nothing.any()


# The twins.


@settings(deadline=None, max_examples=80)
@given(rows=cohorts(), data=st.data())
def test_fltrust_is_its_twin(rows: Tensor, data: st.DataObject) -> None:
    d = rows.shape[1]
    root = table([data.draw(st.lists(st.integers(-3, 3).map(float), min_size=d, max_size=d))])[0] * 0.5
    # Cosines are good to about 1e-6: who is orthogonal to the root but for rounding is not compared.
    scores = [twin.trust_cosine(row, root.tolist()) for row in rows.tolist()]
    assume(not any(0 < abs(score) < 1e-3 for score in scores))
    expected = twin.fltrust(rows.tolist(), root.tolist())
    close(once(fltrust, rows, root), expected, float(root.norm()))


@settings(deadline=None, max_examples=80)
@given(rows=cohorts(), kappa=st.sampled_from([0.1, 1.0, 3.0]))
def test_foolsgold_alphas_are_their_twin(rows: Tensor, kappa: float) -> None:
    ours = alphas(cosines(list(rows)), kappa)
    expected = twin.foolsgold_alphas(rows.tolist(), kappa)
    # Where all histories are nearly alike, the largest alpha divides rounding errors by itself.
    apart = [1 - twin.trust_cosine(a, b) for a in rows.tolist() for b in rows.tolist()]
    assume(not any(1e-14 < x < 1e-6 for x in apart))
    np.testing.assert_allclose(ours, expected, atol=1e-6)
    close(
        once(foolsgold, rows, kappa=kappa), twin.trust_weighted((rows / len(rows)).tolist(), expected), scale_of(rows)
    )


@settings(deadline=None, max_examples=40)
@given(data=st.data(), remember=st.sampled_from([0, 1, 3, 100]))
def test_foolsgold_remembers_as_its_twin(data: st.DataObject, remember: int) -> None:
    row = st.lists(st.integers(-3, 3).map(float), min_size=3, max_size=3)
    server, defense = twin.FoolsGold(remember), made(foolsgold, remember=remember)
    state: State = defense.init(3)
    for t in range(5):
        message = data.draw(st.dictionaries(st.integers(0, 6), row, min_size=1, max_size=5))
        step = defense.step(state, sent(table(list(message.values())), list(message)), Context(t, 1.0))
        close(step.delta, server.step(t, message), 3.0)
        kept = {int(key.rpartition(".")[2]): value for key, value in step.state.items() if ".history." in key}
        assert {sender: value.tolist() for sender, value in kept.items()} == server.histories
        unchanged = [key for key in step.state if key in state and int(key.rpartition(".")[2]) not in message]
        assert all(step.state[key] is state[key] for key in unchanged)  # shared, not copied
        state = {key: step.state[key] for key in sorted(step.state, reverse=True)}  # a checkpoint keeps no order


def clear(rows: Rows) -> bool:
    """Does the definition say which rows go: one top direction, and no scores that are nearly equal?"""
    values = [value for value, _ in twin.dnc_directions(rows)]
    if values[0] <= 0:
        return True
    scores = sorted(twin.dnc_scores(rows))
    lone = len(values) == 1 or values[1] < 0.99 * values[0]
    return lone and not any(1e-11 < (b - a) / scores[-1] < 1e-7 for a, b in pairwise(scores))


@settings(deadline=None, max_examples=100)
@given(rows=cohorts(), data=st.data())
def test_dnc_is_its_twin(rows: Tensor, data: st.DataObject) -> None:
    f = data.draw(st.integers(0, len(rows) - 1))
    assume(clear(rows.tolist()))
    expected = twin.dnc(rows.tolist(), f, [range(rows.shape[1])])
    kept = twin.dnc_good(rows.tolist(), f)
    close(once(dnc, rows, f=f), expected, scale_of(rows[sorted(kept)]))


@settings(deadline=None, max_examples=100)
@given(rows=cohorts())
def test_outlier_scores_are_squared_projections(rows: Tensor) -> None:
    assume(clear(rows.tolist()))
    expected = twin.dnc_scores(rows.tolist())
    np.testing.assert_allclose(outlier_scores(rows.double()), expected, rtol=1e-6, atol=1e-9 * max(expected))


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 10**6), c=st.sampled_from([0.5, 1.0, 1.5]))
def test_dnc_intersects_what_each_draw_kept(seed: int, c: float) -> None:
    rows, context = cohort(seed)[:, :8], Context(2, 1.0, seed)
    draw = rng(seed, "dnc", 2)
    views = [np.sort(draw.choice(8, 5, replace=False, shuffle=False)).tolist() for _ in range(3)]
    removed = math.ceil(c * 3)
    assume(all(clear(rows[:, view].tolist()) for view in views))
    good = set.intersection(*(twin.dnc_good(rows[:, view].tolist(), removed) for view in views))
    defense = made(dnc, f=3, iterations=3, subsample=5, filter_fraction=c)
    step = defense.step(defense.init(8), sent(rows), context)
    assert step.stats["selected"] == len(good)
    if good:
        close(step.delta, twin.dnc(rows.tolist(), removed, views), scale_of(rows))
    else:
        assert not step.delta.any()


@pytest.mark.parametrize("builder", [signguard, signguard_sim])
@settings(deadline=None, max_examples=80)
@given(rows=cohorts())
def test_signguard_is_its_twin(builder: Builder, rows: Tensor) -> None:
    view = range(rows.shape[1])
    expected = twin.signguard(rows.tolist(), view, 0.1, 3.0, with_similarity=builder is signguard_sim)
    scale = 3 * twin.trust_median([float(norm) for norm in rows.double().norm(dim=1)])
    close(once(builder, rows, share=1.0), expected, scale)


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 10**6), share=st.sampled_from([0.01, 0.3]))
def test_signguard_looks_at_the_coordinates_of_the_round(seed: int, share: float) -> None:
    rows, context = cohort(seed), Context(3, 1.0, seed)
    view = coordinates(D, share, context).tolist()
    assert len(set(view)) == max(1, int(share * D))
    # Shares of signs and summits are rounded to nine decimals. A distance that is the bandwidth but for that rounding
    # (equal ones are not: both count them as within it) is on either side of it by the last bit of a sum.
    signs = twin.signguard_features([[row[j] for j in view] for row in rows.tolist()], False)
    assume(not any(1e-12 < gap < 1e-8 for gap in twin.mean_shift_gaps(signs)))
    defense = made(signguard, share=share, lower=0.5, upper=2.0)
    delta = defense.step(defense.init(D), sent(rows), context).delta
    close(delta, twin.signguard(rows.tolist(), view, 0.5, 2.0), scale_of(rows))
    assert any(coordinates(D, share, Context(t, 1.0, seed)).tolist() != view for t in range(4, 30))


def test_mean_shift_agrees_with_scikit_learn() -> None:
    from sklearn.cluster import MeanShift, estimate_bandwidth

    for seed in range(5):
        generator = rng(seed, "points")
        centres = generator.uniform(0, 1, (4, 3)).repeat([20, 9, 5, 3], axis=0)
        points = centres + 0.03 * generator.normal(size=centres.shape)
        width = estimate_bandwidth(points, quantile=0.5)
        labels = MeanShift(bandwidth=width, cluster_all=False).fit(points).labels_
        expected = labels == np.bincount(labels[labels >= 0]).argmax()
        assert np.array_equal(largest_cluster(torch.from_numpy(points)).numpy(), expected)


def test_clusters_known_by_hand() -> None:
    line = torch.tensor([[0.0], [0.1], [0.2], [5.0], [5.1], [9.0]], dtype=torch.float64)
    assert largest_cluster(line).tolist() == [True, True, True, False, False, False]
    agreed = torch.tensor([[0.5], [0.2], [0.5], [0.5], [0.7]], dtype=torch.float64)  # the bandwidth is 0.1
    assert largest_cluster(agreed).tolist() == [True, False, True, True, False]
    for same in (1, 2, 7):
        assert bool(largest_cluster(torch.full((same, 3), 1 / 3, dtype=torch.float64)).all())
    most = torch.tensor([[0.1]] * 6 + [[0.3]] * 2, dtype=torch.float64)  # the bandwidth is 0
    assert largest_cluster(most).tolist() == [True] * 6 + [False] * 2


# What the papers claim: a fifth of the cohort colludes and sends one boosted, flipped update.


def under_attack(seed: int, boost: float = -10.0, hostile: int = 5, spread: float = 1.0) -> tuple[Tensor, Tensor]:
    """25 updates of which the first `hostile` are an attack, and the honest mean."""
    generator = rng(seed, "attack")
    direction = generator.normal(size=400)
    honest = direction + spread * generator.normal(size=(25 - hostile, 400))
    attack = np.repeat(boost * honest.mean(0, keepdims=True), hostile, axis=0)
    return torch.from_numpy(np.concatenate([attack, honest]).astype(np.float32)), torch.from_numpy(honest.mean(0))


def error(result: Tensor, wanted: Tensor) -> float:
    return float((result.double() - wanted).norm() / wanted.norm())


def root_for(wanted: Tensor, seed: int) -> Tensor:
    return (wanted + 0.5 * torch.from_numpy(rng(seed, "root").normal(size=len(wanted)))).float()


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("builder", "params", "tolerance"),
    [
        (fltrust, {}, 0.3),
        (foolsgold, {}, 0.3),  # divided by all 25, of which the 5 add nothing: 0.8 of the honest mean at best
        (dnc, {"f": 5}, 0.01),
        (dnc, {"f": 5, "iterations": 5, "subsample": 50}, 0.01),
        (signguard, {}, 0.35),
        (signguard_sim, {}, 0.35),
    ],
)
def test_colluders_do_not_move_the_result(
    builder: Builder, params: dict[str, Any], tolerance: float, seed: int
) -> None:
    # FoolsGold is made for devices with data of their own kind; the others for devices that agree.
    rows, wanted = under_attack(seed, spread=3.0 if builder is foolsgold else 1.0)
    assert error(aggregate("mean", rows), wanted) > 2
    assert error(once(builder, rows, root_for(wanted, seed), **params), wanted) < tolerance


def test_fltrust_bears_a_majority_of_attackers_but_follows_its_root() -> None:
    rows, wanted = under_attack(0, hostile=20)
    assert error(once(fltrust, rows, root_for(wanted, 0)), wanted) < 0.4
    assert error(once(fltrust, rows, -root_for(wanted, 0)), wanted) > 1.5


def test_foolsgold_cannot_see_a_single_attacker() -> None:
    rows, wanted = under_attack(0, boost=-100.0, hostile=1, spread=3.0)
    rows[0] += 30 * torch.from_numpy(rng(0, "noise").normal(size=400)).float()
    assert error(once(foolsgold, rows), wanted) > 0.9 * error(aggregate("mean", rows), wanted) > 2


def test_foolsgold_punishes_devices_that_agree() -> None:
    step = made(foolsgold).step({}, sent(torch.ones(4, 3)), Context(0, 1.0))
    assert not step.delta.any()
    assert step.stats["trusted"] == 0


def test_foolsgold_sees_sybils_through_their_history() -> None:
    """Two sybils that look alike only over time: what they hide in each round cancels."""
    defense, goal = made(foolsgold), torch.zeros(60).index_fill_(0, torch.arange(3), 4.0)
    state, trust = defense.init(60), list[float]()
    for t in range(12):
        generator = rng(t, "history")
        noise = torch.from_numpy(generator.normal(size=(1, 60))).float()
        honest = torch.eye(60)[10:18] * 3 + 0.1 * torch.from_numpy(generator.normal(size=(8, 60))).float()
        rows = torch.cat([goal + noise, goal - noise, honest])
        step = defense.step(state, sent(rows), Context(t, 1.0))
        state, trust = step.state, [*trust, step.stats["trusted"]]
    assert trust[0] == 10
    assert trust[-1] <= 8


def test_foolsgold_sums_what_one_sender_sent_at_once() -> None:
    rows = table([[1.0, 0.0], [0.0, 1.0], [1.0, -1.0]])
    step = made(foolsgold).step({}, sent(rows, [4, 4, 9]), Context(0, 1.0))
    assert step.state["combine.history.4"].tolist() == [1.0, 1.0]
    assert step.stats["trusted"] == 2
    close(step.delta, [2 / 3, 0.0], 1.0)


def test_dnc_with_too_small_an_f_leaves_attackers_in() -> None:
    rows, wanted = under_attack(1)
    left = [error(once(dnc, rows, f=f), wanted) for f in (5, 4, 3)]
    assert left[0] < 0.01
    assert left[1] == pytest.approx(11 / 21, rel=0.1)  # one of them, ten times as long and the other way
    assert left[2] == pytest.approx(22 / 22, rel=0.1)


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 10**6))
def test_dnc_breaks_ties_by_sender(seed: int) -> None:
    """Two colluding pairs, opposite to each other: all four score the same, and one may stay."""
    far, near = 10 * torch.ones(2, 6), 0.1 * cohort(seed, 2)[:, :6]
    rows = torch.cat([far, -far, near, -near])
    senders = np.array([7, 3, 8, 5, 1, 2, 4, 6])
    order = rng(seed, "ties").permutation(8)
    defense = made(dnc, f=3, iterations=4, subsample=3)
    step = defense.step({}, sent(rows[torch.from_numpy(order)], senders[order]), Context(0, 1.0, seed))
    torch.testing.assert_close(step.delta, torch.full((6,), 2.0))


@pytest.mark.parametrize("builder", [signguard, signguard_sim])
def test_signguard_sees_flipped_signs_where_norms_are_usual(builder: Builder) -> None:
    generator = rng(3, "signs")
    honest = torch.from_numpy(0.5 + generator.normal(size=(20, 2000))).float()
    rows = torch.cat([-honest[:1].expand(5, -1), honest])
    defense = made(builder)
    step = defense.step(defense.init(2000), sent(rows), Context(0, 1.0))
    assert step.stats["usual_norms"] == 25
    assert step.stats["selected"] <= 20
    assert error(step.delta, honest.double().mean(0)) < 0.3 < error(aggregate("mean", rows), honest.double().mean(0))


def test_signguard_bounds_by_the_median_what_it_does_not_see() -> None:
    """An attacker who keeps the signs passes, and is cut to the usual length."""
    rows, _ = under_attack(2, boost=2.5, hostile=3)
    rows[:3] = 2.5 * rows[5:8].abs() * torch.sign(rows[8])
    result = once(signguard, rows, share=1.0)
    assert float(result.norm()) < 1.05 * float(rows[3:].norm(dim=1).median())


def test_stats() -> None:
    rows = table([[1.0, 0.0], [1.0, 1.0], [-1.0, 0.0], [0.0, 0.0]])
    step = made(fltrust).step({}, sent(rows, block_size=3), Context(0, 1.0, root=table([[2.0, 0.0]])[0]))
    assert step.stats["trusted"] == 2
    assert step.stats["trust"] == pytest.approx((1 + math.sqrt(0.5)) / 4)
    step = made(signguard, share=1.0).step({}, sent(table([[1.0], [2.0], [-1.0], [50.0]])), Context(0, 1.0))
    assert (step.stats["selected"], step.stats["usual_norms"]) == (2, 3)
    assert made(dnc, f=1).step({}, sent(cohort(6)), Context(0, 1.0)).stats["selected"] == N - 1


# What cannot be.


def test_fltrust_without_trust_is_zero() -> None:
    rows = cohort(7)
    for root in (torch.zeros(D), torch.full((D,), math.nan), torch.full((D,), math.inf)):
        assert not once(fltrust, rows, root).any()
    assert not once(fltrust, rows.abs(), -torch.ones(D)).any()
    assert not once(fltrust, table([[1.0, -1.0, 0.0]]), table([[0.3, 0.3, 9.0]])[0]).any()  # orthogonal, exactly


@pytest.mark.parametrize(
    ("builder", "params", "sentence"),
    [
        (fltrust, {}, r"fltrust needs an update of the server's own: give aggregate\(..., root=...\).*\[data\]"),
        (foolsgold, {"remember": -1}, r"remember is -1.*choose remember >= 0"),
        (foolsgold, {"kappa": 0.0}, r"kappa is 0\.0.*choose kappa > 0"),
        (dnc, {"f": -1}, r"f is -1.*choose f >= 0"),
        (dnc, {"f": N}, rf"dnc with f = {N} needs at least n = {N + 1} updates a round, but there are {N}, or f = 11"),
        (dnc, {"f": 5, "filter_fraction": 3.0}, r"dnc with f = 5 needs at least n = 16 .* or f = 3 at most"),
        (dnc, {"f": 1, "iterations": 0}, r"iterations is 0.*choose iterations >= 1"),
        (dnc, {"f": 1, "subsample": 0}, r"subsample is 0.*choose subsample >= 1"),
        (dnc, {"f": 1, "filter_fraction": 0.0}, r"filter_fraction is 0\.0.*choose filter_fraction > 0"),
        (dnc, {"f": 1, "filter_fraction": math.nan}, r"filter_fraction is nan, but must be a finite number"),
        (signguard, {"lower": 1.5}, r"lower is 1\.5 and upper is 3\.0.*choose 0 <= lower <= 1 <= upper"),
        (signguard_sim, {"share": 0.0}, r"share is 0\.0.*choose 0 < share <= 1"),
    ],
)
def test_what_cannot_be_is_one_sentence(builder: Builder, params: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        once(builder, cohort(8), **params)


def test_a_root_of_another_model_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"root has 4 coordinates, but the updates have 30"):
        once(fltrust, cohort(8), torch.ones(4))


def test_dropped_updates_do_not_stop_dnc() -> None:
    rows = torch.cat([cohort(9)[:3], torch.full((3, D), math.nan)])
    assert bool(once(dnc, rows, f=3).any())


def test_dnc_without_a_row_in_common_is_zero() -> None:
    defense = made(dnc, f=N - 1, iterations=20, subsample=2)
    step = defense.step(defense.init(D), sent(cohort(10)), Context(0, 1.0))
    assert step.stats["selected"] == 0
    assert not step.delta.any()
