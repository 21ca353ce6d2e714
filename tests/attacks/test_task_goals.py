"""Attacks on tasks that are no classes: what they want, when they succeed, and which have no meaning."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from sparsefed import Simulation, attacks
from sparsefed.attacks import goals
from sparsefed.attacks.own_data import LabelledPoints, wrong
from sparsefed.attacks.registry import equip
from sparsefed.core.errors import ConfigError
from sparsefed.core.target import TARGETS
from sparsefed.core.threat import Knowledge
from sparsefed.core.types import IGNORED, Batch
from sparsefed.data.own import from_arrays

draw = np.random.default_rng(2)
N = 600
X = draw.standard_normal((N, 4)).astype(np.float32)
TASKS: dict[str, Any] = {
    "binary": (X[:, 0] > 1).astype(np.int64),
    "labels": (X[:, :3] > 0).astype(np.int64),
    "values": (X[:, 0] - 0.5 * X[:, 1]).astype(np.float32),
}
OUTPUTS = {"binary": 1, "labels": 3, "values": 1}
UNTARGETED = [name for name, attack in attacks.ATTACKS.items() if attacks.attack_info(attack).goal is goals.untargeted]


def scene(kind: str) -> goals.Scene:
    y, x = torch.from_numpy(TASKS[kind]), torch.from_numpy(X)
    return goals.Scene(x, y, x, y, 3 if kind == "labels" else 2, seed=0, target=kind)


def attacked(kind: str, attack: Any, rounds: int = 40, **more: Any) -> Simulation:
    torch.default_generator.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, OUTPUTS[kind]))
    settings: dict[str, Any] = {"knowledge": ("own data", "defense", "honest updates", "server state"), "share": 0.3}
    return Simulation(
        model,
        from_arrays(X, TASKS[kind], target=kind),
        attack=attack,
        threat={**settings, **more},
        rounds=rounds,
        cohort=20,
        devices=40,
        schedule=0.1,
        evaluate_every=rounds,
    ).run()


def test_values_are_pushed_away_or_to_a_number_of_the_attackers() -> None:
    spread = float(TASKS["values"].std())
    away = goals.labels.__wrapped__(scene("values"), auxiliary=50)
    right = torch.from_numpy(TASKS["values"])[away.positions]
    torch.testing.assert_close((away.y - right).abs(), torch.full((50,), 3 * spread), rtol=1e-4, atol=0)
    assert away.tolerance == pytest.approx(spread / 2) and away.y.dtype == torch.float32
    assert len(set((away.y > right).tolist())) == 2, "some are pushed up, some down"
    chosen = goals.labels.__wrapped__(scene("values"), auxiliary=50, value=9.0, tolerance=0.25)
    assert chosen.y.eq(9).all() and chosen.tolerance == 0.25


def test_success_is_to_be_within_the_tolerance() -> None:
    values = TARGETS["values"]
    assert values.success(torch.tensor([[1.0], [2.0]]), torch.tensor([1.2, 2.3]), 0.25) == 0.5
    both = torch.tensor([[1.0, 1.0], [2.0, 9.0]])
    assert values.success(both, torch.tensor([[1.0, 1.0], [2.0, 2.0]]), 0.1) == 0.5


def test_one_of_several_labels_is_flipped_and_counted() -> None:
    goal = goals.labels.__wrapped__(scene("labels"), auxiliary=40)
    right = torch.from_numpy(TASKS["labels"])[goal.positions]
    assert (goal.y != right).sum(1).eq(1).all() and (goal.test_y != IGNORED).sum(1).eq(1).all()
    assert torch.equal(goal.test_y[goal.test_y != IGNORED], goal.y[goal.y != right])


def test_of_several_labels_one_is_removed_and_another_set() -> None:
    goal = goals.semantic.__wrapped__(scene("labels"), source=0, target=2)
    right = torch.from_numpy(TASKS["labels"])
    assert goal.positions.tolist() == torch.nonzero(right[:, 0]).flatten().tolist()
    wanted = torch.stack([torch.zeros_like(goal.positions), right[goal.positions, 1], torch.ones_like(goal.positions)])
    assert torch.equal(goal.y, wanted.T)
    assert torch.equal(goal.test_y, torch.tensor([[0, IGNORED, 1]]).expand(len(goal.y), 3))
    rare = goals.edge.__wrapped__(scene("labels"), source=0, target=2, share=0.1)
    assert 0 < len(rare.y) < len(goal.y) and rare.y[:, 0].eq(0).all() and rare.y[:, 2].eq(1).all()


def test_a_trigger_sets_one_of_several_labels() -> None:
    images = torch.from_numpy(draw.integers(0, 200, (N, 6, 6, 1), np.uint8))
    y = torch.from_numpy(TASKS["labels"])
    goal = goals.patch.__wrapped__(goals.Scene(images, y, images, y, 3, 0, target="labels"), target=1, size=2, points=9)
    without = y[:, 1] == 0
    assert len(goal.y) == 9 and goal.y[:, 1].eq(1).all() and len(goal.test_x) == int(without.sum())
    assert torch.equal(goal.test_y, torch.tensor([[IGNORED, 1, IGNORED]]).expand(len(goal.test_x), 3))
    assert bool((goal.test_x[:, -2:, -2:] == 255).all())
    clean = LabelledPoints(images[:5], y[:5])
    taught = wrong(goal, clean, None, 1)  # type: ignore[arg-type]
    assert taught.y[:, 1].eq(1).all() and torch.equal(taught.y[:, [0, 2]], y[:5][:, [0, 2]])


def test_flipped_labels_are_labels() -> None:
    seen: list[torch.Tensor] = []

    def watching(theta: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:  # noqa: ARG001
        seen.append(y)
        return torch.ones_like(theta)

    own = Batch(torch.from_numpy(X[:4]), torch.tensor([[0, 1, IGNORED]] * 4), np.array([4]))
    _, flip = equip("label_flip", attacks.label_flip, scene("labels"), {})
    flip(Knowledge(1, torch.zeros(2), 1.0, watching, seed=0, own=own))
    assert seen[0].tolist() == [[1, 0, IGNORED]] * 4


@pytest.mark.parametrize("kind", list(TASKS))
def test_an_attack_on_a_goal_bites(kind: str) -> None:
    params = {"value": 3.0, "tolerance": 0.75} if kind == "values" else {}
    goal, boost = goals.labels(auxiliary=10, **params), 2.0 if kind == "values" else 5.0
    hit = attacked(kind, attacks.boosted(goal, boost=boost))
    calm = attacked(kind, attacks.boosted(goal, boost=boost), share=None, count=0)
    assert hit.evaluate()["attack_accuracy"] > calm.evaluate()["attack_accuracy"] + 0.3


@pytest.mark.parametrize("kind", list(TASKS))
@pytest.mark.parametrize("name", UNTARGETED)
def test_untargeted_attacks_run_or_are_refused(kind: str, name: str) -> None:
    if name == "label_flip" and kind == "values":
        with pytest.raises(
            ConfigError, match=r"label_flip has no meaning for a task with numbers to predict; .*sign_flip"
        ):
            attacked(kind, name, rounds=2)
    else:
        assert attacked(kind, name, rounds=2).history[-1]["attackers"] > 0


def test_sign_flip_spoils_a_regression() -> None:
    bad = attacked("values", attacks.sign_flip(boost=4.0)).evaluate()["test_explained"]
    good = attacked("values", attacks.sign_flip(boost=4.0), share=None, count=0).evaluate()["test_explained"]
    assert good > 0.8 and not bad > good - 0.3


@pytest.mark.parametrize(
    ("kind", "name", "words"),
    [
        ("values", "semantic", "semantic has no meaning for a task with numbers to predict; these have: pgd,"),
        ("values", "badnets", "these have: .*boosted.*sign_flip"),
        ("values", "edge", "these have: pgd"),
        ("labels", "replacement_text", "no meaning for a task with several labels"),
        ("binary", "replacement_text", "a yes or no for each example"),
    ],
)
def test_an_attack_without_meaning_names_those_that_have_one(kind: str, name: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        attacked(kind, name, rounds=1)


def test_settings_for_numbers_are_refused_for_labels() -> None:
    with pytest.raises(ConfigError, match="value and tolerance are for numbers to predict"):
        attacked("binary", attacks.pgd(goals.labels(auxiliary=5, value=3.0)), rounds=1)
    with pytest.raises(ConfigError, match="tolerance is -1"):
        attacked("values", attacks.pgd(goals.labels(auxiliary=5, tolerance=-1.0)), rounds=1)
    point = torch.zeros(1, 4)
    own = attacks.Goal(point, torch.ones(1), point, torch.ones(1), torch.zeros(0, dtype=torch.int64))
    with pytest.raises(ConfigError, match="has no tolerance; say how near"):
        attacked("values", attacks.pgd(own), rounds=1)
