"""A cluster without a cluster: what a worker computes, whom the driver refuses, and what is said without Ray."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sparsefed import Simulation, data
from sparsefed import config as configs
from sparsefed.cluster.connect import workers_wanted
from sparsefed.cluster.engine import answers_of, on_cluster
from sparsefed.cluster.greeting import (
    TITLES,
    Greeting,
    arrays_digest,
    bits,
    data_digest,
    refusal,
    run_greeting,
    run_refusal,
)
from sparsefed.cluster.requests import PartRequest, Piece, WorkerOrder
from sparsefed.cluster.rounds import report_rounds
from sparsefed.cluster.worker import NotGreetedError, Worker
from sparsefed.core.errors import ConfigError
from sparsefed.core.round import local_step
from sparsefed.sweeps.cluster_pool import CellJob, run_cell
from tests.unit.test_parts import TABLE

OURS = Greeting("here", "d", "c", "v", "p", 1, "b")


def config(**more: Any) -> configs.Config:
    return configs.parse({**TABLE, **more})


def request_of(built: configs.BuiltSimulation, **more: Any) -> PartRequest:
    context = type("C", (), {"round": 1, "lr": 0.1})()
    step = local_step(built.setup, context)
    return PartRequest("call", 0, np.arange(5), 1, step, "sums", False, 0.5, None)._replace(**more)


@pytest.fixture(scope="module")
def built() -> configs.BuiltSimulation:
    return configs.build(config())


@pytest.fixture
def worker(built: configs.BuiltSimulation) -> Worker:
    made = Worker()
    probe = request_of(built)._replace(ids=np.arange(2))
    made.greet(WorkerOrder("one", configs.dump(built.config), None, 1, probe, None, None), built.theta.numpy())
    return made


def test_an_answer_holds_norms_and_the_clipped_sum(built: configs.BuiltSimulation, worker: Worker) -> None:
    theta = built.theta.numpy()
    (answer,) = worker.answer(request_of(built), theta)
    rows = torch.from_numpy(worker.rows(request_of(built), theta, 0))
    norms = rows.double().norm(dim=1)
    torch.testing.assert_close(torch.from_numpy(answer.norms), norms)
    assert answer.total is not None
    clipped = (rows * (0.5 / norms).clamp(max=1)[:, None]).sum(0)
    torch.testing.assert_close(torch.from_numpy(answer.total), clipped.float(), rtol=1e-4, atol=1e-6)
    assert answer.rows is None
    assert answer.senders.tolist() == [0, 1, 2, 3, 4]


def test_weights_of_devices_count_in_the_sum(built: configs.BuiltSimulation, worker: Worker) -> None:
    theta, weights = built.theta.numpy(), np.array([1.0, 0.0, 2.0, 1.0, 1.0])
    (answer,) = worker.answer(request_of(built, weights=weights, budget=np.inf), theta)
    asked = worker.weighted_sum(request_of(built), theta, 0, weights)
    assert answer.total is not None
    assert np.array_equal(answer.total, asked)


def test_columns_are_those_of_the_rows(built: configs.BuiltSimulation, worker: Worker) -> None:
    theta, request = built.theta.numpy(), request_of(built, answers="slices")
    worker.answer(request, theta)
    kept, factors = np.array([True, False, True, True, True]), np.array([1.0, 0.5, 1.0, 2.0])
    found = worker.columns(request, theta, Piece(0, 10, 20, kept, factors))
    rows = worker.rows(request, theta, 0)
    assert np.array_equal(found, rows[kept][:, 10:20] * factors.astype(np.float32)[:, None])


def test_a_worker_that_was_restarted_answers_nothing_before_it_has_greeted(built: configs.BuiltSimulation) -> None:
    with pytest.raises(NotGreetedError):
        Worker().answer(request_of(built), built.theta.numpy())


def test_a_worker_that_differs_refuses_itself(built: configs.BuiltSimulation) -> None:
    order = WorkerOrder("one", configs.dump(built.config), None, 1, request_of(built), OURS, None)
    with pytest.raises(ConfigError, match="has other data"):
        Worker().greet(order, built.theta.numpy())


def test_a_worker_without_the_data_says_where_it_is(built: configs.BuiltSimulation) -> None:
    table = {**configs.dump(built.config), "data": {"name": "nothing_like_it", "devices": 60}}
    with pytest.raises(ConfigError, match=r"the worker on \S+ cannot start: .*nothing_like_it"):
        Worker().greet(WorkerOrder("one", table, None, 1, request_of(built), None, None), built.theta.numpy())


@pytest.mark.parametrize("field", TITLES)
def test_every_difference_is_named(field: str) -> None:
    theirs = OURS._replace(machine="node7", **{field: "other"})  # type: ignore[arg-type]
    sentence = refusal(OURS, theirs)
    assert sentence is not None
    assert "node7" in sentence
    assert TITLES[field] in sentence
    assert refusal(OURS, OURS._replace(machine="node7")) is None


def test_the_checksum_sees_examples_targets_and_owners(built: configs.BuiltSimulation) -> None:
    before = data_digest(built.setup.federation)
    other = configs.build(config(data={"name": "digits", "devices": 61, "partition": "iid"}))
    assert data_digest(configs.build(config()).setup.federation) == before
    assert data_digest(other.setup.federation) != before
    assert bits([np.zeros(2)]) != bits([np.array([0.0, -0.0])])


def events_of(job: CellJob) -> list[Any]:
    """What a machine says of a cell that it is given, computed in this process."""
    events: list[Any] = []
    run_cell(events.append, lambda: False, job)
    return events


@pytest.mark.parametrize("field", ["data", "code", "versions", "processor", "threads"])
def test_a_machine_that_differs_refuses_whole_runs(field: str, tmp_path: Path) -> None:
    table, ours = configs.dump(config()), run_greeting(config(), torch.get_num_threads())
    assert run_refusal(ours, table) is None
    differs = ours._replace(**{field: "other"})  # type: ignore[arg-type]
    (event,) = events_of(CellJob("key", str(tmp_path / "cells" / "key"), table, "token", {}, differs))
    assert event.kind == "failed"
    assert f"has {TITLES[field]}" in event.error
    with pytest.raises(ConfigError, match=f"has {TITLES[field]}"):
        report_rounds(lambda _: None, lambda: False, table, differs)


def test_a_machine_without_the_data_refuses_whole_runs(tmp_path: Path) -> None:
    table = {**configs.dump(config()), "data": {"name": "nothing_like_it", "devices": 60}}
    ours = run_greeting(config(), torch.get_num_threads())
    (event,) = events_of(CellJob("key", str(tmp_path / "cells" / "key"), table, "token", {}, ours))
    assert re.search(r"the worker on \S+ cannot start: .*nothing_like_it", event.error)


def test_the_checksum_of_a_data_set_sees_all_of_it() -> None:
    arrays = data.load("digits")
    same = replace(arrays, x_test=arrays.x_test.copy())
    others = [
        replace(arrays, x_train=arrays.x_train ^ 1),
        replace(arrays, y_train=arrays.y_train[::-1].copy()),
        replace(arrays, y_test=arrays.y_test[::-1].copy()),
        replace(arrays, users=np.arange(len(arrays.y_train))),
    ]
    assert arrays_digest(same) == arrays_digest(arrays)
    assert arrays_digest(arrays) not in {arrays_digest(other) for other in others}


@pytest.mark.parametrize(
    ("defense", "train", "answers"),
    [
        ({"name": "sparsefed", "k": 10}, {}, "sums"),
        ({"name": "krum", "f": 1}, {}, "slices"),
        ({"name": "krum", "f": 1, "pre": "nnm"}, {}, "rows"),
        ({"name": "sparsefed", "k": 10}, {"worker_momentum": 0.9}, "rows"),
        ({"name": "geometric_median"}, {}, "rows"),
    ],
)
def test_a_rule_is_answered_what_it_reads(defense: dict[str, Any], train: dict[str, Any], answers: str) -> None:
    assert answers_of(config(defense=defense, train={**TABLE["train"], **train})) == answers


@pytest.mark.parametrize("on", ["dask", "ray:0", "ray:-1", "ray:", "Ray"])
def test_another_place_is_refused(on: str) -> None:
    with pytest.raises(ConfigError, match="must be ray, or ray:N"):
        workers_wanted(on)


def test_without_ray_a_sentence_says_what_to_install(
    built: configs.BuiltSimulation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"--on ray needs Ray; install it with: pip install 'sparsefed\[ray\]'"):
        on_cluster(built, "ray")
    assert on_cluster(built, None) is built
    with pytest.raises(ConfigError, match="needs Ray"):
        Simulation.from_config(TABLE, on="ray")


def test_importing_the_package_imports_no_ray() -> None:
    code = "import sys, sparsefed, sparsefed.simulation, sparsefed.commands.tune; assert 'ray' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
