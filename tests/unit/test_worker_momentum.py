"""Worker momentum: every device sends an average of its own past updates (Karimireddy, He, Jaggi 2021)."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsefed import config, runs
from sparsefed.core.engine import Cohort, LocalStep
from sparsefed.core.errors import ConfigError
from sparsefed.core.rng import integer_seed
from sparsefed.core.round import RoundReport, ServerState, run_round
from sparsefed.core.worker_momentum import averaged
from sparsefed.kernels.blocks import RowsBlock
from tests.support.reference import worker_momentum

RUN: dict[str, Any] = {
    "rounds": 6,
    "data": {"name": "digits", "partition": "iid", "devices": 12, "per_device": 20},
    "model": {"name": "softmax"},
    "train": {"cohort": 5, "lr": 0.5, "schedule": "constant", "sampling": "uniform"},
    "defense": {"name": "undefended", "rho": 0.0},
}


def table(**train: Any) -> dict[str, Any]:
    return {**RUN, "train": {**RUN["train"], **train}}


def reports(given: dict[str, Any], state: ServerState | None = None) -> list[RoundReport]:
    built = config.build(config.parse(given))
    return list(built.reports(state or built.begin()))


@settings(max_examples=40, deadline=None)
@given(
    rounds=st.lists(st.sets(st.integers(0, 4), min_size=1), min_size=1, max_size=6),
    beta=st.sampled_from([0.0, 0.5, 0.9]),
    seed=st.integers(0, 999),
)
def test_the_averages_are_those_of_the_definition(rounds: list[set[int]], beta: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    history = [{device: torch.randn(3, generator=generator) for device in sorted(cohort)} for cohort in rounds]
    state: dict[str, torch.Tensor] = {}
    for number, updates in enumerate(history):
        before = {name: row.clone() for name, row in state.items()}
        block = RowsBlock(torch.stack(list(updates.values())), np.array(list(updates)))
        sent, kept = averaged(block, state, beta)
        assert all(torch.equal(row, state[name]) for name, row in before.items())  # the past is not written to
        state = {**state, **kept}
        for device, row in zip(sent.senders.tolist(), sent.rows(), strict=True):
            expected = worker_momentum(
                [past[device].tolist() if device in past else None for past in history[: number + 1]], beta
            )
            torch.testing.assert_close(row, torch.tensor(expected), rtol=1e-5, atol=1e-6)


def test_a_beta_of_0_sends_the_updates_themselves() -> None:
    plain, none = reports(table()), reports(table(worker_momentum=0.0))
    torch.testing.assert_close(plain[-1].state.theta, none[-1].state.theta)
    assert not plain[-1].state.devices and len(none[-1].state.devices) == 12


def test_a_round_is_the_mean_of_the_averages() -> None:
    """The second round by hand, from the engine's own updates."""
    built = config.build(config.parse(table(worker_momentum=0.8)))
    first = run_round(built.setup, built.begin()).state
    second = run_round(built.setup, first).state
    federation = built.setup.federation
    ids = federation.cohort(2)
    assert any(str(device) in first.devices for device in ids) and not all(str(i) in first.devices for i in ids)
    step = LocalStep(1.0, built.setup.weight_decay, integer_seed(built.setup.seed, "layers", 2))
    sent = []
    for block in built.setup.engine(first.theta, Cohort(ids, federation.sizes(ids), federation.gather), step):
        for device, row in zip(block.senders.tolist(), block.rows(), strict=True):
            past = first.devices.get(str(device))
            sent.append(row if past is None else 0.2 * row + 0.8 * past)
    torch.testing.assert_close(second.theta, first.theta - 0.5 * torch.stack(sent).mean(0), rtol=1e-5, atol=1e-6)


def test_a_device_recovers_from_an_update_that_is_not_finite() -> None:
    past = {"3": torch.ones(2)}
    sent, kept = averaged(RowsBlock(torch.tensor([[torch.nan, 1.0]]), np.array([3])), past, 0.5)
    assert not torch.isfinite(sent.norms()).any() and kept == {}


def test_a_resumed_run_is_the_same_run_and_its_folder_holds_every_device(tmp_path: Path) -> None:
    given = table(worker_momentum=0.9)
    whole = reports(given)
    assert torch.equal(reports(given, whole[2].state)[-1].state.theta, whole[-1].state.theta)
    chosen = config.parse({**given, "checkpoint_every": 2})
    runs.run(tmp_path / "run", config.dump(chosen), lambda: config.build(chosen), checkpoint_every=2)
    state = runs.load_state(tmp_path / "run")
    assert state is not None and torch.equal(state.theta, whole[-1].state.theta)
    assert state.devices.keys() == whole[-1].state.devices.keys()
    assert all(torch.equal(row, state.devices[name]) for name, row in whole[-1].state.devices.items())


def test_averages_of_many_rounds_differ_less_between_honest_devices() -> None:
    """What the paper is about: at a standing model the spread of what honest devices send shrinks."""
    built = config.build(config.parse(table(cohort=12, local_steps=1, local_batch=2)))
    spreads = {}
    for beta in (0.0, 0.9):
        setup, state = replace(built.setup, worker_momentum=beta), built.begin()
        for _ in range(12):
            state = replace(run_round(setup, state).state, theta=built.theta)
        rows = torch.stack(list(state.devices.values()))
        spreads[beta] = float((rows - rows.mean(0)).norm(dim=1).mean())
    assert spreads[0.9] < 0.7 * spreads[0.0]


def test_attackers_keep_no_average_and_see_what_is_sent() -> None:
    given = {**table(worker_momentum=0.9), "attack": {"name": "alie"}}
    given["threat"] = {"ids": [1, 2], "knowledge": ["honest updates"]}
    last = reports(given)[-1]
    assert not {"1", "2"} & last.state.devices.keys() and np.isfinite(last.metrics["update_norm"])


@pytest.mark.parametrize("beta", [-0.1, 1.0, "much"])
def test_an_impossible_beta_is_refused(beta: Any) -> None:
    with pytest.raises(ConfigError, match="worker_momentum"):
        config.parse(table(worker_momentum=beta))


def test_more_numbers_than_fit_into_memory_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["sparsefed.config.build"], "MOST_REMEMBERED", 7_000)
    with pytest.raises(ConfigError, match=r"650 numbers for each of 12 devices.*at most 7,000"):
        config.build(config.parse(table(worker_momentum=0.9)))
    assert "worker_momentum" not in config.dump(config.parse(table()))["train"]
