"""The attack: its auxiliary set, its budget, and that it bites."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sparsefed import config as configs
from sparsefed.attacks import Knowledge, auxiliary_set, pgd
from sparsefed.errors import ConfigError
from sparsefed.simulate import simulate, start

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
    attack = pgd(auxiliary_set(*points(), 10, 10, 0), epochs=epochs, batch=5, step=step, to_budget=stretched)
    norm = float(torch.linalg.vector_norm(attack(knowledge(budget)), dtype=torch.float64))  # boost 20: no overshoot
    assert norm <= budget * (1 + 1e-6)
    if stretched:
        assert math.isclose(norm, budget, rel_tol=1e-6)


def test_an_unlimited_attacker_walks_all_the_way() -> None:
    """Update is before - after, so theta - update is where the attacker wants the model."""
    attack = pgd(auxiliary_set(*points(), 10, 10, 0), epochs=200, step=0.1, boost=1.0)
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
    attack = pgd(auxiliary_set(*points(), 10, 10, 0), epochs=4, step=0.05, boost=3.0, to_budget=False)
    torch.testing.assert_close(-attack(knowledge(budget)).double(), model, rtol=1e-5, atol=1e-6)


def test_batches_change_with_the_round_and_nothing_else() -> None:
    seen: list[Tensor] = []

    def watching(theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
        seen.append(y)
        return towards_target(theta, x, y)

    attack = pgd(auxiliary_set(*points(), 19, 10, 0), epochs=2, batch=6)
    for round in (1, 1, 2):
        attack(replace(knowledge(1.0, round), gradient=watching))
    assert torch.equal(seen[0], seen[2]) and torch.equal(seen[1], seen[3])
    assert not torch.equal(seen[0], seen[4]) and not torch.equal(seen[0], seen[1])


@pytest.mark.parametrize("wrong", [{"epochs": 0}, {"batch": 0}, {"step": 0.0}, {"boost": -1.0}])
def test_impossible_parameters_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="all must be positive"):
        pgd(auxiliary_set(*points(), 10, 10, 0), **wrong)  # type: ignore[arg-type]


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
    *_, last = simulate(experiment.protocol, start(experiment.protocol, experiment.theta), 120)
    return dict(experiment.evaluate(last.state.theta))


def test_pgd_poisons_the_undefended_mean() -> None:
    """20 points of digits, one device in ten colluding: the mean learns at least 90 % of the wrong labels."""
    assert final(FEDERATION)["test_accuracy"] > 0.85
    assert final(ATTACKED)["attack_accuracy"] >= 0.9
