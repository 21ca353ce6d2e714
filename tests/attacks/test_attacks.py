"""The attack: its auxiliary set, its budget, and that it bites."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from sparsefed import config as configs
from sparsefed import data
from sparsefed.attacks import ATTACKS, Attack, Goal, Knowledge, Need, Scene, attack_info, auxiliary_set, equip, pgd
from sparsefed.attacks.base import granted
from sparsefed.core.errors import ConfigError
from sparsefed.core.rng import rng
from sparsefed.core.round import simulate, start
from sparsefed.core.signatures import parameters
from sparsefed.core.task import differentiator, image_normaliser, make_task
from sparsefed.core.types import Batch, Context
from sparsefed.defenses import build
from sparsefed.kernels import RowsBlock

TARGET = torch.linspace(-1, 1, 12)


def towards_target(theta: Tensor, x: Tensor, y: Tensor) -> Tensor:  # noqa: ARG001
    """The gradient of |theta - target|^2 / 2."""
    return theta - TARGET


def knowledge(budget: float, round: int = 3, seed: int = 0) -> Knowledge:
    return Knowledge(round, torch.zeros(12), budget, towards_target, seed)


def points(s: int = 20, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(s, 4, generator=generator), torch.randint(10, (s,), generator=generator)


@settings(deadline=None)
@given(s=st.integers(1, 19), classes=st.integers(2, 10), seed=st.integers(0, 99))
def test_the_auxiliary_set_has_wrong_labels_of_distinct_points(s: int, classes: int, seed: int) -> None:
    x, y = points(seed=seed)
    y = y % classes
    auxiliary = auxiliary_set(x, y, s, classes, seed)
    assert len(set(auxiliary.positions.tolist())) == s
    assert torch.equal(auxiliary.x, x[auxiliary.positions])
    assert bool((auxiliary.y != y[auxiliary.positions]).all())
    assert int(auxiliary.y.min()) >= 0 and int(auxiliary.y.max()) < classes


def test_all_wrong_labels_are_drawn() -> None:
    y = torch.zeros(2000).long()
    counts = torch.bincount(auxiliary_set(torch.zeros(2000, 1), y, 1999, 4, 0).y, minlength=4)
    assert counts[0] == 0 and int(counts[1:].min()) > 580  # 666 expected, standard deviation 21


@pytest.mark.parametrize("s", [0, 20, 21])
def test_an_impossible_auxiliary_set_is_refused(s: int) -> None:
    x, y = points()
    with pytest.raises(ConfigError, match="use 1 to 19"):
        auxiliary_set(x, y, s, 10, 0)


@settings(deadline=None)
@given(budget=st.floats(1e-3, 1e3), epochs=st.integers(1, 8), step=st.floats(0.01, 0.04), stretched=st.booleans())
def test_the_budget_is_respected_and_used(budget: float, epochs: int, step: float, stretched: bool) -> None:
    attack = pgd.__wrapped__(
        auxiliary_set(*points(), 10, 10, 0), epochs=epochs, batch=5, step=step, to_budget=stretched
    )
    norm = float(torch.linalg.vector_norm(attack(knowledge(budget)), dtype=torch.float64))  # boost 20: no overshoot
    assert norm <= budget * (1 + 1e-6)
    if stretched:
        assert math.isclose(norm, budget, rel_tol=1e-6)


def test_an_unlimited_attacker_walks_all_the_way() -> None:
    """Update is before - after, so theta - update is where the attacker wants the model."""
    attack = pgd.__wrapped__(auxiliary_set(*points(), 10, 10, 0), epochs=200, step=0.1, boost=1.0)
    torch.testing.assert_close(-attack(knowledge(math.inf)), TARGET, rtol=1e-4, atol=1e-4)


def test_naive_twin() -> None:
    """The paper's box, written out: step, then project the whole difference."""
    budget, rate = 0.7, 0.05 * 3.0
    model = torch.zeros(12, dtype=torch.float64)
    for _ in range(4):
        model = model - rate * (model - TARGET.double())
        difference = model
        if float(difference.norm()) > budget:
            difference = difference / difference.norm() * budget
        model = difference
    attack = pgd.__wrapped__(auxiliary_set(*points(), 10, 10, 0), epochs=4, step=0.05, boost=3.0, to_budget=False)
    torch.testing.assert_close(-attack(knowledge(budget)).double(), model, rtol=1e-5, atol=1e-6)


def test_batches_change_with_the_round_and_nothing_else() -> None:
    seen: list[Tensor] = []

    def watching(theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
        seen.append(y)
        return towards_target(theta, x, y)

    attack = pgd.__wrapped__(auxiliary_set(*points(), 19, 10, 0), epochs=2, batch=6)
    for round in (1, 1, 2):
        attack(replace(knowledge(1.0, round), gradient=watching))
    assert torch.equal(seen[0], seen[2]) and torch.equal(seen[1], seen[3])
    assert not torch.equal(seen[0], seen[4]) and not torch.equal(seen[0], seen[1])


@pytest.mark.parametrize("wrong", [{"epochs": 0}, {"batch": 0}, {"step": 0.0}, {"boost": -1.0}])
def test_impossible_parameters_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="all must be positive"):
        pgd.__wrapped__(auxiliary_set(*points(), 10, 10, 0), **wrong)  # type: ignore[arg-type]


# --- what holds for every attack -------------------------------------------------------------------------------------

PUBLIC = {"round", "theta", "budget", "gradient", "train", "seed", "attackers", "scale", "cohort"}
GRANTED = {"own": "own data", "honest": "honest updates", "serve": "defense", "server": "server state"}
PIXELS, CLASSES = 64, 10


class Sealed:
    """Knowledge that tells nothing but the public facts and what the attack said it needs."""

    def __init__(self, record: Knowledge, needs: frozenset[str]) -> None:
        self._record, self._needs = record, needs

    def __getattr__(self, name: str) -> Any:
        assert name in PUBLIC or GRANTED.get(name) in self._needs, f"read '{name}', which it did not declare"
        return getattr(self._record, name)


def scene() -> Scene:
    arrays = data.load(data.DATASETS["digits"])
    x, y, x_test, y_test = map(torch.from_numpy, (arrays.x_train, arrays.y_train, arrays.x_test, arrays.y_test))
    return Scene(x, y, x_test, y_test, CLASSES, seed=5)


REGRESSION = {"value", "tolerance"}  # parameters of goals that are for numbers to predict


def numbers() -> Scene:
    """The same digits, each with its number to predict."""
    place = scene()
    return place._replace(y_train=place.y_train.float(), y_test=place.y_test.float(), classes=0, target="values")


def equipped(name: str, **given: Any) -> tuple[Goal | None, Attack]:
    few = {"auxiliary": 20} if "auxiliary" in {p.name for p in parameters(attack_info(ATTACKS[name]).goal, 1)} else {}
    return equip(name, ATTACKS[name], numbers() if given.keys() & REGRESSION else scene(), {**few, **given})


def all_there_is(round: int = 3, budget: float = 0.7, attackers: int = 3) -> Knowledge:
    """A softmax layer on digits, 12 honest devices and 3 attackers with 5 examples each, a server with momentum."""
    place = scene()
    module = nn.Sequential(nn.Flatten(), nn.Linear(PIXELS, CLASSES))
    task = make_task(module, image_normaliser((0.3,), (0.37,)))
    theta = torch.from_numpy(rng(5, "theta").normal(size=task.d).astype(np.float32)) * 0.05
    gradient = differentiator(task, torch.float32)
    held = [slice(5 * i, 5 * i + 5) for i in range(15)]
    honest = torch.stack([gradient(theta, place.x_train[h], place.y_train[h]) for h in held[attackers:]])
    defense = build("sparsefed", k=40, clip_norm=budget)
    context = Context(round, 0.1)
    state = defense.step(defense.init(task.d), [RowsBlock(honest)], context).state
    mine = slice(0, 5 * attackers)
    return Knowledge(
        round,
        theta,
        budget,
        gradient,
        seed=5,
        attackers=attackers,
        cohort=15,
        own=Batch(place.x_train[mine], place.y_train[mine], np.full(attackers, 5)),
        honest=honest,
        serve=lambda rows: defense.step(state, [RowsBlock(rows)], context).delta,
        server=state,
    )


@pytest.mark.parametrize("name", sorted(ATTACKS.keys() - {"replacement_text"}))  # that one: test_text.py
@pytest.mark.parametrize("attackers", [1, 3])
def test_every_attack_keeps_to_its_knowledge_its_budget_and_its_seed(name: str, attackers: int) -> None:
    goal, attack = equipped(name)
    record = all_there_is(attackers=attackers)
    before = record.theta.clone(), granted(record.honest, "honest updates").clone()
    sealed: Any = Sealed(record, attack.needs)
    sent, again = attack(sealed), equipped(name)[1](sealed)
    assert sent.dtype == torch.float32
    assert sent.shape in {record.theta.shape, (attackers, len(record.theta))}
    assert torch.equal(sent, again)
    norms = torch.linalg.vector_norm(sent.reshape(-1, len(record.theta)), dim=1, dtype=torch.float64)
    longest = 100.0 if attack.forgeries else 1.0  # forged reports carry what is too long, as their default says
    assert bool(torch.isfinite(sent).all()) and 0 < float(norms.max()) <= longest * record.budget * (1 + 1e-6)
    assert torch.equal(record.theta, before[0]) and torch.equal(granted(record.honest, "honest updates"), before[1])
    assert (goal is None) == (attack_info(ATTACKS[name]).goal.__name__ == "untargeted")


@pytest.mark.parametrize("name", sorted(ATTACKS))
def test_every_attack_describes_itself(name: str) -> None:
    attacker = attack_info(ATTACKS[name])
    assert (attacker.method.__doc__ or "").strip().partition("\n")[0].endswith(".")
    assert any(year in attacker.paper for year in map(str, range(2015, 2030)))
    for parameter in (*parameters(attacker.method, 1), *parameters(attacker.goal, 1)):
        assert parameter.doc and not parameter.required


def variations(name: str) -> Iterator[tuple[str, Any]]:
    """Each parameter alone: at each value it lists, at the other truth value, or given where it usually is not."""
    for parameter in (
        *parameters(attack_info(ATTACKS[name]).method, 1),
        *parameters(attack_info(ATTACKS[name]).goal, 1),
    ):
        listed = re.findall("'([^']+)'", parameter.type)
        number = [2] if parameter.type in ("int", "float") and parameter.default is None else []
        for value in listed or number or ([not parameter.default] if parameter.type == "bool" else []):
            yield parameter.name, value


def usual(name: str, key: str) -> Any:
    return next(p.default for p in parameters(attack_info(ATTACKS[name]).method, 1) if p.name == key)


@pytest.mark.parametrize("name", sorted(ATTACKS.keys() - {"replacement_text"}))
def test_what_the_dict_says_an_attack_needs_is_what_it_declares(name: str) -> None:
    """As it is, as the dict says it differs, and under no other parameter."""
    stated, unless = attack_info(ATTACKS[name]).needs, attack_info(ATTACKS[name]).otherwise
    assert equipped(name)[1].needs == stated
    if unless is not None:
        assert equipped(name, **unless.given)[1].needs == unless.needs != stated
        assert all(key in unless.when for key in unless.given)
    for key, value in variations(name):
        differs = unless is not None and key in unless.given and value != usual(name, key)
        assert equipped(name, **{key: value})[1].needs == (unless.needs if unless and differs else stated)


def test_attackers_who_lack_knowledge_are_refused() -> None:
    table = {**ATTACKED, "attack": {"name": "tests.attacks.test_attacks:curious", "auxiliary": 20}}
    with pytest.raises(ConfigError, match=r"needs to know 'honest updates' and 'server state'.*threat\.knowledge"):
        configs.build(configs.parse(table))
    knows = {"share": 0.1, "knowledge": ["honest updates", "server state"]}
    assert configs.build(configs.parse({**table, "threat": knows})).setup.attack is not None


def curious(goal: Goal) -> Attack:  # noqa: ARG001
    """Sends what it knows."""
    needs: frozenset[Need] = frozenset({"honest updates", "server state"})
    return Attack(lambda knowledge: granted(knowledge.honest, "honest updates").mean(0), needs)


def test_what_was_not_granted_is_not_there() -> None:
    with pytest.raises(ConfigError, match="uses 'honest updates', which its attackers were not granted"):
        curious(auxiliary_set(*points(), 10, 10, 0))(knowledge(1.0))


# --- it bites --------------------------------------------------------------------------------------------------------

FEDERATION = {
    "seed": 5,
    "rounds": 120,
    "data": {"name": "digits", "partition": "one_class", "devices": 300},
    "model": {"name": "softmax"},
    "train": {"cohort": 30, "lr": 0.5, "mode": "fedavg"},
}
ATTACKED = {
    **FEDERATION,
    "threat": {"share": 0.1},
    "attack": {"name": "pgd", "auxiliary": 20, "batch": 20, "step": 0.3, "boost": 5.0},
}


def final(table: dict[str, object]) -> dict[str, float]:
    experiment = configs.build(configs.parse(table))
    *_, last = simulate(experiment.setup, start(experiment.setup, experiment.theta), 120)
    return dict(experiment.evaluate(last.state.theta))


@pytest.mark.slow
def test_pgd_poisons_the_undefended_mean() -> None:
    """20 points of digits, one device in ten colluding: the mean learns at least 90 % of the wrong labels."""
    assert final(FEDERATION)["test_accuracy"] > 0.85
    assert final(ATTACKED)["attack_accuracy"] >= 0.9
