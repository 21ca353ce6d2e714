"""Certified accuracy: the l2 recursion, what it promises of predictions, and attackers who try to break it."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib import resources
from typing import Any

import numpy as np
import pytest
import torch
from benchmarks import certified
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from sparsefed import config as configs
from sparsefed import data
from sparsefed.attacks import Attack, Knowledge
from sparsefed.core.errors import ConfigError
from sparsefed.core.rng import rng
from sparsefed.core.round import simulate
from sparsefed.core.task import image_normaliser
from sparsefed.theory.linear import (
    Points,
    Radii,
    certified_accuracy,
    curve,
    keeps,
    l2_radius,
    largest_share,
    points,
    radii_of_share,
)
from sparsefed.theory.lipschitz import clip_free, softmax_growth, softmax_layer
from sparsefed.theory.threat_schedule import Line, ThreatSchedule, worst_omega
from tests.support import reference

# --- the recursion ---------------------------------------------------------------------------------------------------


def exp(log: float) -> float:
    return math.exp(log) if log > -math.inf else 0.0


rates = st.sampled_from([0.0, 0.1]) | st.floats(0, 2)
rounds = st.lists(
    st.tuples(
        rates,
        st.floats(0, 3),
        st.sampled_from([0.0, 1.0]) | st.floats(0, 1),
        st.floats(0, 4),
        st.floats(0, 4),
        st.floats(0, 4),
    ),
    min_size=1,
    max_size=6,
)


@pytest.mark.slow
@settings(max_examples=300)
@given(rounds, st.integers(1, 9), st.integers(1, 9) | st.none(), st.sampled_from([0.0, 0.5, 0.9]), st.booleans())
def test_the_recursion_in_logarithms_is_the_plain_one(
    given_rounds: list[Any], d: int, k: int | None, rho: float, measured: bool
) -> None:
    k = None if k is None or rho > 0 else min(k, d)
    lines = tuple(Line(rate, clip, share, 0.0, 0.0) for rate, clip, share, *_ in given_rounds)
    smooth, free, norms = ([row[i] for row in given_rounds] for i in (3, 4, 5))
    found = l2_radius(known(ThreatSchedule(d, k, lines, rho), smooth, free, norms if measured else None))
    told = [(*row[:5], row[5] if measured else None) for row in given_rounds]
    assert exp(found.log) == pytest.approx(reference.l2_distance(told, d, k, rho), rel=1e-9, abs=1e-12)
    assert found.additive <= found.log


def known(
    protocol: ThreatSchedule, smooth: Sequence[float], free: Sequence[float], norms: Sequence[float] | None = None
) -> ThreatSchedule:
    """The same rounds, with what the l2 recursion needs in each."""
    longest = [math.inf] * len(smooth) if norms is None else norms
    rows = zip(protocol.lines, smooth, free, longest, strict=True)
    lines = tuple(replace(line, smooth=s, free=f, longest=n) for line, s, f, n in rows)
    return replace(protocol, lines=lines)


def uniform(rate: float, clip: float, share: float, count: int, d: int = 50, k: int | None = None) -> ThreatSchedule:
    return ThreatSchedule(d, k, tuple(Line(rate, clip, share, 0.0, worst_omega(d, k)) for _ in range(count)))


def log_l2(protocol: ThreatSchedule, smooth: float, free: float) -> float:
    count = len(protocol.lines)
    return l2_radius(known(protocol, [smooth] * count, [free] * count)).log


@settings(max_examples=100)
@given(st.floats(0.001, 1), st.floats(0.1, 2), st.floats(0.01, 0.9), st.integers(1, 20), st.floats(0, 3), st.booleans())
def test_monotone_where_it_must_be(
    rate: float, clip: float, share: float, count: int, smooth: float, cut: bool
) -> None:
    free = 2 * clip if cut else clip
    base = log_l2(uniform(rate, clip, share, count, k=20), smooth, free)
    slack = base - 1e-9
    assert log_l2(uniform(rate, clip, min(1.0, share * 1.1), count, k=20), smooth, free) >= slack
    assert log_l2(uniform(rate, clip, share, count + 1, k=20), smooth, free) >= slack
    assert log_l2(uniform(rate * 1.1, clip, share, count, k=20), smooth, free) >= slack
    assert log_l2(uniform(rate, clip, share, count, k=20), smooth * 1.1, free) >= slack
    assert log_l2(uniform(rate, clip, share, count, k=10), smooth, free) >= slack
    assert log_l2(uniform(rate, clip, share, count), smooth, free) <= base + 1e-9


def test_closed_forms() -> None:
    dense = uniform(0.5, 2.0, 0.1, 10)
    assert exp(log_l2(dense, 4.0, 2.0)) == pytest.approx(0.5 * 10 * 2 * 0.1 * 2.0)  # nothing is cut, rate <= 2/smooth
    grows = 0.4 * 0.5 * sum(1.5**t for t in range(3))  # (1 + lambda smooth)^t
    assert exp(log_l2(uniform(0.5, 2.0, 0.1, 3), 1.0, 2.1)) == pytest.approx(grows)
    assert exp(log_l2(uniform(0.5, 2.0, 0.1, 900), 1.0, 2.1)) < 0.5 * 2 * 2.0 * 900  # what clipping alone promises
    assert log_l2(uniform(0.5, 2.0, 0.0, 3, k=5), 1.0, 2.1) == -math.inf  # nobody attacks: one and the same run


def test_what_was_measured_shows_that_nothing_is_cut() -> None:
    protocol, smooth, free = uniform(0.01, 2.0, 0.01, 5), [10.0] * 5, [9.0] * 5
    far = l2_radius(known(protocol, smooth, free)).log
    near = l2_radius(known(protocol, smooth, free, [1.5] * 5)).log
    assert exp(near) == pytest.approx(0.01 * 5 * 0.01 * (2.0 + 1.5)) and near < far
    almost = l2_radius(known(protocol, smooth, free, [1.99999] * 5)).log
    assert almost == pytest.approx(far, rel=1e-2)  # too near to tell
    assert l2_radius(known(protocol, smooth, free, [2.1] * 5)).log == far


def test_what_is_not_known_is_refused() -> None:
    protocol = uniform(0.1, 1.0, 0.1, 2)
    momentum = known(replace(protocol, k=5, rho=0.9), [1.0] * 2, [1.0] * 2)
    with pytest.raises(ConfigError, match="without momentum alone"):
        l2_radius(momentum)
    with pytest.raises(ConfigError, match=r"needs the smoothness .* in every round"):
        l2_radius(protocol)
    with pytest.raises(ConfigError, match=r"needs the smoothness .* in every round"):
        l2_radius(known(protocol, [1.0, math.inf], [1.0] * 2))
    with pytest.raises(ConfigError, match="round 2: smooth is -1"):
        l2_radius(known(protocol, [1.0, -1.0], [1.0] * 2))
    with pytest.raises(ConfigError, match="round 1: longest is nan"):
        l2_radius(known(protocol, [1.0] * 2, [1.0] * 2, [math.nan, 1.0]))
    assert radii_of_share(momentum)(0.1).l2 == math.inf
    assert radii_of_share(protocol)(0.1).l2 == math.inf


# --- predictions -----------------------------------------------------------------------------------------------------


def some_points(seed: int = 0, count: int = 40) -> tuple[Tensor, Tensor, Tensor, Points]:
    draw = rng(seed, "points")
    weight = torch.from_numpy(draw.standard_normal((3, 5)))
    x, y = torch.from_numpy(draw.standard_normal((count, 4))), torch.from_numpy(draw.integers(3, size=count))
    return weight, x, y, points(weight[:, :4], weight[:, 4], x, y, batch=7)


@settings(max_examples=50)
@given(st.floats(0, 2), st.floats(0, 2), st.integers(0, 99))
def test_certified_accuracy_is_that_of_the_definition(r1: float, r2: float, seed: int) -> None:
    weight, x, y, seen = some_points(seed)
    inputs = [[*row, 1.0] for row in x.tolist()]
    radii = Radii(*(math.log(r) if r > 0 else -math.inf for r in (r1, r2)))
    assert certified_accuracy(seen, radii) == reference.surely_right(weight.tolist(), inputs, y.tolist(), r1, r2)


def test_points_without_bias_and_ties() -> None:
    x = torch.tensor([[1.0, -2.0], [0.0, 0.0]])
    seen = points(torch.eye(2), None, x, torch.tensor([0, 0]))
    assert seen.margin.tolist() == [3, 0] and seen.largest.tolist() == [2, 0] and seen.chance == 1
    assert not keeps(seen, Radii(-math.inf, -math.inf))[1]  # a tie keeps nothing, for a predictor may break it anyhow
    with pytest.raises(ConfigError, match="two classes"):
        points(torch.eye(2)[:1], None, x, torch.tensor([0, 0]))


def test_a_radius_beyond_float64_keeps_nothing() -> None:
    seen = some_points()[3]
    assert certified_accuracy(seen, Radii(1e6, math.inf)) == 0
    assert certified_accuracy(seen, Radii(math.inf, -math.inf)) == seen.right.mean()


def test_the_largest_share_is_where_the_curve_reaches_chance() -> None:
    seen = some_points(count=400)[3]
    seen = replace(seen, right=seen.margin > np.quantile(seen.margin, 0.2))
    radii = radii_of_share(known(uniform(0.5, 1.0, 0.0, 4), [1.0] * 4, [0.5] * 4))
    found = largest_share(seen, radii)
    assert found is not None and 0 < found < 1
    assert certified_accuracy(seen, radii(found)) > seen.chance >= certified_accuracy(seen, radii(found + 2e-6))
    shares = np.linspace(0, 1, 201).tolist()
    accuracies = [at.accuracy for at in curve(seen, radii, shares)]
    assert accuracies == sorted(accuracies, reverse=True) and accuracies[0] == seen.right.mean()
    assert max(s for s, a in zip(shares, accuracies, strict=True) if a > seen.chance) <= found


def test_a_useless_model_has_no_share_and_a_sure_one_any() -> None:
    seen = some_points()[3]
    radii = radii_of_share(known(uniform(0.1, 1.0, 0.0, 4), [1.0] * 4, [0.5] * 4))
    assert largest_share(replace(seen, right=np.zeros(40, bool)), radii) is None
    assert largest_share(replace(seen, right=np.ones(40, bool), margin=np.full(40, 1e9)), radii) == 1
    assert largest_share(seen, radii, floor=1.0) is None


# --- soundness, by attack --------------------------------------------------------------------------------------------

B, N, M, C, INPUTS = 50, 10, 3, 3, 5  # federations at once, devices, examples of each, classes, inputs
D = C * INPUTS


@dataclass(frozen=True)
class Federations:
    """B small federations with one attacker each, trained at once in float64; what is sent can be differentiated."""

    x: Tensor  # [B, N, M, INPUTS], the last input is the bias's 1
    y: Tensor  # [N, M]
    rates: Tensor  # [T, B]
    clip: Tensor  # [B]
    k: int | None
    rho: float

    def updates(self, theta: Tensor) -> Tensor:
        """Of the devices, before clipping: [B, N, D]."""
        p = torch.softmax(self.x @ theta.view(B, 1, C, INPUTS).mT, -1)
        return ((p - nn.functional.one_hot(self.y, C)).mT @ self.x / M).flatten(2)

    def run(self, sent: Tensor | None) -> tuple[Tensor, Tensor]:
        """The last models [B, D], and the longest update of each round [T, B]; the attacker sends [T, B, 1, D]."""
        theta = momentum = memory = torch.zeros(B, D, dtype=torch.float64)
        longest = []
        for t, rate in enumerate(self.rates):
            rows = self.updates(theta)
            longest.append(rows.detach().norm(dim=2).amax(1))
            rows = rows if sent is None else torch.cat([sent[t], rows[:, 1:]], 1)
            cut = (self.clip[:, None, None] / rows.norm(dim=2, keepdim=True).clamp(min=1e-12)).clamp(max=1)
            momentum = self.rho * momentum + (rows * cut).mean(1)
            memory = memory + momentum
            chosen = memory.abs().topk(self.k or D, dim=1).indices
            applied = torch.zeros_like(memory).scatter(1, chosen, memory.gather(1, chosen))
            memory = memory - applied
            theta = theta - rate[:, None] * applied
        return theta, torch.stack(longest)

    def radii(self, norms: Tensor | None) -> list[Radii]:
        """Of each federation, for one attacker."""
        found = []
        for b in range(B):
            layer = softmax_layer(self.x[b].flatten(0, 1), np.arange(N + 1) * M, bias=False)
            clip, free, count = float(self.clip[b]), clip_free(layer), len(self.rates)
            growth = softmax_growth(layer, D, self.k, clipped=clip < free)
            lines = tuple(Line(float(rate[b]), clip, 0.0, growth, worst_omega(D, self.k)) for rate in self.rates)
            told = None if norms is None else norms[:, b].tolist()
            schedule = ThreatSchedule(D, self.k, lines, self.rho)
            found.append(radii_of_share(known(schedule, [layer.smooth] * count, [free] * count, told))(1 / N))
        return found


def federations(seed: int, clip: float, rate: float, count: int, k: int | None, rho: float) -> Federations:
    """Every device owns an example of each class; the clip norm is a multiple of the longest first update, and the
    rate of 1 / mean |x|^2."""
    draw = rng(seed, "federations")
    y = torch.arange(C).expand(N, M)
    x = torch.from_numpy(0.4 * draw.standard_normal((B, N, M, INPUTS)))
    x += 2 * torch.eye(C, INPUTS, dtype=torch.float64)
    x[..., -1] = 1
    scale = torch.linspace(1, 0.8, count)[:, None] * torch.from_numpy(draw.uniform(0.5, 1.0, B))
    made = Federations(x, y, rate * scale / x.square().sum(3).mean((1, 2)), torch.ones(B).double(), k, rho)
    return replace(made, clip=clip * made.updates(torch.zeros(B, D, dtype=torch.float64)).norm(dim=2).amax(1))


def attacked(given: Federations, objective: Callable[[Tensor], Tensor], seed: int) -> tuple[Tensor, Tensor]:
    """The highest values and their models: ascent through all rounds from random messages, each turned to where its
    gradient points, at full norm; every third step only half of the way."""
    sent = torch.from_numpy(rng(seed, "messages").standard_normal((len(given.rates), B, 1, D)))
    best = torch.full((B,), -math.inf, dtype=torch.float64)
    models = torch.zeros(B, D, dtype=torch.float64)
    for step in range(12):
        messages = sent.clone().requires_grad_()
        theta = given.run(messages)[0]
        values = objective(theta)
        better = values.detach() > best
        best = torch.where(better, values.detach(), best)
        models = torch.where(better[:, None], theta.detach(), models)
        (slope,) = torch.autograd.grad(values.sum(), messages)
        aim = nn.functional.normalize(slope, dim=3, eps=1e-30) + (step % 3 == 2) * nn.functional.normalize(sent, dim=3)
        aim = torch.where(slope.norm(dim=3, keepdim=True) > 0, aim, sent)
        sent = nn.functional.normalize(aim, dim=3) * given.clip[None, :, None, None]
    return best, models


KINDS = {
    "dense, never cut": (12.0, 1.0, 3, None, 0.0),
    "dense, not cut": (1.3, 0.3, 4, None, 0.0),
    "dense, cut": (0.3, 0.1, 3, None, 0.0),
    "dense, some cut": (0.9, 0.5, 4, None, 0.0),
    "dense, rates too high": (12.0, 9.0, 3, None, 0.0),
    "dense, momentum": (1.2, 0.1, 3, None, 0.8),
    "sparse, not cut": (1.3, 0.003, 25, 12, 0.0),
    "sparse, few coordinates": (1.3, 0.3, 5, 2, 0.0),
    "sparse, cut": (0.3, 1.0, 4, 6, 0.0),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_no_attack_gets_beyond_the_radii_or_flips_a_certified_point(kind: str) -> None:
    given = federations(sum(map(ord, kind)), *KINDS[kind])
    benign, norms = given.run(None)
    radii, told = given.radii(None), given.radii(norms)
    assert all(b.l2 <= a.l2 for a, b in zip(radii, told, strict=True))
    x = given.x[:, 0] * 1.5  # the points that the attacker's own device would teach: most is to be gained there
    said = (x @ benign.view(B, C, INPUTS).mT).argmax(2)
    seen = [points(benign[b].view(C, INPUTS), None, x[b], said[b]) for b in range(B)]
    kept = torch.from_numpy(np.array([keeps(seen[b], told[b]) for b in range(B)]))
    weakest = torch.tensor(
        [int((p.margin / p.length + 9 * ~k.numpy()).argmin()) for p, k in zip(seen, kept, strict=True)]
    )

    def lost(theta: Tensor) -> Tensor:
        """How far another class is ahead at the certified point with least to spare."""
        scores = (x @ theta.view(B, C, INPUTS).mT)[torch.arange(B), weakest]
        own = said[torch.arange(B), weakest][:, None]
        return scores.scatter(1, own, -math.inf).amax(1) - scores.gather(1, own)[:, 0]

    for objective, seed in ((lambda theta: (theta - benign).norm(dim=1), 1), (lost, 2), (lost, 3)):
        _, models = attacked(given, objective, seed)
        change = models - benign
        for b in range(B):
            assert float(change[b].norm()) <= exp(told[b].l2) * (1 + 1e-9)
            assert float(change[b].abs().sum()) <= exp(told[b].l1) * (1 + 1e-9)
        flipped = (x @ models.view(B, C, INPUTS).mT).argmax(2) != said
        assert not bool((kept & flipped).any())
    if kind in ("dense, not cut", "dense, cut", "dense, some cut", "sparse, not cut"):
        assert int(kept.sum()) > B / 2  # these are certificates, not empty words


def test_a_weaker_certificate_is_caught() -> None:
    """Two classes and one round: who owns the test point can take twice its clipped update, to the last per cent."""
    x, y = torch.tensor([[1.0, 2.0, 1.0], [0.5, -1.0, 1.0], [1.5, -2.0, 1.0]]).double(), torch.tensor([0, 1, 1])
    clip, rate = 0.5, 0.1
    p = torch.full((3, 2), 0.5).double()
    rows = (p - nn.functional.one_hot(y, 2))[:, :, None] * x[:, None]
    rows = rows / rows.flatten(1).norm(dim=1)[:, None, None] * clip  # all are cut
    benign, poisoned = -rate * rows.mean(0), -rate * (rows.sum(0) - 2 * rows[0]) / 3
    taken = float((x[0] @ benign[0] - x[0] @ benign[1]) - (x[0] @ poisoned[0] - x[0] @ poisoned[1]))
    radius = exp(log_l2(uniform(rate, clip, 1 / 3, 1), 1.0, 99.0))
    bound = math.sqrt(2) * float(x[0].norm()) * radius
    assert bound * 0.999 < taken <= bound * (1 + 1e-12)
    point = Points(np.array([taken * 0.995]), np.array([True]), np.array([9.0]), np.array([float(x[0].norm())]), 0.5)
    assert not keeps(point, Radii(math.inf, math.log(radius)))[0]  # it does flip
    assert keeps(point, Radii(math.inf, math.log(radius * 0.99)))[0]  # with a hundredth less it would be promised


def test_above_two_over_smooth_differences_do_grow() -> None:
    """100 devices own the same input 1, half of them with either label: honest training stays at 0, and what one of
    them sends once is thrown from side to side, ever further. The non-expansive sum would not hold."""
    rate, clip, count = 10.0, math.sqrt(2), 5
    labels = nn.functional.one_hot(torch.arange(100) % 2, 2).double()
    layer = softmax_layer(torch.ones(100, 1), np.arange(101), bias=False)
    assert clip_free(layer) == clip and rate * layer.smooth == pytest.approx(5)
    theta = torch.zeros(2, dtype=torch.float64)
    for t in range(count):
        rows = torch.softmax(theta, 0) - labels
        rows[0] = torch.tensor([1.0, -1.0]) if t == 0 else rows[0]
        theta = theta - rate * rows.mean(0)
    distance = float(theta.norm())  # the honest run's model is 0
    lines = tuple(Line(rate, clip, 0.01 if t == 0 else 0.0, 0.0) for t in range(count))
    radius = l2_radius(known(ThreatSchedule(2, None, lines), [layer.smooth] * count, [clip] * count))
    assert rate * 0.01 * 2 * clip < distance <= exp(radius.log)


def test_a_cut_step_can_bring_models_apart() -> None:
    """A convex loss, a rate of 1/smooth: whole gradients bring them together, gradients cut to norm 1 do not."""
    curvature, rate = torch.tensor([1.0, 100.0]).double(), 0.01

    def cut(theta: Tensor) -> Tensor:
        return nn.functional.normalize(curvature * theta, dim=0)

    theta = torch.tensor([10.0, 0.1]).double()
    jacobian = torch.autograd.functional.jacobian(cut, theta)  # type: ignore[no-untyped-call]
    values, vectors = torch.linalg.eigh((jacobian + jacobian.T) / 2)
    assert values[0] < 0  # not monotone
    other = theta + 1e-3 * vectors[:, 0]
    apart = [float((a - b).norm()) for a, b in ((theta, other), (theta - rate * cut(theta), other - rate * cut(other)))]
    whole = (theta - other) * (1 - rate * curvature)
    assert float(whole.norm()) <= apart[0] < apart[1] <= apart[0] * (1 + rate * 100)


def test_the_memory_of_top_k_is_in_the_radius() -> None:
    """Without it some federation gets beyond what the dense recursion would say."""
    given = federations(5, 1.3, 0.3, 5, 1, 0.0)
    benign, norms = given.run(None)
    far, _ = attacked(given, lambda theta: (theta - benign).norm(dim=1), 1)
    dense = replace(given, k=None).radii(norms)
    assert any(distance > exp(bound.l2) for distance, bound in zip(far.tolist(), dense, strict=True))


# --- the same with the project's own training ------------------------------------------------------------------------

DIGITS: dict[str, Any] = {
    "rounds": 5,
    "data": {"name": "digits", "partition": "iid", "devices": 50},
    "model": {"name": "softmax", "zero": True},
    "train": {"cohort": 50, "lr": 0.006, "schedule": "constant", "weight_decay": 0.0},
    "defense": {"name": "clipping", "clip_norm": 2.4, "rho": 0.0},
    "threat": {"ids": [7]},
    "attack": {"name": "pgd", "auxiliary": 1, "batch": 1},
}


def _replayed(message: Tensor, knowledge: Knowledge) -> Tensor:  # noqa: ARG001
    return message


def test_digits_are_certified_and_stay_right() -> None:
    """One of 50 devices pushes in every round, at full norm, straight at a certified point."""
    built = configs.build(configs.parse(DIGITS))
    federation, gradient, clip = built.setup.federation, built.setup.gradient, DIGITS["defense"]["clip_norm"]
    assert gradient is not None
    states = [built.begin(), *(r.state for r in simulate(replace(built.setup, attack=None), built.begin(), 5))]
    owned = [federation.gather(np.array([device])) for device in range(50)]
    norms = [max(float(gradient(at.theta, b.x, b.y).norm()) for b in owned) for at in states[:-1]]
    arrays = data.load("digits")
    prepare = image_normaliser(arrays.mean, arrays.std)
    part = federation.partition
    layer = softmax_layer(federation.x, part.offsets, examples=part.examples, prepare=prepare)
    lines = tuple(Line(0.006, clip, 0.0, softmax_growth(layer, 650, None, clipped=True)) for _ in norms)
    schedule = ThreatSchedule(650, None, lines)
    radii = radii_of_share(known(schedule, [layer.smooth] * 5, [clip_free(layer)] * 5, norms))
    x, y = torch.from_numpy(arrays.x_test), torch.from_numpy(arrays.y_test)

    def scores(theta: Tensor) -> Tensor:
        return prepare(x).flatten(1) @ theta[:640].view(10, 64).T + theta[640:]

    before = scores(states[-1].theta)
    seen = points(states[-1].theta[:640].view(10, 64), states[-1].theta[640:], x, y, prepare=prepare)
    sure = keeps(seen, radii(1 / 50))
    assert certified_accuracy(seen, radii(1 / 50)) > 1.5 * seen.chance
    order = np.argsort(np.where(sure, seen.margin / seen.length, np.inf))
    for target in order[:3]:
        own, other = before[target].topk(2).indices.tolist()
        push = torch.zeros(10, 65)
        push[own], push[other] = (
            sign * torch.cat([prepare(x[target, None]).flatten(), torch.ones(1)]) for sign in (1, -1)
        )
        message = torch.cat([push[:, :64].flatten(), push[:, 64]]) * (clip / push.norm())
        protocol = replace(built.setup, attack=Attack(partial(_replayed, message)))
        last = [report.state.theta for report in simulate(protocol, built.begin(), 5)][-1]
        change = last - states[-1].theta
        assert 0 < float(change.norm()) <= exp(radii(1 / 50).l2)
        assert torch.equal(scores(last).argmax(1)[sure], before.argmax(1)[sure])


def test_the_packaged_config_certifies() -> None:
    """On digits instead of Fashion-MNIST, which not every machine has."""
    path = resources.files("sparsefed").joinpath("config/files/certified.toml")
    usual = tomllib.loads(path.read_text(encoding="utf-8"))
    smaller = {
        "data": {"name": "digits", "partition": "iid", "devices": 20},
        "train": {**usual["train"], "cohort": 20, "lr": 0.018},
        "defense": {**usual["defense"], "clip_norm": 1.85},
    }
    run = certified.trained(configs.parse({**usual, **smaller, "rounds": 6}))
    cells = [cell.strip() for cell in certified.row("digits", run).split("|")[1:-1]]
    accuracies = [float(cell) for cell in cells[1:-3]]
    assert accuracies == sorted(accuracies, reverse=True) and accuracies[3] > 50  # at 1 %
    assert cells[-3] != "none"
