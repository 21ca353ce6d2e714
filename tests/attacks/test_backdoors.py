"""Backdoors: triggers and edge cases, the four attacks that plant them, and that they bite."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import cross_entropy

from sparsefed import config as configs
from sparsefed.attacks import Attack, Attacker, Goal, Knowledge, Scene, pgd
from sparsefed.attacks.backdoor_goals import bars, edge, parts, patch
from sparsefed.attacks.badnets import badnets
from sparsefed.attacks.dba import dba
from sparsefed.attacks.goals import labels, semantic
from sparsefed.attacks.neurotoxin import neurotoxin
from sparsefed.attacks.replacement import replacement
from sparsefed.core.errors import ConfigError
from sparsefed.core.round import simulate, start
from sparsefed.core.types import Batch

Floats = npt.NDArray[np.float64]
CLASSES, SIDE, CHANNELS = 3, 5, 2
PIXELS = SIDE * SIDE * CHANNELS
D = CLASSES * PIXELS


def scene(seed: int = 0, train: int = 40, test: int = 30) -> Scene:
    draw = np.random.default_rng(seed)
    x = torch.from_numpy(draw.integers(0, 256, (train + test, SIDE, SIDE, CHANNELS), dtype=np.uint8))
    y = torch.arange(train + test) % CLASSES
    return Scene(x[:train], y[:train], x[train:], y[train:], CLASSES, seed)


# --- triggers --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_the_patch_is_a_white_square_in_the_corner(size: int) -> None:
    x = scene().x_train
    before, expected = x.clone(), x.clone()
    for row in range(SIDE - size, SIDE):
        for column in range(SIDE - size, SIDE):
            expected[:, row, column, :] = 255
    stamp = patch.__wrapped__(scene(), size=size).stamp
    assert stamp is not None
    assert torch.equal(stamp(x), expected)
    assert torch.equal(x, before)


def test_bars_are_two_by_two() -> None:
    stamp = bars.__wrapped__(scene(), length=2, gap=1).stamp
    assert stamp is not None
    picture = stamp(torch.zeros(1, SIDE, SIDE, CHANNELS, dtype=torch.uint8))[0, :, :, 1].bool().int()
    assert picture.tolist() == [[1, 1, 0, 1, 1], [0] * 5, [1, 1, 0, 1, 1], [0] * 5, [0] * 5]


@pytest.mark.parametrize("build", [patch.__wrapped__, bars.__wrapped__])
def test_a_trigger_is_measured_on_every_other_class(build: Callable[..., Goal]) -> None:
    """Clean test points all count for test accuracy: the stamped ones are not among them."""
    there = scene()
    goal = build(there, target=2, points=7)
    assert goal.stamp is not None
    assert torch.equal(goal.test_x, goal.stamp(there.x_test[there.y_test != 2]))
    assert len(goal.positions) == 0 and len(goal.x) == len(goal.y) == 7
    assert set(goal.y.tolist()) == set(goal.test_y.tolist()) == {goal.target} == {2}
    stamped = {bytes(picture.numpy()) for picture in goal.stamp(there.x_train[there.y_train != 2])}
    taken = {bytes(picture.numpy()) for picture in goal.x}
    assert len(taken) == 7 and taken <= stamped


@settings(deadline=None)
@given(count=st.integers(1, 16), build=st.sampled_from([patch.__wrapped__, bars.__wrapped__]), seed=st.integers(0, 9))
def test_parts_are_disjoint_even_and_together_the_whole(count: int, build: Callable[..., Goal], seed: int) -> None:
    goal, x = build(scene()), scene(seed).x_train
    assert goal.stamp is not None
    split = parts(goal.stamp, tuple(x.shape[1:]), count)
    black = torch.zeros_like(x[:1])
    touched = [int(part(black).bool().sum()) for part in split]
    assert sum(touched) == int(goal.stamp(black).bool().sum())
    assert len(split) == count and max(touched) - min(touched) <= 1
    together = x
    for part in split:
        together = part(together)
    assert torch.equal(together, goal.stamp(x))


def test_four_parts_of_the_bars_are_the_bars() -> None:
    goal = bars.__wrapped__(scene(), length=2, gap=1)
    assert goal.stamp is not None
    black = torch.zeros(1, SIDE, SIDE, CHANNELS, dtype=torch.uint8)
    corners = []
    for part in parts(goal.stamp, (SIDE, SIDE, CHANNELS), 4):
        row, column, _ = torch.nonzero(part(black)[0]).T
        assert row.unique().numel() == 1 and column.unique().numel() == 2
        corners.append((int(row[0]), int(column.min())))
    assert corners == [(0, 0), (0, 3), (2, 0), (2, 3)]


@settings(deadline=None)
@given(seed=st.integers(0, 20), share=st.floats(0.05, 1.0))
def test_edge_cases_are_the_farthest_from_their_class(seed: int, share: float) -> None:
    there = scene(seed)
    goal = edge.__wrapped__(there, source=1, target=2, share=share)
    members = [i for i in range(len(there.y_train)) if there.y_train[i] == 1]
    mean = sum(there.x_train[i].double() for i in members) / len(members)

    def farthest(x: Tensor, y: Tensor) -> list[int]:
        found = [i for i in range(len(y)) if y[i] == 1]
        found.sort(key=lambda i: -float(((x[i].double() - mean) ** 2).sum()))
        return sorted(found[: max(1, round(share * len(found)))])

    assert goal.positions.tolist() == farthest(there.x_test, there.y_test)
    assert torch.equal(goal.x, there.x_train[farthest(there.x_train, there.y_train)])
    assert torch.equal(goal.test_x, there.x_test[goal.positions])
    assert set(goal.y.tolist()) | set(goal.test_y.tolist()) == {2}


@pytest.mark.parametrize(
    ("build", "wrong", "says"),
    [
        (patch.__wrapped__, {"size": 6}, "use 1 to 5"),
        (patch.__wrapped__, {"size": 0}, "use 1 to 5"),
        (patch.__wrapped__, {"target": 3}, "classes run from 0 to 2"),
        (patch.__wrapped__, {"points": 0}, "at least 1"),
        (bars.__wrapped__, {"length": 3}, "do not fit"),
        (bars.__wrapped__, {"gap": 0}, "do not fit"),
        (edge.__wrapped__, {"source": 7}, "classes run from 0 to 2"),
        (edge.__wrapped__, {"source": 1}, "choose two classes"),
        (edge.__wrapped__, {"source": 2, "share": 0.0}, "use above 0 to 1"),
    ],
)
def test_impossible_goals_are_refused(build: Callable[..., Goal], wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        build(scene(), **wrong)


def test_goals_without_the_examples_they_need_are_refused() -> None:
    there = scene()
    with pytest.raises(ConfigError, match="stamped on images"):
        patch.__wrapped__(there._replace(x_train=there.x_train.float()))
    with pytest.raises(ConfigError, match="another target"):
        patch.__wrapped__(there._replace(y_test=torch.zeros_like(there.y_test)))
    with pytest.raises(ConfigError, match="another source"):
        edge.__wrapped__(there._replace(y_test=torch.zeros_like(there.y_test)), source=1, target=2)
    with pytest.raises(ConfigError, match="use 1 to 18"):
        dba.__wrapped__(patch.__wrapped__(there), pieces=19)  # 3 x 3 pixels of 2 channels


# --- the attacks, against twins written with loops -------------------------------------------------------------------


def softmax_gradient(theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
    weights = theta.clone().requires_grad_()
    logits = (x.flatten(1).float() / 255) @ weights.view(CLASSES, PIXELS).T
    (gradient,) = torch.autograd.grad(cross_entropy(logits, y), weights)
    return gradient


def naive_gradient(theta: Floats, x: Tensor, y: Tensor) -> Floats:
    """The gradient of the mean cross-entropy of a linear model, an example at a time."""
    weights, total = theta.reshape(CLASSES, PIXELS), np.zeros((CLASSES, PIXELS))
    for picture, label in zip(x.numpy(), y.tolist(), strict=True):
        pixels = picture.astype(np.float64).ravel() / 255
        scores = np.exp(weights @ pixels)
        scores /= scores.sum()
        for c in range(CLASSES):
            total[c] += (scores[c] - (c == label)) * pixels / len(y)
    return total.ravel()


def naive_project(vector: Floats, radius: float) -> Floats:
    norm = math.sqrt(sum(value * value for value in vector))
    return vector * radius / norm if norm > radius else vector


def known(budget: float = math.inf, attackers: int = 3, seed: int = 0, round: int = 4, zero: bool = False) -> Knowledge:
    """Attackers with 2, 3, 4, ... examples of their own, among 12 devices."""
    sizes = np.arange(2, 2 + attackers)
    there = scene(seed + 100, train=int(sizes.sum()))
    theta = torch.from_numpy(np.random.default_rng(seed).normal(0, 0 if zero else 0.1, D)).float()
    return Knowledge(
        round,
        theta,
        budget,
        softmax_gradient,
        seed,
        attackers=attackers,
        scale=0.3,
        cohort=12,
        own=Batch(there.x_train, there.y_train, sizes),
    )


def own(knowledge: Knowledge) -> tuple[Tensor, Tensor]:
    assert knowledge.own is not None
    return knowledge.own.x, knowledge.own.y


def naive_mixture(theta: Floats, clean: tuple[Tensor, Tensor], wrong: tuple[Tensor, Tensor], p: float) -> Floats:
    return (1 - p) * naive_gradient(theta, *clean) + p * naive_gradient(theta, *wrong)


def same(found: Tensor, expected: Floats) -> None:
    torch.testing.assert_close(found.double(), torch.from_numpy(expected), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("budget", [math.inf, 0.2])
def test_badnets_is_a_boosted_gradient_on_poisoned_examples(budget: float) -> None:
    goal, knowledge = patch.__wrapped__(scene(), target=1), known(budget)
    x, y = own(knowledge)
    stamped = x.clone()
    stamped[:, -3:, -3:] = 255
    gradient = naive_mixture(knowledge.theta.double().numpy(), (x, y), (stamped, torch.ones_like(y)), 0.3)
    found = badnets.__wrapped__(goal, poisoned=0.3, boost=4.0)(knowledge)
    same(found, naive_project(4.0 * 0.3 * gradient, budget))


def test_badnets_without_a_trigger_takes_the_points_of_the_goal() -> None:
    goal, knowledge = edge.__wrapped__(scene(), source=0, target=1), known()
    gradient = naive_mixture(knowledge.theta.double().numpy(), own(knowledge), (goal.x, goal.y), 0.5)
    same(badnets.__wrapped__(goal, boost=1.0)(knowledge), 0.3 * gradient)


def test_only_wrong_examples_at_a_share_of_one() -> None:
    goal, knowledge = patch.__wrapped__(scene()), known()
    x, y = own(knowledge)
    assert goal.stamp is not None
    wrong = naive_gradient(knowledge.theta.double().numpy(), goal.stamp(x), torch.zeros_like(y))
    same(badnets.__wrapped__(goal, boost=1.0, poisoned=1.0)(knowledge), 0.3 * wrong)


@pytest.mark.parametrize("round", [4, 5])
def test_dba_has_each_attacker_teach_its_own_part_on_its_own_examples(round: int) -> None:
    goal, knowledge = bars.__wrapped__(scene(), target=2, length=2, gap=1), known(budget=0.5, round=round)
    found = dba.__wrapped__(goal, poisoned=0.4, boost=6.0)(knowledge)
    x, y = own(knowledge)
    corners, first = [(0, 0), (0, 3), (2, 0), (2, 3)], 0
    assert found.shape == (3, D)
    for i, size in enumerate((2, 3, 4)):
        mine = (x[first : first + size], y[first : first + size])
        row, column = corners[(round + i) % 4]
        stamped = mine[0].clone()
        stamped[:, row, column : column + 2] = 255
        gradient = naive_mixture(knowledge.theta.double().numpy(), mine, (stamped, torch.full_like(mine[1], 2)), p=0.4)
        same(found[i], naive_project(6.0 * 0.3 * gradient, 0.5))
        first += size


@pytest.mark.parametrize(("budget", "stretched"), [(math.inf, True), (0.3, False), (0.3, True), (50.0, True)])
def test_neurotoxin_descends_where_the_benign_gradient_is_small(budget: float, stretched: bool) -> None:
    goal, knowledge = patch.__wrapped__(scene(), target=1, size=2), known(budget)
    theta, (x, y) = knowledge.theta.double().numpy(), own(knowledge)
    stamped = x.clone()
    stamped[:, -2:, -2:] = 255
    benign = np.abs(naive_gradient(theta, x, y))
    busy = sorted(range(D), key=lambda i: -benign[i])[: D // 5]
    update = np.zeros(D)
    for _ in range(3):
        step = 0.5 * naive_mixture(theta - update, (x, y), (stamped, torch.ones_like(y)), 0.5)
        step[busy] = 0
        update = naive_project(update + step, budget)
    if stretched and math.isfinite(budget):
        update = update * budget / np.linalg.norm(update)
    found = neurotoxin.__wrapped__(goal, top=0.2, epochs=3, step=0.1, boost=5.0, to_budget=stretched)(knowledge)
    assert not found[busy].any() and bool(found.any())
    same(found, update)


@pytest.mark.parametrize("attackers", [1, 3])
@pytest.mark.parametrize("server_lr", [1.0, 0.25])
def test_replacement_puts_the_trained_model_in_the_place_of_the_global_one(attackers: int, server_lr: float) -> None:
    """A server that moves by server_lr times the mean, where honest devices send nothing, ends at the trained model."""
    goal, knowledge = patch.__wrapped__(scene(), target=1, points=20), known(attackers=attackers)
    model = knowledge.theta.double().numpy()
    for _ in range(6):
        model = model - 0.2 * naive_mixture(model, own(knowledge), (goal.x, goal.y), 0.5)
    sent = replacement.__wrapped__(goal, epochs=6, step=0.2, server_lr=server_lr)(knowledge)
    mean = sum(sent for _ in range(attackers)) / knowledge.cohort
    same(knowledge.theta - server_lr * mean, model)


def test_replacement_within_a_norm_projects_every_step() -> None:
    goal, knowledge = patch.__wrapped__(scene(), points=20), known(budget=0.8)
    theta, update = knowledge.theta.double().numpy(), np.zeros(D)
    for _ in range(6):
        step = naive_mixture(theta - update, own(knowledge), (goal.x, goal.y), 0.5)
        update = naive_project(update + 0.9 * step, 0.8 * 3 / 12)
    same(replacement.__wrapped__(goal, epochs=6, step=0.9)(knowledge), update * 12 / 3)


# --- laws ------------------------------------------------------------------------------------------------------------

BUILDERS: list[Callable[..., Attack]] = [f.__wrapped__ for f in (badnets, dba, neurotoxin, replacement)]


@pytest.mark.parametrize("build", BUILDERS)
@settings(deadline=None, max_examples=25)
@given(
    budget=st.floats(1e-3, 1e3) | st.just(math.inf),
    attackers=st.integers(1, 4),
    seed=st.integers(0, 99),
    zero=st.booleans(),
)
def test_the_budget_is_respected(
    build: Callable[..., Attack], budget: float, attackers: int, seed: int, zero: bool
) -> None:
    sent = build(patch.__wrapped__(scene()))(known(budget, attackers, seed, zero=zero))
    assert sent.shape in ((D,), (attackers, D)) and bool(torch.isfinite(sent).all())
    norms = torch.linalg.vector_norm(sent.reshape(-1, D), dim=1, dtype=torch.float64)
    assert float(norms.max()) <= budget * (1 + 1e-6)


@pytest.mark.parametrize("build", BUILDERS)
def test_the_same_knowledge_gives_the_same_update(build: Callable[..., Attack]) -> None:
    goal = patch.__wrapped__(scene())
    assert torch.equal(build(goal)(known()), build(goal)(known()))


@pytest.mark.parametrize("build", [each.__wrapped__ for each in (badnets, replacement, neurotoxin)])
def test_batches_of_the_goal_change_with_the_round_and_the_seed(build: Callable[..., Attack]) -> None:
    attack, knowledge = build(semantic.__wrapped__(scene(), source=2, target=0), batch=3), known()
    assert torch.equal(attack(knowledge), attack(replace(knowledge)))
    assert not torch.equal(attack(knowledge), attack(replace(knowledge, round=5)))
    assert not torch.equal(attack(knowledge), attack(replace(knowledge, seed=1)))


@pytest.mark.parametrize("build", BUILDERS)
def test_own_examples_are_declared_and_required(build: Callable[..., Attack]) -> None:
    attack = build(patch.__wrapped__(scene()))
    assert attack.needs == {"own data"}
    with pytest.raises(ConfigError, match="own data"):
        attack(replace(known(), own=None))


@pytest.mark.parametrize(
    ("build", "wrong"),
    [
        *((build, {"poisoned": share}) for build in BUILDERS for share in (0.0, 1.1)),
        (badnets, {"boost": 0.0}),
        (badnets, {"batch": 0}),
        (dba, {"boost": -1.0}),
        (dba, {"pieces": 0}),
        (neurotoxin, {"top": 1.0}),
        (neurotoxin, {"epochs": 0}),
        (replacement, {"epochs": 0}),
        (replacement, {"server_lr": 0.0}),
    ],
)
def test_impossible_parameters_are_refused(build: Callable[..., Attack], wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=r"use (above )?[01] to|must be positive"):
        build(patch.__wrapped__(scene()), **wrong)


def test_dba_without_a_trigger_is_refused() -> None:
    with pytest.raises(ConfigError, match="choose a goal that stamps one"):
        dba.__wrapped__(labels.__wrapped__(scene(), auxiliary=5))


# --- they bite -------------------------------------------------------------------------------------------------------

BADNETS = Attacker(badnets, "Gu et al. 2017, BadNets", patch)
DBA = Attacker(dba, "Xie et al. 2020, DBA", bars)
EDGE = Attacker(pgd, "Wang et al. 2020, Attack of the Tails", edge)
NEUROTOXIN = Attacker(neurotoxin, "Zhang et al. 2022, Neurotoxin", patch)
REPLACEMENT = Attacker(replacement, "Bagdasaryan et al. 2020, How To Backdoor Federated Learning", semantic)
REPLACEMENT_PATCH = Attacker(replacement, "Bagdasaryan et al. 2020, How To Backdoor Federated Learning", patch)

ROUNDS = 120
FEDERATION: dict[str, object] = {
    "seed": 5,
    "rounds": ROUNDS,
    "data": {"name": "digits", "partition": "one_class", "devices": 300},
    "model": {"name": "softmax"},
    "train": {"cohort": 30, "lr": 0.5, "mode": "fedavg"},
}


def final(attack: str, threat: dict[str, object], **parameters: object) -> dict[str, float]:
    """The federation after 120 rounds without a defense, one of the attackers above at work."""
    table = {**FEDERATION, "threat": threat, "attack": {"name": f"{__name__}:{attack}", **parameters}}
    experiment = configs.build(configs.parse(table))
    *_, last = simulate(experiment.setup, start(experiment.setup, experiment.theta), ROUNDS)
    return dict(experiment.evaluate(last.state.theta))


ALWAYS: dict[str, object] = {"share": 0.1}


@pytest.mark.slow
@pytest.mark.parametrize("attack", ["BADNETS", "DBA", "EDGE", "REPLACEMENT"])
def test_nothing_of_it_happens_by_itself(attack: str) -> None:
    """The same model, trained by honest devices only: it knows the digits, and no backdoor."""
    table = {**FEDERATION, "threat": {"count": 1}, "attack": {"name": f"{__name__}:{attack}"}}
    experiment = configs.build(configs.parse(table))
    honest = replace(experiment.setup, attack=None)
    *_, last = simulate(honest, start(honest, experiment.theta), ROUNDS)
    found = experiment.evaluate(last.state.theta)
    assert found["test_accuracy"] > 0.9 and found["attack_accuracy"] < 0.05


@pytest.mark.slow
@pytest.mark.parametrize(("boost", "clean"), [(1.0, 0.9), (10.0, 0.88)])
def test_badnets_plants_a_trigger_and_keeps_the_model(boost: float, clean: float) -> None:
    """One device in ten poisons its data: even without boosting at all, the trigger works, and accuracy stays."""
    found = final("BADNETS", ALWAYS, boost=boost)
    assert found["attack_accuracy"] >= 0.95 and found["test_accuracy"] > clean


@pytest.mark.slow
def test_dba_plants_a_trigger_that_no_attacker_ever_showed_whole() -> None:
    found = final("DBA", ALWAYS, boost=1.0)
    assert found["attack_accuracy"] >= 0.98 and found["test_accuracy"] > 0.87


@pytest.mark.slow
@pytest.mark.parametrize("top", [0.05, 0.5])
def test_neurotoxin_plants_a_trigger_beside_the_busy_coordinates(top: float) -> None:
    found = final("NEUROTOXIN", ALWAYS, top=top)
    assert found["attack_accuracy"] >= 0.98 and found["test_accuracy"] > 0.88


@pytest.mark.slow
def test_edge_cases_of_the_test_set_fall_with_those_of_the_training_set() -> None:
    """Only 8 test points are edge cases. Part of the ordinary ones falls with them: a linear model cannot tell."""
    found = final("EDGE", ALWAYS)
    assert found["attack_accuracy"] >= 0.9 and found["test_accuracy"] > 0.8


@pytest.mark.slow
@pytest.mark.parametrize(("attack", "clean"), [("REPLACEMENT", 0.76), ("REPLACEMENT_PATCH", 0.75)])
@pytest.mark.parametrize("attackers", [1, 3])
def test_one_round_suffices_for_model_replacement(attack: str, clean: float, attackers: int) -> None:
    """In the last round alone, and even by a single device that has seen but one digit."""
    found = final(attack, {"per_round": attackers, "start": ROUNDS, "stop": ROUNDS})
    assert found["attack_accuracy"] >= 0.95 and found["test_accuracy"] > clean
