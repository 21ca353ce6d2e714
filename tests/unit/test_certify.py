"""The certified radius is never exceeded, each of its terms is needed, and what can be attained is."""

from __future__ import annotations

import math
import runpy
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from sparsefed.core.errors import ConfigError
from sparsefed.core.rng import rng
from sparsefed.core.types import Context
from sparsefed.defenses import build
from sparsefed.kernels import as_blocks
from sparsefed.theory.radius import (
    NOTHING,
    capped,
    closed_form,
    dense,
    movement,
    paper_closed_form,
    paper_is_bound,
    recursion,
)
from sparsefed.theory.threat_schedule import Line, ThreatSchedule, check, growth, uniform, worst_omega
from tests.support import certify_search as search
from tests.support import reference
from tests.support.certify_search import Found

BOUNDS: dict[str, Callable[[ThreatSchedule], float]] = {
    "recursion": lambda protocol: recursion(protocol).log,
    "recursion, all of d": lambda protocol: recursion(protocol, protocol.d).log,
    "capped": lambda protocol: capped(protocol).log,
    "closed form": lambda protocol: closed_form(protocol).log,
    "movement": movement,
}
ROUNDING = 1e-9  # float64 sums in another order
FEWER = settings(deadline=None, max_examples=40)


def twin(protocol: ThreatSchedule, terms: reference.Terms | None = None) -> float:
    """The same radius in plain numbers."""
    certified = reference.Certified(protocol.d, protocol.k or 0, protocol.rho, terms or reference.Terms())
    for line in protocol.lines:
        certified.step(line.rate, line.clip_norm, line.share, line.growth, line.omega)
    return certified.D


def log(value: float) -> float:
    return math.log(value) if value > 0 else NOTHING


# --- searched for, never exceeded ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def found() -> list[tuple[str, Found]]:
    """Attacks on more than two thousand protocols, each from two starts."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return search.attacks(seed=0, count=90, attempts=2, steps=12)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.slow
@pytest.mark.parametrize("oracle", ["linear", "softmax"])
@pytest.mark.parametrize("name", BOUNDS)
def test_no_attack_that_was_found_exceeds_the_bound(found: list[tuple[str, Found]], oracle: str, name: str) -> None:
    seen = 0
    for which, (distance, unconditional, conditional) in found:
        if which != oracle:
            continue
        seen += 1
        for protocol in [unconditional] if unconditional.k is None else [unconditional, conditional]:
            assert log(distance) <= BOUNDS[name](protocol) + ROUNDING, (distance, protocol)
    assert seen >= 1000


def papers_radius(protocol: ThreatSchedule) -> float:
    """Theorem 2 as printed, with rho = p L in an l1 radius."""
    total, line = sum(line.rate for line in protocol.lines), protocol.lines[0]
    return math.log(total * line.share * line.clip_norm) + total * math.log1p(line.growth)


WRONG: dict[str, tuple[Callable[[ThreatSchedule], bool], Callable[[ThreatSchedule], float]]] = {
    # For which protocols the formula is meant, and the formula.
    "the paper's power": (lambda p: p.rho == 0, lambda p: paper_closed_form(p).log),
    "the paper's power, with top-k": (lambda p: p.k is not None, lambda p: paper_closed_form(p).log),
    "rho = p L in l1": (lambda p: p.k is None and p.rho == 0, papers_radius),
    "attackers put in, but take nothing out": (lambda p: p.d > 0, lambda p: log(twin(p, reference.Terms(replaced=1)))),
    "additive without a root": (lambda p: p.d > 0, lambda p: log(twin(p, reference.Terms(coordinates=1)))),
    "the same, with top-k": (lambda p: p.k is not None, lambda p: log(twin(p, reference.Terms(coordinates=1)))),
    "growth a tenth smaller": (lambda p: p.k is None, lambda p: log(twin(p, reference.Terms(growth=0.9)))),
    "the same, with top-k (all of d)": (lambda p: p.k == p.d, lambda p: log(twin(p, reference.Terms(growth=0.9)))),
    "top-k holds nothing back": (lambda p: p.k is not None, lambda p: log(twin(p, reference.Terms(runs=0)))),
    "momentum only of the round": (lambda p: p.k is None, lambda p: log(twin(p, reference.Terms(momentum=0)))),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", WRONG)
def test_the_attacks_exceed_what_is_not_a_bound(found: list[tuple[str, Found]], name: str) -> None:
    """The search has teeth: leave a term out, and some attack is further away."""
    meant, formula = WRONG[name]
    assert any(
        log(distance) > formula(conditional) + 0.01 for _, (distance, _, conditional) in found if meant(conditional)
    )


# --- attained --------------------------------------------------------------------------------------------------------


def coherent(d: int, rates: Sequence[float], rho: float, c: float) -> tuple[float, ThreatSchedule, float]:
    """The worst case of a dense protocol, played: how far apart, the protocol, and the longest honest update.

    One of 1000 devices would push along the diagonal with all its might and is replaced by one that pushes the other
    way. The others' gradients are -c' sum(theta) in every coordinate, c' such that c is the mean over all devices.
    """
    n, clip_norm = 1000, 1.0
    push = clip_norm / math.sqrt(d)
    slope = c * n / (n - 1)
    ends, longest = [], 0.0
    for sign in (1, -1):
        theta, buffer = [0.0] * d, [0.0] * d
        for rate in rates:
            honest = [-slope * sum(theta)] * d
            longest = max(longest, reference.norm(honest))
            mean = [((n - 1) * value + sign * push) / n for value in honest]
            buffer = reference.momentum(mean, buffer, rho)
            theta = [value - rate * step for value, step in zip(theta, buffer, strict=True)]
        ends.append(theta)
    distance = math.fsum(abs(x - y) for x, y in zip(*ends, strict=True))
    return distance, uniform(d, None, rates, clip_norm, 1 / n, c, rho=rho), longest


@pytest.mark.parametrize("rho", [0.0, 0.9])
@pytest.mark.parametrize("rates", [[0.1] * 8, [0.02, 0.3, 0.1, 0.0, 0.2], [2.0, 1.5]])
def test_the_dense_recursion_is_attained_by_the_worst_case_oracle(rates: list[float], rho: float) -> None:
    distance, protocol, longest = coherent(d=20, rates=rates, rho=rho, c=0.15)
    assert longest < 1  # no honest update was cut: the growth is d c
    assert math.log(distance) == pytest.approx(recursion(protocol).log, abs=1e-9)
    assert distance <= math.exp(capped(protocol).log) * (1 + ROUNDING)


def test_the_papers_closed_form_is_exceeded_after_two_rounds() -> None:
    """Rate 0.1 and w c = 1000: the recursion adds up to 10.2 beta and is attained, the closed form says 0.80 beta."""
    distance, protocol, longest = coherent(d=20, rates=[0.1, 0.1], rho=0, c=50)
    beta = 2 * math.sqrt(20) / 1000
    assert longest < 1
    assert distance / beta == pytest.approx(10.2)
    assert math.exp(paper_closed_form(protocol).log) / beta == pytest.approx(0.796, abs=0.001)
    assert not paper_is_bound(protocol)
    assert distance < math.exp(closed_form(protocol).log)


def served(d: int, k: int, rho: float, rates: Sequence[float], means: Sequence[Sequence[float]]) -> list[float]:
    """The model, from zeros, after a server that applies top-k of these."""
    server, theta = reference.TopkMemory(d, k, rho), [0.0] * d
    for rate, mean in zip(rates, means, strict=True):
        theta = [value - rate * step for value, step in zip(theta, server.step(list(mean)), strict=True)]
    return theta


@pytest.mark.parametrize("rho", [0.0, 0.9])
def test_what_top_k_and_momentum_hold_back_is_attained(rho: float) -> None:
    """All devices send (x, x), one coordinate of two is applied, and a tiny push decides which.

    From then on the runs hold back different coordinates: the memory of both, and with momentum the momentum of both.
    """
    x, tilt = math.sqrt(0.5), 1e-6  # norm 1
    rates = [1e-4, 1.0]
    benign = served(2, 1, rho, rates, [(x, x)] * 2)  # ties go to the lowest index
    poisoned = served(2, 1, rho, rates, [(x - tilt, x), (x, x)])
    distance = math.fsum(abs(a - b) for a, b in zip(benign, poisoned, strict=True))
    # What top-k lost: x of 2 x, then x of (x, x + x (1 + rho)).
    lines = tuple(Line(rate, 1.0, tilt, 0.0, omega) for rate, omega in zip(rates, (1 / 2, 1 / (3 + rho)), strict=True))
    protocol = ThreatSchedule(2, 1, lines, rho)
    bound = math.exp(recursion(protocol).log)
    assert 0.999 * bound < distance <= bound
    assert distance > 1.01 * twin(protocol, reference.Terms(runs=1))  # one gamma, as the algorithm box has it
    if rho > 0:
        assert distance > 1.01 * twin(protocol, reference.Terms(momentum=0))


def test_both_runs_coordinates_propagate() -> None:
    """w = 2k, not k: the benign run applies the coordinate that the poisoned one leaves, and both have changed."""
    x, share, c = 1.0, 0.01, 10.0
    apart = 2 * share  # round 1: the replaced device's update is -e_1 instead of e_1, the others' 0
    delta = c * apart  # round 2: both coordinates change by c times that
    higher, lower = x + delta / 2, x - delta / 2
    benign = served(2, 1, 0, [1, 1], [(share, 0), (higher, lower)])
    poisoned = served(2, 1, 0, [1, 1], [(-share, 0), (lower, higher)])
    distance = math.fsum(abs(a - b) for a, b in zip(benign, poisoned, strict=True))
    second = Line(1, math.hypot(higher, lower), 0, 2 * c, lower / (2 * x))
    protocol = ThreatSchedule(2, 1, (Line(1, 1, share, 2 * c, 0), second))
    assert distance <= math.exp(recursion(protocol).log)
    assert distance > 1.01 * twin(protocol, reference.Terms(growth=1 / 2))  # k c


def test_what_waited_moves_the_model_at_the_rate_of_when_it_is_applied() -> None:
    """Nine rounds fill the memory at a tiny rate; then nothing more is sent, and nine rounds empty it at a high one."""
    d, x = 10, 1 / math.sqrt(10)
    rates, sizes = [1e-6] * 9 + [1.0] * 9, [1.0] * 9 + [0.0] * 9
    ends = [served(d, 1, 0, rates, [[sign * x * size] * d for size in sizes]) for sign in (1, -1)]
    distance = math.fsum(abs(a - b) for a, b in zip(*ends, strict=True))
    lines = tuple(Line(rate, size, 0.5, 0.0, worst_omega(d, 1)) for rate, size in zip(rates, sizes, strict=True))
    bound = math.exp(movement(ThreatSchedule(d, 1, lines)))
    assert bound / 3 < distance <= bound
    assert distance > 100 * 2 * sum(rate * math.sqrt(d) * size for rate, size in zip(rates, sizes, strict=True))


# --- clipping and coordinates ----------------------------------------------------------------------------------------


def test_cutting_makes_one_coordinate_follow_all_others() -> None:
    """c is a constant of the gradient's coordinates, not of the clipped one's: w c is exceeded, sqrt(w d) c is not."""
    d, c, move = 401, 0.25, 1e-6
    first, rest = math.sqrt(d - 1), 1.0  # equally long
    length = math.hypot(first, math.sqrt(d - 1) * rest)
    before = reference.clip([first] + [rest] * (d - 1), length)
    after = reference.clip([first] + [rest + c * move] * (d - 1), length)  # every coordinate changed by c D at most
    change = abs(after[0] - before[0]) / move
    assert change > growth(d, 1, c, clipped=False) * 2
    assert change < growth(d, 1, c, clipped=True)


@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 10**6), d=st.integers(2, 40), data=st.data())
def test_growth_bounds_the_change_of_clipped_means(seed: int, d: int, data: st.DataObject) -> None:
    k = data.draw(st.none() | st.integers(1, d))
    generator = rng(seed, "growth")
    n, c, distance = 4, 0.3, 10 ** generator.uniform(-4, 1)
    gradients = generator.normal(size=(n, d)) * generator.choice([1.0, 10.0], size=(n, d))
    moved = gradients + c * distance * generator.choice([-1.0, 1.0], size=(n, d))
    clip_norm = float(np.linalg.norm(gradients, axis=1).mean()) * generator.choice([0.5, 1.0, 1000.0])
    cut = bool(max(np.linalg.norm(rows, axis=1).max() for rows in (gradients, moved)) > clip_norm)
    means = [reference.mean_of_clipped(rows.tolist(), clip_norm) or [] for rows in (gradients, moved)]
    changes = sorted((abs(a - b) for a, b in zip(*means, strict=True)), reverse=True)
    w = ThreatSchedule(d, k, ()).w
    assert math.fsum(changes[:w]) <= growth(d, k, c, clipped=cut) * distance * (1 + 1e-6)


@pytest.mark.parametrize("a", [1, 3, 9])
def test_attackers_who_are_dropped_change_the_mean_by_no_more(a: int) -> None:
    """Updates that are not finite leave the mean, which is then over fewer: still 2 (a/n) L at most."""
    n, d, clip_norm = 10, 6, 1.5
    generator = rng(a, "dropped")
    honest = generator.normal(size=(n, d)) * 3
    full = np.array(reference.mean_of_clipped(honest.tolist(), clip_norm))
    for silent in range(a + 1):
        rows = honest.copy()
        rows[:a] = -50 * honest[a:].sum(axis=0)
        rows[:silent] = math.nan
        mean = np.array(reference.mean_of_clipped(rows.tolist(), clip_norm))
        assert np.linalg.norm(mean - full) <= 2 * a / n * clip_norm


# --- the product's own servers ---------------------------------------------------------------------------------------

# Rule, frame, and what of (rate, clip norm, growth) the round's learning rate is in.
SERVERS: dict[str, tuple[str, dict[str, Any], tuple[bool, bool, bool]]] = {
    "sparsefed": ("sparsefed", {"k": 2, "rho": 0.0}, (True, False, False)),
    "sparsefed, momentum": ("sparsefed", {"k": 2, "rho": 0.9}, (True, False, False)),
    "sparsefed, main box": ("sparsefed", {"k": 2, "rho": 0.9, "feedback": "update"}, (True, False, False)),
    "sparsefed, rate inside": (
        "sparsefed",
        {"k": 3, "rho": 0.5, "preset": "authors-2021-05"},
        (False, True, True),
    ),
    "sparsefed, FedAvg": ("sparsefed", {"k": 3, "rho": 0.9, "mode": "fedavg"}, (False, False, True)),
    "clipping": ("clipping", {"rho": 0.0}, (True, False, False)),
    "clipping, momentum": ("clipping", {"rho": 0.9}, (True, False, False)),
    "clipping, FedAvg, L lr": (
        "clipping",
        {"rho": 0.9, "mode": "fedavg", "preset": "authors-2021-08"},
        (False, True, True),
    ),
}
ATTACKS: dict[str, Callable[[Tensor, Tensor, float], Tensor]] = {
    # From the attackers' own honest updates, the others', and L.
    "opposite": lambda own, others, size: -size * own / own.norm(dim=1, keepdim=True),  # noqa: ARG005
    "diagonal": lambda own, others, size: torch.full_like(own, 100 * size),  # noqa: ARG005
    "against all": lambda own, others, size: -100 * others.sum(dim=0).expand_as(own) * size,
    "lowest coordinate": lambda own, others, size: (
        10 * size * torch.eye(own.shape[1])[others.sum(dim=0).abs().argmin()] + 0 * own
    ),
    "silent": lambda own, others, size: torch.full_like(own, math.nan),  # noqa: ARG005
}


@pytest.mark.slow
@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("server", SERVERS)
def test_the_products_servers_keep_what_is_certified(server: str, attack: str) -> None:
    """One softmax layer, real gradients, the rules that a config builds; three scenes each."""
    name, params, (in_rate, in_clip, in_growth) = SERVERS[server]
    for scene in range(3):
        generator = rng(scene, "certify product")
        n, a, features, rates = 8, 1 + scene, 5, [0.05, 0.4, 0.8, 0.3]
        x = torch.from_numpy(generator.uniform(size=(n, 4, features)))
        y = torch.nn.functional.one_hot(torch.from_numpy(generator.integers(2, size=(n, 4))), 2).double()
        d, clip_norm, fedavg = 2 * features, [0.2, 1.0, 5.0][scene], params.get("mode") == "fedavg"
        c = float((x**2).mean(dim=1).amax(dim=1).mean()) / 4
        defense = build(name, clip_norm=clip_norm, **params)

        def ends(poison: bool) -> tuple[Tensor, bool]:
            theta, state, cut = torch.zeros(d, dtype=torch.float64), defense.init(d), False  # noqa: B023
            for t, rate in enumerate(rates):  # noqa: B023
                logits = torch.einsum("cf,nmf->nmc", theta.reshape(2, features), x)  # noqa: B023
                rows = torch.einsum("nmc,nmf->ncf", logits.softmax(dim=-1) - y, x).flatten(1) / 4  # noqa: B023
                rows = rate * rows if fedavg else rows  # noqa: B023
                context = Context(t, rate)
                budget = defense.budget(state, context)  # noqa: B023
                cut = cut or bool((rows.norm(dim=1) > budget).any())
                if poison:
                    bad = ATTACKS[attack](rows[:a].float(), rows[a:].float(), budget)  # noqa: B023
                    rows = torch.cat([bad.double(), rows[a:]])  # noqa: B023
                step = defense.step(state, as_blocks(rows.float(), 3), context)  # noqa: B023
                state, theta = step.state, theta - step.delta
            return theta, cut

        (benign, cut), (poisoned, also) = ends(False), ends(True)
        k = params.get("k")
        h = growth(d, k, c, clipped=cut or also)
        lines = tuple(
            Line(
                rate if in_rate else 1.0,
                clip_norm * (rate if in_clip else 1.0),
                a / n,
                h * (rate if in_growth else 1.0),
                worst_omega(d, k),
            )
            for rate in rates
        )
        protocol = ThreatSchedule(d, k, lines, 0.0 if params.get("feedback") == "update" else params["rho"])
        distance = float((benign - poisoned).abs().sum())
        assert distance > 0.01  # the attack did something
        for bound in BOUNDS.values():
            assert math.log(distance) <= bound(protocol) + 1e-5  # float32


@pytest.mark.parametrize("k", [None, 2])
def test_attackers_alone_can_keep_a_round_from_happening(k: int | None) -> None:
    """A cohort of attackers who send nothing usable: the server's momentum does not move the model in that round."""
    d, rates = 4, [0.1] * 10 + [1.0, 0.5]
    params = {"clip_norm": 1.0, "rho": 0.9} | ({} if k is None else {"k": k})
    defense = build("clipping" if k is None else "sparsefed", **params)
    ends = []
    for poison in (False, True):
        theta, state = torch.zeros(d), defense.init(d)
        for t, rate in enumerate(rates):
            rows = torch.full((1, d), math.nan if poison and t == 10 else 0.5)
            step = defense.step(state, as_blocks(rows, 1), Context(t, rate))
            state, theta = step.state, theta - step.delta
        ends.append(theta)
    distance = float((ends[0] - ends[1]).abs().sum())
    lines = tuple(Line(rate, 1.0, float(t == 10), 0.0, worst_omega(d, k)) for t, rate in enumerate(rates))
    protocol = ThreatSchedule(d, k, lines, 0.9)
    if k is None:
        assert distance > 2 * (1 + 0.5 * 1.9) * math.sqrt(d)  # what one clipped update could have done
    for bound in BOUNDS.values():
        assert math.log(distance) <= bound(protocol) + 1e-5


# --- arithmetic ------------------------------------------------------------------------------------------------------

rates_ = st.just(0.0) | st.floats(1e-3, 3)
shares = st.sampled_from([0.0, 1.0]) | st.floats(1e-9, 1)


@st.composite
def protocols(draw: st.DrawFn) -> ThreatSchedule:
    """Any protocol."""
    d = draw(st.integers(1, 50))
    k = draw(st.none() | st.integers(1, d))
    rho = draw(st.just(0.0) | st.floats(0.01, 0.95))
    each = st.builds(
        Line,
        rates_,
        st.floats(0.01, 10),
        shares,
        st.floats(0, 30),
        st.just(0.0) if k is None else st.just(worst_omega(d, k)) | st.floats(0, 0.99),
    )
    lines = draw(st.lists(each, min_size=1, max_size=6))
    return ThreatSchedule(d, k, tuple(lines), rho)


@FEWER
@given(protocol=protocols())
def test_the_recursion_in_logarithms_is_the_plain_one(protocol: ThreatSchedule) -> None:
    assert recursion(protocol).log == pytest.approx(log(twin(protocol)), abs=1e-9)
    wide = log(twin(protocol, reference.Terms(coordinates=protocol.d)))
    assert recursion(protocol, protocol.d).log == pytest.approx(wide, abs=1e-9)
    still = log(twin(protocol, reference.Terms(growth=0)))
    assert recursion(protocol).additive == pytest.approx(still, abs=1e-9)


@FEWER
@given(protocol=protocols())
def test_movement_is_what_its_twin_adds_up(protocol: ThreatSchedule) -> None:
    assume(all(line.share < 1 for line in protocol.lines))
    rounds = [(line.rate, line.clip_norm, line.omega) for line in protocol.lines]
    found = reference.furthest(protocol.d, protocol.k or 0, protocol.rho, rounds)
    assert movement(protocol) == pytest.approx(log(found), abs=1e-9)


@FEWER
@given(protocol=protocols())
def test_the_bounds_are_in_order(protocol: ThreatSchedule) -> None:
    middle = recursion(protocol).log + ROUNDING
    assert capped(protocol).log <= min(middle, movement(protocol) + ROUNDING)
    assert recursion(protocol).log <= closed_form(protocol).log + ROUNDING
    if paper_is_bound(protocol):
        assert recursion(protocol).log <= paper_closed_form(protocol).log + ROUNDING
    for radius in (recursion(protocol), capped(protocol), closed_form(protocol), paper_closed_form(protocol)):
        assert radius.log == NOTHING or radius.log == pytest.approx(radius.additive + radius.propagation, abs=1e-9)
        assert radius.propagation >= -ROUNDING
        assert not math.isnan(radius.log10)


def test_the_papers_closed_form_holds_for_rates_from_one() -> None:
    assert paper_is_bound(uniform(20, None, [1, 2, 1.5], 1, 0.1, 0.5))
    assert paper_is_bound(uniform(20, None, [0.1, 0, 2], 1, 0.1, 0.5))  # the first step needs no Bernoulli
    assert not paper_is_bound(uniform(20, None, [2, 0.1], 1, 0.1, 0.5))
    assert not paper_is_bound(uniform(20, None, [1, 1], 1, 0.1, 0.5, rho=0.5))


def test_the_closed_form_knows_that_momentum_goes_on() -> None:
    """Without masking a difference propagates for 1 / (1 - rho) rounds, and through rounds whose rate is 0."""
    long = uniform(10, None, [0.01] * 100, 1, 0.1, 1.0, rho=0.9)
    assert closed_form(long).additive + 10 < recursion(long).log <= closed_form(long).log  # h Lambda is 10
    steep = Line(0.0, 1.0, 0.1, 1e6)
    pause = ThreatSchedule(10, None, (replace(steep, rate=1, growth=0), steep, replace(steep, rate=1, growth=0)), 0.5)
    assert closed_form(pause).additive + 1 < recursion(pause).log <= closed_form(pause).log


@FEWER
@given(protocol=protocols())
def test_without_attackers_there_is_one_run(protocol: ThreatSchedule) -> None:
    calm = replace(protocol, lines=tuple(replace(line, share=0.0) for line in protocol.lines))
    late = replace(calm, lines=(*calm.lines, Line(0.5, 1.0, 0.3, 2.0, 0.0)))
    assert recursion(calm).log == capped(calm).log == closed_form(calm).log == NOTHING
    assert recursion(late).log > NOTHING
    assert recursion(late).propagation == 0


# Each makes an attack no weaker; `more` is from 1.
GROWING: dict[str, Callable[[ThreatSchedule, float], ThreatSchedule]] = {
    "T": lambda p, more: replace(p, lines=(*p.lines, replace(p.lines[-1], rate=p.lines[-1].rate * more))),
    "rate": lambda p, more: replace(p, lines=tuple(replace(line, rate=line.rate * more) for line in p.lines)),
    "c": lambda p, more: replace(p, lines=tuple(replace(line, growth=line.growth * more) for line in p.lines)),
    "share": lambda p, more: replace(p, lines=tuple(replace(x, share=min(1, x.share * more)) for x in p.lines)),
    "clip norm": lambda p, more: replace(p, lines=tuple(replace(x, clip_norm=x.clip_norm * more) for x in p.lines)),
    "omega": lambda p, more: replace(p, lines=tuple(replace(x, omega=1 - (1 - x.omega) / more) for x in p.lines)),
}


@pytest.mark.slow
@pytest.mark.parametrize("what", GROWING)
@FEWER
@given(protocol=protocols(), more=st.floats(1, 3))
def test_more_of_anything_is_never_certified_to_be_less(what: str, protocol: ThreatSchedule, more: float) -> None:
    assume(what != "omega" or protocol.k is not None)
    grown = GROWING[what](protocol, more)
    for bound in BOUNDS.values():
        assert bound(protocol) <= bound(grown) + ROUNDING


@FEWER
@given(protocol=protocols(), t=st.integers(0, 5), more=st.floats(1, 3))
def test_one_larger_rate_is_never_certified_to_be_less(protocol: ThreatSchedule, t: int, more: float) -> None:
    assume(t < len(protocol.lines))
    lines = [replace(line, rate=line.rate * (more if i == t else 1)) for i, line in enumerate(protocol.lines)]
    grown = replace(protocol, lines=tuple(lines))
    for bound in BOUNDS.values():
        assert bound(protocol) <= bound(grown) + ROUNDING


@FEWER
@given(
    k=st.integers(1, 49),
    c=st.floats(0.01, 1),
    omega=st.floats(0, 0.99),
    rho=st.floats(0, 0.9),
    clipped=st.booleans(),
)
def test_at_the_same_omega_a_larger_k_is_never_certified_to_be_less(
    k: int, c: float, omega: float, rho: float, clipped: bool
) -> None:
    small, large = (uniform(50, k_, [0.1, 0.5], 1, 0.1, c, omega=omega, rho=rho, clipped=clipped) for k_ in (k, k + 1))
    assert recursion(small).log <= recursion(large).log + ROUNDING
    assert closed_form(small).log <= closed_form(large).log + ROUNDING


def test_at_the_largest_omega_a_smaller_k_may_be_certified_to_be_more() -> None:
    """Top-k that keeps less holds back more, and what it holds back counts as much as what propagates."""
    few, many = (recursion(uniform(1000, k, [0.1, 0.1], 1, 0.01, 0.001)).log for k in (1, 500))
    assert few > many


def test_sparsity_shrinks_the_additive_term_too() -> None:
    protocol = uniform(10_000, 50, [0.1], 1, 0.01, 0.25, omega=0)
    assert recursion(protocol, 10_000).log - recursion(protocol).log == pytest.approx(math.log(10))
    full = dense(protocol, [growth(10_000, None, 0.25, clipped=False)])
    assert (full.k, full.w, full.lines[0].growth) == (None, 10_000, 2500)
    assert recursion(full).log == pytest.approx(math.log(0.1 * 2 * 0.01 * 100))


def test_radii_beyond_every_float_are_logarithms() -> None:
    protocol = uniform(10_000_000, 50_000, [0.1] * 2000, 5, 0.02, 0.25, rho=0.9)
    radius = recursion(protocol)
    assert 2000 < radius.log10 < closed_form(protocol).log10 < math.inf
    assert capped(protocol).log == pytest.approx(movement(protocol))


def test_from_half_of_the_mass_lost_the_theorem_says_no_more_than_clipping() -> None:
    protocol = uniform(100, 5, [0.1] * 20, 1, 1e-6, 1e-6, omega=0.5)
    assert capped(protocol).log == pytest.approx(movement(protocol))
    assert recursion(protocol).log > movement(protocol) + 0.5
    assert recursion(uniform(100, 5, [0.1] * 20, 1, 1e-6, 1e-6, omega=0.01)).log < movement(protocol) - 0.5


@pytest.mark.slow
def test_the_documents_chart_shows_the_bounds_and_an_attack() -> None:
    """The script behind docs/charts/certificate.svg: the attack is on the capped recursion, above the paper's form."""
    script = runpy.run_path(str(Path(__file__).parents[2] / "docs/charts/certificate.py"))
    drawn: dict[str, dict[int, float]] = {}
    for row in script["rows"]():
        drawn.setdefault(row["what"], {})[row["round"]] = row["log10"]
    closed, open_, cap, paper = (drawn[name] for name in script["LINES"])
    attack = drawn[script["ATTACK"]]
    for t in range(2, script["ROUNDS"] + 1):
        assert paper[t] < attack[t] <= cap[t] + ROUNDING
        assert cap[t] <= open_[t] + ROUNDING <= closed[t]
        assert attack[t] > cap[t] + math.log10(0.97)


# --- refused ---------------------------------------------------------------------------------------------------------

LINE = Line(0.1, 1.0, 0.1, 2.0, 0.0)


@pytest.mark.parametrize(
    ("protocol", "sentence"),
    [
        (ThreatSchedule(0, None, (LINE,)), "d is 0, but a model has at least one parameter"),
        (ThreatSchedule(5, 6, (LINE,)), "k is 6, but top-k keeps from 1 to all d = 5 coordinates"),
        (ThreatSchedule(5, 0, (LINE,)), "k is 0"),
        (ThreatSchedule(5, 2, (LINE,), rho=1), "rho is 1, but momentum must forget"),
        (ThreatSchedule(5, 2, ()), "a protocol has at least one round"),
        (
            ThreatSchedule(5, 2, (LINE, replace(LINE, rate=-1))),
            "round 2: rate is -1, but it must be a finite number from 0",
        ),
        (ThreatSchedule(5, 2, (replace(LINE, rate=math.nan),)), "round 1: rate is nan"),
        (ThreatSchedule(5, 2, (replace(LINE, clip_norm=math.inf),)), "round 1: clip_norm is inf"),
        (ThreatSchedule(5, 2, (replace(LINE, growth=math.inf),)), "round 1: growth is inf"),
        (ThreatSchedule(5, 2, (replace(LINE, share=1.1),)), "round 1: the attackers' share is 1.1"),
        (ThreatSchedule(5, 2, (replace(LINE, omega=1),)), "round 1: omega is 1, but top-k keeps something"),
        (
            ThreatSchedule(5, None, (replace(LINE, omega=0.5),)),
            "round 1: omega is 0.5, but a dense protocol loses nothing",
        ),
    ],
)
def test_what_no_protocol_can_be_is_refused(protocol: ThreatSchedule, sentence: str) -> None:
    for function in (check, recursion, capped, movement, closed_form, paper_closed_form):
        with pytest.raises(ConfigError, match=sentence):
            function(protocol)


def test_the_additive_term_is_on_no_fewer_coordinates_than_can_differ() -> None:
    with pytest.raises(ConfigError, match="width is 3, but coordinates that differ are 4 to all d = 5"):
        recursion(ThreatSchedule(5, 2, (LINE,)), 3)
    with pytest.raises(ConfigError, match="d is 0"):
        uniform(0, 3, [0.1], 1, 0.1, 0.25)
