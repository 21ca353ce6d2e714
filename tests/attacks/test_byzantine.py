"""Untargeted attacks: sign flip, noise, flipped labels, and Fang's directed deviation against the rules it is for."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sparsefed import config as configs
from sparsefed.attacks import Attack, Knowledge
from sparsefed.attacks.fang import fang_krum, fang_trimmed
from sparsefed.attacks.label_flip import label_flip
from sparsefed.attacks.noise import gaussian, sign_flip
from sparsefed.config import BuiltSimulation
from sparsefed.core.errors import ConfigError
from sparsefed.core.round import simulate, start
from sparsefed.core.threat import ThreatModel, malicious_ids
from sparsefed.core.types import Batch

D = 12
SIZES = (2, 1, 3, 2)  # examples of the four attackers


def weighted_pull(theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """The gradient of the mean over the examples of (1 + y) |theta - x|^2 / 2: it depends on every label."""
    return ((1.0 + y)[:, None] * (theta - x)).mean(0)


def knowledge(
    budget: float = math.inf,
    seed: int = 0,
    round: int = 3,
    attackers: int = 4,
    honest: int = 9,
    theta: Tensor | None = None,
) -> Knowledge:
    draw = torch.Generator().manual_seed(seed)
    sizes = np.array([SIZES[i % 4] for i in range(attackers)])
    examples = int(sizes.sum())
    own = Batch(torch.randn(examples, D, generator=draw), torch.randint(10, (examples,), generator=draw), sizes)
    return Knowledge(
        round,
        torch.randn(D, generator=draw) if theta is None else theta,
        budget,
        weighted_pull,
        seed,
        attackers=attackers,
        scale=0.3,
        cohort=attackers + honest,
        own=own,
        honest=torch.randn(honest, D, generator=draw) + 0.3,
    )


ALL: Mapping[str, Attack] = {
    "sign_flip": sign_flip.__wrapped__(None),
    "gaussian": gaussian.__wrapped__(None),
    "label_flip": label_flip.__wrapped__(None),
    "label_flip shift": label_flip.__wrapped__(None, shift=3, boost=7.0),
    "fang_trimmed full": fang_trimmed.__wrapped__(None),
    "fang_trimmed partial": fang_trimmed.__wrapped__(None, knowledge="partial"),
    "fang_krum full": fang_krum.__wrapped__(None),
    "fang_krum partial": fang_krum.__wrapped__(None, knowledge="partial"),
}
EACH = pytest.mark.parametrize("name", ALL)


def declared(known: Knowledge, attack: Attack) -> Knowledge:
    """The same, without what the attack did not say it needs."""
    return replace(
        known,
        own=known.own if "own data" in attack.needs else None,
        honest=known.honest if "honest updates" in attack.needs else None,
    )


# --- what holds for each ---------------------------------------------------------------------------------------------


@EACH
@settings(deadline=None, max_examples=25)
@given(budget=st.floats(1e-3, 1e3) | st.just(math.inf), attackers=st.integers(1, 6), seed=st.integers(0, 99))
def test_the_budget_is_respected(name: str, budget: float, attackers: int, seed: int) -> None:
    sent = ALL[name](declared(knowledge(budget, seed, attackers=attackers), ALL[name]))
    assert sent.shape == (attackers, D) and sent.dtype == torch.float32 and bool(sent.isfinite().all())
    assert float(torch.linalg.vector_norm(sent, dim=1, dtype=torch.float64).max()) <= budget * (1 + 1e-6)


@EACH
def test_the_same_knowledge_gives_the_same_updates(name: str) -> None:
    known = declared(knowledge(), ALL[name])
    again, later = ALL[name](known), ALL[name](replace(known, round=4))
    assert torch.equal(ALL[name](known), again)
    drawn = name in ("gaussian", "fang_trimmed full", "fang_trimmed partial", "fang_krum full", "fang_krum partial")
    assert torch.equal(again, later) != drawn
    assert len({tuple(row) for row in again.tolist()}) == known.attackers  # each attacker its own


@EACH
def test_nothing_is_used_without_leave(name: str) -> None:
    attack = ALL[name]
    if attack.needs:
        with pytest.raises(ConfigError, match="were not granted"):
            attack(replace(knowledge(), own=None, honest=None))


@EACH
@pytest.mark.parametrize("attackers", [1, 3])
def test_degenerate_rounds(name: str, attackers: int) -> None:
    """All honest updates equal, all zero, only one, a model of zeros: still finite numbers of the right shape."""
    known = declared(knowledge(2.0, attackers=attackers, theta=torch.zeros(D)), ALL[name])
    for honest in (torch.ones(5, D), torch.zeros(5, D), torch.ones(1, D)):
        own = None if known.own is None else known.own._replace(x=torch.zeros_like(known.own.x))
        sent = ALL[name](replace(known, own=own, honest=None if known.honest is None else honest))
        assert sent.shape == (attackers, D) and bool(sent.isfinite().all())


# --- noise and labels ------------------------------------------------------------------------------------------------


def local_update(known: Knowledge, device: int, labels: Mapping[int, int]) -> list[float]:
    """scale times the gradient of a device's examples, a number at a time."""
    assert known.own is not None
    first, size = int(known.own.sizes[:device].sum()), int(known.own.sizes[device])
    update = [0.0] * D
    for example in range(first, first + size):
        weight = 1 + labels[int(known.own.y[example])]
        for j in range(D):
            update[j] += known.scale * weight * (float(known.theta[j]) - float(known.own.x[example, j])) / size
    return update


def reversed_labels(classes: int) -> dict[int, int]:
    return dict(zip(range(classes), reversed(range(classes)), strict=True))


SAME = {y: y for y in range(10)}
NEXT = {y: y + 1 for y in range(9)} | {9: 0}


@pytest.mark.parametrize(
    ("attack", "factor", "labels"),
    [
        (sign_flip.__wrapped__(None, boost=4.0), -4.0, SAME),
        (label_flip.__wrapped__(None), 1.0, reversed_labels(10)),
        (label_flip.__wrapped__(None, boost=5.0, classes=12), 5.0, reversed_labels(12)),
        (label_flip.__wrapped__(None, shift=1, boost=2.0), 2.0, NEXT),
        (label_flip.__wrapped__(None, shift=-9), 1.0, NEXT),
    ],
)
@pytest.mark.parametrize("seed", [0, 1])
def test_updates_of_own_data_have_a_naive_twin(
    attack: Attack, factor: float, labels: Mapping[int, int], seed: int
) -> None:
    known = knowledge(seed=seed)
    expected = [[factor * value for value in local_update(known, i, labels)] for i in range(4)]
    torch.testing.assert_close(attack(known).double(), torch.tensor(expected).double(), rtol=1e-5, atol=1e-5)


def test_gaussian_noise_is_that_and_each_attackers_own() -> None:
    sent = gaussian.__wrapped__(None, sigma=3.0)(knowledge(attackers=2, theta=torch.zeros(40_000))).double()
    assert abs(float(sent.mean())) < 0.05 and abs(float(sent.std()) - 3) < 0.05  # 5 standard errors each
    assert abs(float((sent.abs() < 3).double().mean()) - 0.6827) < 0.01
    assert abs(float(torch.corrcoef(sent)[0, 1])) < 0.025


def test_labels_out_of_range_are_refused_with_what_to_do() -> None:
    known = knowledge()
    assert known.own is not None
    with pytest.raises(ConfigError, match=r"classes is 3, but .* set attack\.classes"):
        label_flip.__wrapped__(None, classes=3)(replace(known, own=known.own._replace(y=torch.full((8,), 7))))


# --- Fang ------------------------------------------------------------------------------------------------------------


def interval(models: list[float], b: float) -> tuple[float, float]:
    """The paper's interval for one parameter of a local model, the global one being 0 and these the honest ones."""
    low, high = min(models), max(models)
    if sum(models) > 0:  # it would increase: s = 1, so below the lowest
        return (low / b, low) if low > 0 else (b * low, low)
    return (high, b * high) if high > 0 else (high, high / b)


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 999), b=st.floats(1.1, 9.0), offset=st.sampled_from([-3.0, -0.3, 0.0, 0.3, 3.0]))
def test_full_knowledge_fills_the_papers_intervals(seed: int, b: float, offset: float) -> None:
    honest = torch.randn(5, D, generator=torch.Generator().manual_seed(seed)) + offset
    sent = fang_trimmed.__wrapped__(None, b=b)(replace(knowledge(attackers=100), honest=honest))
    for j in range(D):
        low, high = interval([-float(value) for value in honest[:, j]], b)  # model = 0 - update
        models, slack = -sent[:, j].double(), 1e-5 * max(abs(low), abs(high))
        assert low - slack <= float(models.min()) and float(models.max()) <= high + slack
        assert float(models.max() - models.min()) > 0.8 * (high - low)  # misses with probability 100 * 0.8^99


@pytest.mark.parametrize("seed", range(5))
def test_partial_knowledge_stays_three_to_four_deviations_away(seed: int) -> None:
    known = knowledge(seed=seed)
    own = [local_update(known, i, SAME) for i in range(4)]
    sent = fang_trimmed.__wrapped__(None, knowledge="partial")(known).double()
    for j in range(D):
        mean = sum(row[j] for row in own) / 4
        deviation = math.sqrt(sum((row[j] - mean) ** 2 for row in own) / 4)
        steps = (mean - sent[:, j]) / deviation * math.copysign(1, mean)  # against the mean, in deviations
        assert float(steps.min()) >= 3 - 1e-3 and float(steps.max()) <= 4 + 1e-3


def scores(rows: list[list[float]], f: int) -> list[float]:
    """Krum's, from its definition."""
    found = []
    for i, row in enumerate(rows):
        others = [sum((a - b) ** 2 for a, b in zip(row, rows[j], strict=True)) for j in range(len(rows)) if j != i]
        found.append(sum(sorted(others)[: len(rows) - f - 2]))
    return found


def is_picked(size: float, signs: list[int], copies: int, others: list[list[float]], f: int) -> bool:
    crafted = [[-size * s for s in signs]] * copies
    found = scores(crafted + others, f)
    return min(found[:copies]) < min(found[copies:])


def upper_bound(others: list[list[float]], c: int) -> float:
    """Theorem 1, as printed: m devices, c of them compromised, and the global model at 0."""
    m = len(others) + c
    sums, lengths = [], []
    for i, row in enumerate(others):
        away = [sum((a - b) ** 2 for a, b in zip(row, o, strict=True)) for j, o in enumerate(others) if j != i]
        sums.append(sum(sorted(away)[: m - c - 2]))
        lengths.append(math.sqrt(sum(a * a for a in row)))
    return math.sqrt(min(sums) / ((m - 2 * c - 1) * D)) + max(lengths) / math.sqrt(D)


def halved(signs: list[int], copies: int, others: list[list[float]], budget: float = math.inf) -> float | None:
    size = min(upper_bound(others, copies), budget / math.sqrt(D))
    while size >= 1e-5:
        if is_picked(size, signs, copies, others, copies):
            return size
        size /= 2
    return None


@settings(deadline=None, max_examples=40)
@given(
    seed=st.integers(0, 9999),
    c=st.integers(1, 4),
    m=st.integers(7, 10),
    offset=st.sampled_from([0.0, 0.2, 1.0]),
    budget=st.sampled_from([math.inf, 3.0, 1.0]),
)
def test_full_krum_is_the_papers_search(seed: int, c: int, m: int, offset: float, budget: float) -> None:
    honest = torch.randn(m, D, generator=torch.Generator().manual_seed(seed)) + offset
    others = [[a * min(1.0, budget / math.hypot(*row)) for a in row] for row in honest.double().tolist()]  # as clipped
    unattacked = scores(others, c)
    signs = [1 if value >= 0 else -1 for value in others[unattacked.index(min(unattacked))]]
    sent = fang_krum.__wrapped__(None, epsilon=0.0)(replace(knowledge(budget, attackers=c), honest=honest)).double()
    size = halved(signs, c, others, budget)
    if size is None:
        assert float(sent.abs().max()) < 1e-5
    else:
        torch.testing.assert_close(sent, -size * torch.tensor(signs).double().expand(c, D), rtol=1e-5, atol=0)
    assert not is_picked(1.01 * upper_bound(others, c), signs, c, others, c)


@pytest.mark.parametrize("seed", range(8))
def test_partial_krum_is_the_papers_search(seed: int) -> None:
    """The attackers' own honest updates stand for the others; one crafted update, two, until one is picked."""
    known = knowledge(seed=seed, attackers=7, theta=torch.full((D,), 0.5))
    own = [local_update(known, i, SAME) for i in range(7)]
    signs = [1 if sum(column) >= 0 else -1 for column in zip(*own, strict=True)]
    size = next(size for size in (halved(signs, q, own) for q in (1, 2, 3, 4, 5)) if size is not None)
    sent = fang_krum.__wrapped__(None, knowledge="partial", epsilon=0.0)(known).double()
    torch.testing.assert_close(sent, -size * torch.tensor(signs).double().expand(7, D), rtol=1e-5, atol=0)


def test_attackers_on_krum_stay_close_and_apart() -> None:
    sent = fang_krum.__wrapped__(None, epsilon=0.05)(knowledge(attackers=6)).double()
    away = torch.linalg.vector_norm(sent - sent[0], dim=1) / torch.linalg.vector_norm(sent[0])
    assert float(away[1:].min()) > 0 and float(away.max()) <= 0.05 * (1 + 1e-6)


def test_the_f_of_the_server_is_used_where_it_is_known() -> None:
    """One attacker, f = 4: Krum sums fewer neighbours than with f = 1, and another lambda is the largest."""
    sizes = [float(fang_krum.__wrapped__(None, f=f)(knowledge(seed=1, attackers=1)).abs().max()) for f in (1, 4, None)]
    assert sizes[0] == sizes[2] != sizes[1]


def test_what_an_attack_needs_follows_from_what_it_knows() -> None:
    for build in (fang_trimmed, fang_krum):
        assert build.__wrapped__(None, knowledge="full").needs == {"honest updates"}
        assert build.__wrapped__(None, knowledge="partial").needs == {"own data"}
        with pytest.raises(ConfigError, match="full"):
            build.__wrapped__(None, knowledge="none")  # type: ignore[arg-type]
    assert sign_flip.__wrapped__(None).needs == label_flip.__wrapped__(None).needs == {"own data"}
    assert gaussian.__wrapped__(None).needs == frozenset()


@pytest.mark.parametrize(
    ("build", "wrong"),
    [
        (sign_flip, {"boost": 0.0}),
        (sign_flip, {"boost": math.inf}),
        (gaussian, {"sigma": -1.0}),
        (gaussian, {"sigma": math.nan}),
        (label_flip, {"boost": -1.0}),
        (label_flip, {"classes": 1}),
        (label_flip, {"shift": 20}),
        (fang_trimmed, {"b": 1.0}),
        (fang_krum, {"epsilon": 1.0}),
        (fang_krum, {"threshold": 0.0}),
        (fang_krum, {"f": -1}),
    ],
)
def test_impossible_parameters_are_refused(build: Any, wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"{build.__name__}.*{next(iter(wrong))}"):
        build(None, **wrong)


# --- they bite -------------------------------------------------------------------------------------------------------

FEDERATION: dict[str, Any] = {
    "seed": 5,
    "rounds": 120,
    "data": {"name": "digits", "partition": "one_class", "devices": 300},
    "model": {"name": "softmax"},
    "train": {"cohort": 30, "lr": 0.5, "mode": "fedavg"},
}
TENTH = ThreatModel(share=0.1)
SIX = ThreatModel(per_round=6)  # of 30, as many as the rules below are told: the paper's 20 %


def experiment(attack: Attack | None, threat: ThreatModel, changes: Mapping[str, Any]) -> BuiltSimulation:
    """A run with this attack; nobody wants any labels, so all of the test set is tested on."""
    built = configs.build(configs.parse({**FEDERATION, **changes}))
    federation = built.setup.federation
    malicious = malicious_ids(threat, federation.device_count, federation.seed)
    compromised = replace(federation, threat=threat, malicious=malicious)
    return replace(built, setup=replace(built.setup, federation=compromised, attack=attack))


def accuracy(attack: Attack | None = None, threat: ThreatModel = TENTH, **changes: dict[str, Any]) -> float:
    built = experiment(attack, threat, changes)
    *_, last = simulate(built.setup, start(built.setup, built.theta), 120)
    return float(built.evaluate(last.state.theta)["test_accuracy"])


def test_the_undefended_mean_learns() -> None:
    assert accuracy() > 0.85


@pytest.mark.slow
@pytest.mark.parametrize(
    "attack",
    [
        sign_flip.__wrapped__(None),
        gaussian.__wrapped__(None),
        label_flip.__wrapped__(None, boost=300.0),
        label_flip.__wrapped__(None, shift=1, boost=300.0),
        fang_trimmed.__wrapped__(None, b=20.0),
    ],
    ids=["sign_flip", "gaussian", "label_flip", "label_flip shift", "fang_trimmed"],
)
def test_the_undefended_mean_falls_to_chance(attack: Attack) -> None:
    """One device in ten, ten classes."""
    assert accuracy(attack) <= 0.2


def test_flipped_labels_alone_cost_the_mean_some_accuracy() -> None:
    """As published, without a boost, one device in ten is no more than a nuisance."""
    assert 0.7 < accuracy(label_flip.__wrapped__(None)) < 0.85


def test_the_attack_on_krum_leaves_a_mean_alone() -> None:
    """It hides among updates of ordinary length, which a mean of thirty does not feel."""
    assert accuracy(fang_krum.__wrapped__(None)) > 0.85


@pytest.mark.slow
@pytest.mark.parametrize("defense", [{"name": "trimmed_mean", "f": 6}, {"name": "median"}], ids=["trimmed", "median"])
def test_directed_deviation_breaks_trimmed_mean_and_median(defense: dict[str, Any]) -> None:
    """20 % of one-class devices: to chance with full knowledge, to less than half of the test set with partial."""
    assert accuracy(defense=defense) > 0.8
    assert accuracy(fang_trimmed.__wrapped__(None), SIX, defense=defense) <= 0.2
    assert accuracy(fang_trimmed.__wrapped__(None, knowledge="partial"), SIX, defense=defense) <= 0.5


IID = {"data": {**FEDERATION["data"], "partition": "iid"}, "defense": {"name": "krum", "f": 6}}


@pytest.mark.slow
def test_krum_picks_the_attackers_and_falls_to_chance() -> None:
    """Devices are iid, for on one-class devices Krum learns nothing even unattacked."""
    assert accuracy(None, SIX, **IID) > 0.75
    built = experiment(fang_krum.__wrapped__(None), SIX, IID)
    federation, picked = built.setup.federation, 0
    for report in simulate(built.setup, start(built.setup, built.theta), 120):
        cohort = federation.cohort(report.state.round)
        picked += report.metrics["winner"] in cohort[federation.attackers(cohort, report.state.round)]
    assert picked >= 0.9 * 120
    assert built.evaluate(report.state.theta)["test_accuracy"] <= 0.2


@pytest.mark.slow
def test_krum_is_hurt_by_attackers_who_see_nothing() -> None:
    """20 of 100 who know their own data only: six of 30, with thirty examples in all, guess too badly to do harm."""
    changes = {**IID, "train": {**FEDERATION["train"], "cohort": 100}, "defense": {"name": "krum", "f": 20}}
    clean = accuracy(None, SIX, **changes)
    assert (
        accuracy(fang_krum.__wrapped__(None, knowledge="partial"), ThreatModel(per_round=20), **changes) < clean - 0.2
    )
