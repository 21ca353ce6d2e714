"""Frozen parameters: not in the vector, never changed, and of no consequence for what the engines compute."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from sparsefed import Server, Simulation, defenses
from sparsefed.core.engine import Cohort, LocalPlan, LocalStep
from sparsefed.core.errors import ConfigError
from sparsefed.core.task import Task, make_task
from sparsefed.engines import ENGINES, loop
from tests.support.cohorts import assert_same, by_client, cohort_of, seeded

SIZES = [2, 3, 2]


def net() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(64, 8), nn.Linear(8, 3)
    )


def cohort() -> Cohort:
    draw = torch.Generator().manual_seed(2)
    x, y = torch.randn(sum(SIZES), 1, 6, 6, generator=draw), torch.randint(3, (sum(SIZES),), generator=draw)
    return cohort_of(x, y, SIZES)


def frozen(flags: list[bool]) -> nn.Module:
    module = seeded(net)
    for parameter, trained in zip(module.parameters(), flags, strict=True):
        parameter.requires_grad_(trained)
    return module


flags = st.lists(st.booleans(), min_size=8, max_size=8).filter(any)


@settings(max_examples=25, deadline=None)
@given(flags)
def test_the_fused_pass_agrees_with_the_loop_whatever_is_frozen(flags: list[bool]) -> None:
    module = frozen(flags)
    task = make_task(module)
    assert task.d == sum(p.numel() for p in module.parameters() if p.requires_grad)
    assert [slot.name for slot in task.slots] == [n for n, p in module.named_parameters() if p.requires_grad]
    assert_same(task, cohort(), LocalStep(0.5, 0.01))


@settings(max_examples=15, deadline=None)
@given(flags)
def test_the_rows_are_those_of_the_whole_model_without_the_frozen_columns(flags: list[bool]) -> None:
    whole, part = make_task(seeded(net)), make_task(frozen(flags))
    rows, _ = by_client(loop(whole), whole.initial(), cohort(), LocalStep(1.0, 0.0))
    some, _ = by_client(loop(part), part.initial(), cohort(), LocalStep(1.0, 0.0))
    kept = {slot.name for slot in part.slots}
    columns = [rows[:, slot.start : slot.stop] for slot in whole.slots if slot.name in kept]
    torch.testing.assert_close(some, torch.cat(columns, 1))


@pytest.mark.parametrize("engine", ["fused", "by_client", "stacked"])
@pytest.mark.parametrize("trained", [[False] * 4 + [True] * 4, [True] * 2 + [False] * 6, [False, True] * 4])
def test_several_local_steps_agree_with_the_loop(engine: str, trained: list[bool]) -> None:
    task: Task = make_task(frozen(trained))
    step = LocalStep(0.1, 0.01, 3, LocalPlan(epochs=2, batch=2))
    rows = _in_order(task, engine, step)
    torch.testing.assert_close(rows, _in_order(task, "loop", step), rtol=1e-4, atol=1e-6)


def _in_order(task: Task, engine: str, step: LocalStep) -> torch.Tensor:
    rows = torch.zeros(len(SIZES), task.d)
    for block in ENGINES[engine](task)(task.initial(), cohort(), step):
        rows[torch.from_numpy(block.senders)] = block.rows()
    return rows


def test_a_simulation_trains_the_rest_and_saves_only_that(tmp_path: Path) -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    module[1].requires_grad_(False)
    options = {"devices": 30, "cohort": 10, "rounds": 4, "schedule": 0.5}
    attack = {"attack": {"name": "pgd", "auxiliary": 20}, "threat": 0.2}
    rule = defenses.sparsefed(k=100, clip_norm=1.0)
    simulation = Simulation(module, "digits", defense=rule, **attack, **options)  # type: ignore[arg-type]
    simulation.run().save(tmp_path / "run")
    assert len(simulation.theta) == 330
    before = module.state_dict()
    assert torch.equal(simulation.state_dict()["1.weight"], before["1.weight"])
    assert not torch.equal(simulation.state_dict()["3.weight"], before["3.weight"])
    again = Simulation(module, "digits", defense=rule, **attack, **options)  # type: ignore[arg-type]
    assert torch.equal(again.restore(tmp_path / "run").theta, simulation.theta)


def test_a_server_has_no_place_for_them_and_all_frozen_is_refused() -> None:
    module = seeded(net)
    module[0].requires_grad_(False)  # type: ignore[index]
    server = Server(defenses.median(), like=module)
    trained = sum(p.numel() for p in module.parameters() if p.requires_grad)
    assert len(server.step(torch.zeros(3, trained), lr=0.1).delta) == trained
    with pytest.raises(ConfigError, match="no trainable parameter"):
        make_task(module.requires_grad_(False))
