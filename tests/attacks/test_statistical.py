"""Attacks that reckon with the spread of the honest updates: their definitions, their budget, and that they bite."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import replace
from statistics import NormalDist, fmean
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sparsefed import config as configs
from sparsefed.attacks import Attack, Knowledge
from sparsefed.attacks.alie import alie, alie_searched, z_max
from sparsefed.attacks.drift import drift
from sparsefed.attacks.ipm import ipm, ipm_searched
from sparsefed.attacks.line_search import maximiser
from sparsefed.attacks.mimic import mimic
from sparsefed.attacks.min_max import min_max, min_sum
from sparsefed.config import BuiltSimulation
from sparsefed.core.errors import ConfigError
from sparsefed.core.round import simulate, start
from sparsefed.core.threat import NEEDS
from sparsefed.core.types import Batch, Context
from sparsefed.defenses import build
from sparsefed.kernels.blocks import RowsBlock

D = 7
ATTACKS: dict[str, Attack] = {
    "alie": alie.__wrapped__(None),
    "alie z = 3": alie.__wrapped__(None, z=3.0),
    "alie_searched": alie_searched.__wrapped__(None, tries=6),
    "ipm": ipm.__wrapped__(None),
    "ipm_searched": ipm_searched.__wrapped__(None, tries=6),
    "min_max": min_max.__wrapped__(None),
    "min_max unit": min_max.__wrapped__(None, direction="unit"),
    "min_max std": min_max.__wrapped__(None, direction="std"),
    "min_sum": min_sum.__wrapped__(None),
    "mimic": mimic.__wrapped__(None),
    "drift": drift.__wrapped__(None),
}
SEEING = [name for name, attack in ATTACKS.items() if "honest updates" in attack.needs]


def updates(m: int, seed: int, d: int = D, scale: float = 1.0, offset: float = 0.5) -> Tensor:
    return scale * (offset + torch.randn(m, d, generator=torch.Generator().manual_seed(seed)))


def server(name: str, d: int = D, **params: Any) -> Callable[[Tensor], Tensor]:
    defense = build(name, mode="fedavg", rho=0.0, **params)
    return lambda rows: defense.step(defense.init(d), [RowsBlock(rows)], Context(1, 0.1)).delta


def gradient(theta: Tensor, x: Tensor, y: Tensor) -> Tensor:  # noqa: ARG001
    return theta + x.float().mean(0)


def known(honest: Tensor, attackers: int = 3, budget: float = math.inf, **more: Any) -> Knowledge:
    """Everything granted; the attackers' own devices hold 1, 2, ... examples."""
    d, sizes = honest.shape[1], np.arange(1, attackers + 1)
    x = updates(int(sizes.sum()), 99, d)
    return Knowledge(
        **{
            "round": 4,
            "theta": torch.zeros(d),
            "budget": budget,
            "gradient": gradient,
            "seed": 5,
            "attackers": attackers,
            "cohort": len(honest) + attackers,
            "own": Batch(x, torch.zeros(len(x)).long(), sizes),
            "honest": honest,
            "serve": server("median", d),
            "server": {},
            **more,
        }
    )


def norm(vector: Tensor) -> float:
    return float(torch.linalg.vector_norm(vector, dtype=torch.float64))


# --- naive twins: loops over numbers, from the definitions -----------------------------------------------------------

Vector = list[float]


def naive_mean(rows: list[Vector]) -> Vector:
    return [sum(row[j] for row in rows) / len(rows) for j in range(len(rows[0]))]


def naive_std(rows: list[Vector]) -> Vector:
    mean = naive_mean(rows)
    return [math.sqrt(sum((row[j] - mean[j]) ** 2 for row in rows) / len(rows)) for j in range(len(mean))]


def naive_square(one: Vector, other: Vector) -> float:
    return sum((a - b) ** 2 for a, b in zip(one, other, strict=True))


def naive_direction(rows: list[Vector], direction: str) -> Vector:
    mean = naive_mean(rows)
    if direction == "std":
        return naive_std(rows)
    if direction == "sign":
        return [math.copysign(1.0, value) if value else 0.0 for value in mean]
    length = math.sqrt(sum(value * value for value in mean))
    return [value / length for value in mean]


def naive_allowed(kind: str, candidate: Vector, rows: list[Vector]) -> bool:
    if kind == "min_max":
        most = max(naive_square(a, b) for a in rows for b in rows)
        return all(naive_square(candidate, row) <= most for row in rows)
    bound = max(sum(naive_square(a, b) for b in rows) for a in rows)
    return sum(naive_square(candidate, row) for row in rows) <= bound


def naive_clipped(rows: Tensor, budget: float) -> list[Vector]:
    clipped = []
    for row in rows.double().tolist():
        length = math.sqrt(sum(value * value for value in row))
        clipped.append([value * min(1.0, budget / length) for value in row])
    return clipped


# --- definitions -----------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=40)
@given(m=st.integers(1, 9), seed=st.integers(0, 99), z=st.floats(0, 4), budget=st.sampled_from([math.inf, 2.0]))
def test_alie_is_the_mean_less_z_standard_deviations(m: int, seed: int, z: float, budget: float) -> None:
    honest = updates(m, seed)
    rows = naive_clipped(honest, budget)
    expected = [a - z * b for a, b in zip(naive_mean(rows), naive_std(rows), strict=True)]
    sent = alie.__wrapped__(None, z=z)(known(honest, budget=budget))
    (wanted,) = naive_clipped(torch.tensor([expected]), budget)
    torch.testing.assert_close(sent.double(), torch.tensor(wanted, dtype=torch.float64), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("n", "f"), [(50, 24), (30, 6), (31, 9), (10, 4), (30, 1), (3, 1), (2, 1), (10, 7)])
def test_z_max_is_as_far_as_enough_honest_devices_go(n: int, f: int) -> None:
    """By counting: with s honest devices beyond them, s + f are more than half; the rest, n - f - s, are nearer."""
    s = next(s for s in range(-n, n) if s + f > n / 2)
    share = (n - f - s) / (n - f)
    found = z_max(n, f)
    if share <= 0.5:
        assert found == 0
    elif share < 1:
        assert math.isclose(NormalDist().cdf(found), share, rel_tol=1e-9)
    else:
        assert 0 < found < math.inf


def test_alie_uses_z_max_unless_told() -> None:
    honest = updates(16, 0)
    usual, told = alie.__wrapped__(None)(known(honest, 14)), alie.__wrapped__(None, z=z_max(30, 14))(known(honest, 14))
    assert torch.equal(usual, told) and z_max(30, 14) > 1


@settings(deadline=None, max_examples=40)
@given(m=st.integers(1, 9), seed=st.integers(0, 99), epsilon=st.floats(0, 20))
def test_ipm_is_the_mean_turned_round(m: int, seed: int, epsilon: float) -> None:
    honest = updates(m, seed)
    expected = [-epsilon * value for value in naive_mean(honest.double().tolist())]
    sent = ipm.__wrapped__(None, epsilon=epsilon)(known(honest))
    torch.testing.assert_close(sent.double(), torch.tensor(expected).double(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("attackers", [1, 3, 9])
def test_ipm_turns_a_plain_mean_right_round(attackers: int) -> None:
    honest = updates(11, 1)
    knowledge = known(honest, attackers)
    everybody = torch.cat([honest, ipm.__wrapped__(None)(knowledge).expand(attackers, -1)])
    share = len(honest) / len(everybody)
    torch.testing.assert_close(everybody.mean(0), -share * honest.mean(0), rtol=1e-4, atol=1e-5)


@settings(deadline=None, max_examples=40)
@given(
    kind=st.sampled_from(["min_max", "min_sum"]),
    direction=st.sampled_from(["unit", "std", "sign"]),
    m=st.integers(2, 7),
    seed=st.integers(0, 99),
    scale=st.sampled_from([1e-3, 1.0, 1e3]),
)
def test_min_max_and_min_sum_go_as_far_as_allowed_and_no_farther(
    kind: str, direction: str, m: int, seed: int, scale: float
) -> None:
    honest = updates(m, seed, scale=scale)
    rows = honest.double().tolist()
    mean, p = naive_mean(rows), naive_direction(rows, direction)
    build = {"min_max": min_max, "min_sum": min_sum}[kind].__wrapped__
    sent = build(None, direction=direction)(known(honest))  # type: ignore[arg-type]
    away = [a - b for a, b in zip(mean, sent.double().tolist(), strict=True)]
    gamma = sum(a * b for a, b in zip(away, p, strict=True)) / sum(b * b for b in p)

    def at(factor: float) -> Vector:
        return [a - factor * gamma * b for a, b in zip(mean, p, strict=True)]

    torch.testing.assert_close(sent.double(), torch.tensor(at(1.0)).double(), rtol=1e-4, atol=1e-4 * scale)
    assert gamma > 0
    assert naive_allowed(kind, at(0.999), rows) and not naive_allowed(kind, at(1.001), rows)


def test_wide_rows_are_taken_in_pieces_without_a_seam() -> None:
    """More coordinates than are looked at together, almost all of them idle: the same gamma as without them."""
    few = updates(5, 3)
    wide = torch.zeros(5, 40_000)
    wide[:, :4], wide[:, -3:] = few[:, :4], few[:, 4:]
    for attack in (min_max.__wrapped__(None), min_sum.__wrapped__(None, direction="unit"), mimic.__wrapped__(None)):
        narrow, found = attack(known(few)), attack(known(wide))
        torch.testing.assert_close(torch.cat([found[:4], found[-3:]]), narrow, rtol=1e-5, atol=1e-6)


@settings(deadline=None, max_examples=40)
@given(m=st.integers(2, 9), seed=st.integers(0, 99))
def test_mimic_copies_the_device_that_stands_out(m: int, seed: int) -> None:
    """Naively: the top direction by 2^30 power steps on the covariance, then the largest projection."""
    honest = updates(m, seed)
    centred = honest.double() - honest.double().mean(0)
    power = sum((torch.outer(row, row) for row in centred), torch.zeros(D, D, dtype=torch.float64))
    for _ in range(30):
        power = power @ power
        power = power / power.norm()
    z = power @ torch.linspace(1, 2, D, dtype=torch.float64)
    stands_out = (centred @ (z / z.norm())).abs()
    sent = mimic.__wrapped__(None)(known(honest))
    (who,) = [i for i in range(m) if torch.equal(honest[i], sent)]
    assert float(stands_out[who]) >= 0.9999 * float(stands_out.max())


def test_mimic_shifts_a_mean_by_its_share_of_one_device() -> None:
    honest = torch.cat([updates(8, 0, scale=0.1), 5 + updates(1, 1)])
    sent = mimic.__wrapped__(None)(known(honest, 3))
    assert torch.equal(sent, honest[8])
    shifted = torch.cat([honest, sent.expand(3, -1)]).mean(0)
    torch.testing.assert_close(shifted - honest.mean(0), 3 / 12 * (sent - honest.mean(0)), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("scale", [1.0, 0.25])
def test_drift_pushes_along_signs_at_c_times_an_honest_norm(scale: float) -> None:
    knowledge = known(updates(5, 0), 3, scale=scale, theta=torch.linspace(-1, 1, D))
    assert knowledge.own is not None
    norms, first = [], 0
    for size in (1, 2, 3):
        mean = naive_mean(knowledge.own.x[first : first + size].double().tolist())
        norms.append(math.sqrt(sum((a + b) ** 2 for a, b in zip(knowledge.theta.tolist(), mean, strict=True))))
        first += size
    sent = drift.__wrapped__(None, c=4.0)(knowledge)
    assert math.isclose(norm(sent), 4 * scale * sum(norms) / 3, rel_tol=1e-5)
    torch.testing.assert_close(sent.abs(), sent.abs()[:1].expand(D))


def test_drift_never_turns() -> None:
    """The same signs whatever the round, the model and the attackers; others with another seed; as many up as down."""
    many = updates(5, 0, d=2000)
    moments = [known(many, a, round=r, theta=torch.full((2000,), t)) for a, r, t in [(1, 1, 0.0), (4, 9, 2.0)]]
    one, other = (torch.sign(drift.__wrapped__(None)(moment)) for moment in moments)
    third = torch.sign(drift.__wrapped__(None)(replace(moments[0], seed=6)))
    assert torch.equal(one, other) and abs(float(one.mean())) < 0.1 and abs(float((one * third).mean())) < 0.1


# --- the search ------------------------------------------------------------------------------------------------------

RULES: dict[str, tuple[str, dict[str, Any]]] = {
    "trimmed_mean": ("trimmed_mean", {"f": 6}),
    "median": ("median", {}),
    "clipping": ("clipping", {"clip_norm": 5.0}),
    "multi_krum": ("multi_krum", {"f": 6}),
    "krum": ("krum", {"f": 13}),  # bears no smaller cohort than the 30 devices
    "sparsefed": ("sparsefed", {"k": 5, "clip_norm": 5.0}),
    "mean": ("mean", {}),
}


def deviations(rule: str, seed: int, attacks: tuple[Attack, ...]) -> list[float]:
    """How far each attack moves the server from what it does with the honest updates and unusable ones."""
    name, params = RULES[rule]
    serve, honest = server(name, 20, **params), updates(24, seed, 20)
    knowledge = known(honest, 6, float(params.get("clip_norm", math.inf)), serve=serve)
    undisturbed = serve(torch.cat([honest, torch.full((6, 20), math.nan)]))
    return [norm(serve(torch.cat([honest, attack(knowledge).expand(6, -1)])) - undisturbed) for attack in attacks]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("method", ["alie", "ipm"])
def test_a_searched_strength_moves_the_server_at_least_as_far(method: str, rule: str) -> None:
    pairs = {
        "alie": (alie.__wrapped__(None), alie_searched.__wrapped__(None)),
        "ipm": (ipm.__wrapped__(None), ipm_searched.__wrapped__(None)),
    }
    for seed in range(5):
        usual, found = deviations(rule, seed, pairs[method])
        assert found >= usual * (1 - 1e-6)


@pytest.mark.parametrize(
    ("rule", "gain"), [("trimmed_mean", 1.5), ("median", 1.5), ("clipping", 2.0), ("multi_krum", 1.2), ("mean", 100.0)]
)
def test_searching_z_pays(rule: str, gain: float) -> None:
    for seed in range(5):
        usual, found = deviations(rule, seed, (alie.__wrapped__(None), alie_searched.__wrapped__(None)))
        assert found > gain * usual


@pytest.mark.parametrize("rule", ["trimmed_mean", "median", "multi_krum"])
def test_the_search_is_near_the_best_of_a_fine_grid(rule: str) -> None:
    for seed in range(3):
        grid = tuple(alie.__wrapped__(None, z=0.1 * 1.1**i) for i in range(97))
        found, *others = deviations(rule, seed, (alie_searched.__wrapped__(None), *grid))
        assert found > 0.9 * max(others)


@pytest.mark.parametrize("tries", [6, 7, 16, 25])
def test_a_search_tries_as_often_as_it_was_told(tries: int) -> None:
    asked: list[float] = []

    def peak(x: float) -> float:
        asked.append(x)
        return -abs(math.log(x / 3))

    best = maximiser(peak, 0.05, 1000.0, tries)
    assert len(asked) == tries and best == max(asked, key=lambda x: -abs(math.log(x / 3)))
    assert maximiser(lambda x: 1.0, 0.05, 1000.0, tries) == 0.05  # noqa: ARG005 (of equals, the smallest)


def test_a_server_that_does_not_drop_what_is_not_finite_is_searched_too() -> None:
    honest = updates(8, 0)
    sent = ipm_searched.__wrapped__(None, most=50.0)(known(honest, 2, serve=lambda rows: rows.mean(0)))
    torch.testing.assert_close(sent, -50 * honest.mean(0))


# --- for each of them ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ATTACKS)
@settings(deadline=None, max_examples=15)
@given(
    budget=st.floats(1e-3, 1e3), m=st.integers(1, 8), attackers=st.integers(1, 6), scale=st.sampled_from([0.0, 0.1, 50])
)
def test_the_budget_is_respected(name: str, budget: float, m: int, attackers: int, scale: float) -> None:
    sent = ATTACKS[name](known(updates(m, m, scale=scale), attackers, budget))
    assert sent.shape == (D,) and sent.dtype == torch.float32
    assert norm(sent) <= budget * (1 + 1e-6)


@pytest.mark.parametrize("name", ATTACKS)
def test_same_knowledge_same_update_and_nothing_written(name: str) -> None:
    honest = updates(9, 0)
    before = honest.clone()
    one, other = ATTACKS[name](known(honest, 4)), ATTACKS[name](known(honest.clone(), 4))
    assert torch.equal(one, other) and torch.equal(honest, before)


@pytest.mark.parametrize("name", SEEING)
def test_who_has_seen_nobody_says_so(name: str) -> None:
    with pytest.raises(ConfigError, match="honest updates"):
        ATTACKS[name](replace(known(updates(3, 0)), honest=None))


@pytest.mark.parametrize("name", SEEING)
def test_honest_updates_that_are_equal_or_not_numbers_are_borne(name: str) -> None:
    same, broken = torch.ones(6, D), torch.ones(6, D)
    broken[2, 1], broken[4, 0] = math.nan, math.inf
    sent, despite = (ATTACKS[name](known(rows, 1, 3.0)) for rows in (same, broken))
    assert bool(torch.isfinite(sent).all()) and bool(torch.isfinite(despite).all())
    hopeless = ATTACKS[name](known(torch.full((4, D), math.nan), 1, 3.0))
    assert torch.equal(hopeless, torch.zeros(D))


def test_impossible_parameters_are_refused() -> None:
    wrong: dict[str, Callable[[], Attack]] = {
        "z >= 0": lambda: alie.__wrapped__(None, z=-1.0),
        "epsilon >= 0": lambda: ipm.__wrapped__(None, epsilon=math.inf),
        "tries at least 6": lambda: alie_searched.__wrapped__(None, tries=5),
        "most must be positive": lambda: ipm_searched.__wrapped__(None, most=0.0),
        "unknown direction 'sgn'": lambda: min_sum.__wrapped__(None, direction="sgn"),  # type: ignore[arg-type]
        "c > 0": lambda: drift.__wrapped__(None, c=0.0),
    }
    for sentence, making in wrong.items():
        with pytest.raises(ConfigError, match=sentence):
            making()
    with pytest.raises(ConfigError, match="all 3 devices"):
        z_max(3, 3)


# --- they bite -------------------------------------------------------------------------------------------------------

FEDERATION: dict[str, Any] = {
    "seed": 5,
    "rounds": 120,
    "data": {"name": "digits", "partition": "one_class", "devices": 300},
    "model": {"name": "softmax"},
    "train": {"cohort": 30, "lr": 0.5, "mode": "fedavg"},
}
DEFENSES: dict[str, dict[str, Any]] = {
    "mean": {"name": "mean"},
    "trimmed_mean": {"name": "trimmed_mean", "f": 6},
    "median": {"name": "median"},
    "clipping": {"name": "clipping", "clip_norm": 0.5},
    "multi_krum": {"name": "multi_krum", "f": 6},
}
CHANCE = 0.2  # near it, of ten classes


def experiment(attack: str | None, defense: str, hostile: float) -> BuiltSimulation:
    """Attacked by a share of all devices, or, from 1 on, by so many of each round."""
    table = {**FEDERATION, "defense": DEFENSES[defense]}
    if attack:
        table["threat"] = {("share" if hostile < 1 else "per_round"): hostile, "knowledge": list(NEEDS)}
        table["attack"] = {"name": f"sparsefed.attacks.{attack}"}
    return configs.build(configs.parse(table))


@functools.cache
def late(attack: str | None, defense: str = "mean", hostile: float = 0.1) -> dict[str, float]:
    """Test accuracy and loss, a mean over five moments of the last 20 of 120 rounds."""
    built = experiment(attack, defense, hostile)
    reports = list(simulate(built.setup, start(built.setup, built.theta), 120))
    seen = [built.evaluate(report.state.theta) for report in reports[103::4]]
    return {name: fmean(one[name] for one in seen) for name in ("test_accuracy", "test_loss")}


def test_unattacked_the_model_learns() -> None:
    assert late(None)["test_accuracy"] > 0.85


@pytest.mark.parametrize("attack", ["ipm:ipm", "ipm:ipm_searched", "alie:alie_searched", "drift:drift"])
def test_one_in_ten_brings_the_mean_to_chance(attack: str) -> None:
    assert late(attack)["test_accuracy"] <= CHANCE


@pytest.mark.parametrize("attack", ["min_max:min_max", "min_max:min_sum"])
def test_min_max_and_min_sum_bring_the_mean_to_chance_with_three_in_ten(attack: str) -> None:
    """They keep within the honest spread, so that one in ten costs a mean 5 to 16 points and no more."""
    assert late(attack, hostile=0.3)["test_accuracy"] <= CHANCE


@pytest.mark.parametrize("attack", ["min_max:min_max", "min_max:min_sum"])
@pytest.mark.parametrize("defense", ["trimmed_mean", "median"])
def test_min_max_and_min_sum_bring_rules_that_trust_the_spread_to_chance_with_two_in_ten(
    attack: str, defense: str
) -> None:
    """As many attackers in each round as the trimmed mean was told to bear, and never more."""
    assert late(None, defense)["test_accuracy"] > 0.8
    assert late(attack, defense, 6)["test_accuracy"] <= CHANCE


def test_alie_as_published_does_not_bite_with_one_in_ten() -> None:
    """z_max is 0.05 for 3 of 30: nothing to see, and nothing done. It is the search that makes it an attack."""
    assert late("alie:alie")["test_accuracy"] > 0.85


def test_mimic_costs_the_mean_confidence_and_no_accuracy() -> None:
    """Copies of honest updates cannot break a mean."""
    clean, copied = late(None), late("mimic:mimic")
    assert copied["test_loss"] > 1.3 * clean["test_loss"]
    assert copied["test_accuracy"] > clean["test_accuracy"] - 0.05


def test_mimic_misleads_a_median_where_some_rounds_are_half_copies() -> None:
    """Three in ten of all devices: 9 of a round's 30 on average, up to 15 in some, and those do the harm."""
    clean, misled = late(None, "median"), late("mimic:mimic", "median", 0.3)
    assert misled["test_loss"] > 3 * clean["test_loss"]
    assert misled["test_accuracy"] < clean["test_accuracy"] - 0.03


@pytest.mark.parametrize(
    ("method", "defense", "gain"),
    [
        ("alie", "trimmed_mean", 0.05),
        ("alie", "clipping", 0.05),
        ("alie", "multi_krum", 0.05),
        ("ipm", "multi_krum", 0.3),
    ],
)
def test_searching_pays_in_a_run(method: str, defense: str, gain: float) -> None:
    """6 of each round's 30: accuracy lost beyond what the usual strength costs.

    Where it does, not everywhere: ALIE does no harm to a median either way, and the usual IPM is about as harmful as
    the searched one to a trimmed mean, a median and clipping.
    """
    usual, found = (late(f"{method}:{name}", defense, 6) for name in (method, f"{method}_searched"))
    assert found["test_accuracy"] < usual["test_accuracy"] - gain


@pytest.mark.parametrize("defense", ["trimmed_mean", "median", "clipping", "multi_krum"])
@pytest.mark.parametrize("method", ["alie", "ipm"])
def test_in_every_round_of_a_run_the_searched_one_moves_the_server_at_least_as_far(method: str, defense: str) -> None:
    usual, searched = {
        "alie": (alie.__wrapped__(None), alie_searched.__wrapped__(None)),
        "ipm": (ipm.__wrapped__(None), ipm_searched.__wrapped__(None)),
    }[method]
    seen: list[tuple[float, float]] = []

    def both(knowledge: Knowledge) -> Tensor:
        assert knowledge.serve is not None and knowledge.honest is not None
        a, serve, honest = knowledge.attackers, knowledge.serve, knowledge.honest
        without = serve(torch.cat([honest, torch.full((a, honest.shape[1]), math.nan)]))
        sent = [attack(knowledge) for attack in (usual, searched)]
        one, other = (norm(serve(torch.cat([honest, row.expand(a, -1)])) - without) for row in sent)
        seen.append((one, other))
        return sent[1]

    built = experiment(f"{method}:{method}_searched", defense, 6)
    protocol = replace(built.setup, attack=Attack(both, searched.needs))
    assert len(list(simulate(protocol, start(protocol, built.theta), 25))) == len(seen) == 25
    assert all(found >= plain * (1 - 1e-5) for plain, found in seen)
    farther = sum(found > 1.02 * plain for plain, found in seen)
    assert farther >= {"alie": 20, "ipm": 1}[method]  # the usual epsilon is about as far as a median can be moved
