"""Rounds and grids on a real Ray cluster of two machines: the same bits, whoever computes, and whoever dies."""

from __future__ import annotations

import hashlib
import logging
import os
import random
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

if find_spec("ray") is None:  # not imported here: it reads its settings when it is
    pytest.skip("Ray is not installed: pip install 'sparsefed[ray]'", allow_module_level=True)

from sparsefed import Simulation, sweep
from sparsefed.cluster import connect, greeting
from sparsefed.cluster.engine import RayEngine
from sparsefed.cluster.team import Team
from sparsefed.commands import tune
from sparsefed.core import toml
from sparsefed.core.errors import ConfigError, RunError
from sparsefed.core.progress import Progress
from sparsefed.sweeps.cluster_pool import CellJob
from tests.commands.test_tune import small
from tests.support.clusters import TwoMachines, two_machines, until
from tests.support.processes import COMMAND

TABLE: dict[str, Any] = {
    "seed": 5,
    "rounds": 4,
    "evaluate_every": 2,
    "checkpoint_every": 1,
    "data": {"name": "digits", "devices": 100, "partition": "iid"},
    "model": {"name": "softmax"},
    "train": {"cohort": 20, "lr": 0.1, "block": 4},
    "threat": {"share": 0.1},
    "attack": {"name": "pgd", "auxiliary": 20},
}
SOAK = bool(os.environ.get("SPARSEFED_CLUSTER_SOAK"))  # `make cluster-soak`: as many kills as were promised
CASES: dict[str, dict[str, Any]] = {
    "sparsefed": {"defense": {"name": "sparsefed", "k": 100, "clip_norm": 1.0}},
    "clipping": {"defense": {"name": "clipping", "clip_norm": 0.5}, "train": {"weights": "examples"}},
    "krum": {"defense": {"name": "krum", "f": 3}},
    "trimmed_mean": {"defense": {"name": "trimmed_mean", "f": 3, "clip_norm": 1.0}},
    "bulyan": {"defense": {"name": "bulyan", "f": 3, "clip_norm": 1.0}},
    "fetchsgd": {"defense": {"name": "fetchsgd", "k": 100, "columns": 1000}},
    "local epochs": {
        "defense": {"name": "sparsefed", "k": 100, "clip_norm": 1.0},
        "train": {"mode": "fedavg", "local_epochs": 2, "local_batch": 5},
    },
    "an attack that sees honest updates": {
        "defense": {"name": "median"},
        "attack": {"name": "alie"},
        "threat": {"share": 0.1, "knowledge": ["own data", "honest updates"]},
    },
    "rows": {"defense": {"name": "geometric_median"}, "train": {"worker_momentum": 0.9}},
}


def table(case: str, **train: Any) -> dict[str, Any]:
    """A config of the case, with other values in [train]."""
    own = CASES[case]
    merged = {**TABLE, **{key: value for key, value in own.items() if key != "train"}}
    return {**merged, "train": {**TABLE["train"], **own.get("train", {}), **train}}


def digest(simulation: Simulation) -> str:
    """The bits of everything that a run leaves: model, state, and metrics without their seconds."""
    state, parts = simulation.state, hashlib.sha256()
    for tensor in (state.theta, *(state.defense[name] for name in sorted(state.defense))):
        parts.update(tensor.numpy().tobytes())
    rows = [{key: value for key, value in row.items() if key != "seconds"} for row in simulation.history]
    return parts.hexdigest() + repr(rows)


def here(described: dict[str, Any]) -> str:
    return digest(Simulation.from_config(described).run())


def away(described: dict[str, Any], on: str = "ray:2") -> str:
    return digest(Simulation.from_config(described, on=on).run())


@pytest.fixture(scope="session")
def machines() -> Iterator[TwoMachines]:
    with two_machines() as started:
        yield started


@pytest.mark.parametrize("case", CASES)
@pytest.mark.usefixtures("machines")
def test_two_workers_give_the_bits_of_one_process(case: str) -> None:
    assert away(table(case)) == here(table(case))


@pytest.mark.parametrize("case", CASES if SOAK else ["sparsefed"])
@pytest.mark.parametrize("on", ["ray:1", "ray:4"])  # four do not fit on one of the two machines
@pytest.mark.usefixtures("machines")
def test_any_number_of_workers_gives_the_same_bits(on: str, case: str) -> None:
    assert away(table(case), on) == here(table(case))


@pytest.mark.parametrize("case", CASES if SOAK else ["sparsefed", "krum"])
@pytest.mark.usefixtures("machines")
def test_answers_may_come_in_any_order(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(1)
    monkeypatch.setattr(Team, "answered", lambda _, tasks, __: draw.sample(tasks, len(tasks)))  # each is waited for
    assert away(table(case), "ray:4") == here(table(case))


@pytest.mark.usefixtures("machines")
def test_without_parts_the_bits_are_those_of_an_ordinary_run_and_a_sentence_says_what_is_idle(
    caplog: pytest.LogCaptureFixture,
) -> None:
    plain = table("sparsefed")
    del plain["train"]["block"]
    with caplog.at_level(logging.WARNING):
        assert away(plain) == here(plain)
    assert "train.block = 5" in caplog.text


@pytest.mark.usefixtures("machines")
def test_objects_of_this_process_are_sent() -> None:
    x, y = torch.rand(200, 6), torch.randint(0, 3, (200,))

    def made(on: str | None) -> str:
        torch.default_generator.manual_seed(1)
        model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3))
        run = Simulation(model, (x, y), rounds=3, cohort=8, devices=20, schedule=0.1, train={"block": 3}, on=on)
        return digest(run.run())

    assert made("ray:2") == made(None)


def disturbed(simulation: Simulation, disturb: Callable[[], bool], times: int) -> str:
    """Run to the end and disturb, in the middle of round after round, so many times."""
    due, draw, done = threading.Semaphore(0), random.Random(simulation.rounds), [0]

    def go_on() -> None:
        while done[0] < times:
            due.acquire()
            time.sleep(draw.uniform(0, 0.05))  # somewhere within the round, or at its end
            until(disturb)  # a worker that was just killed needs some seconds to be there again
            done[0] += 1

    thread = threading.Thread(target=go_on, daemon=True)
    thread.start()
    for number, _ in enumerate(simulation, start=1):
        until(lambda number=number: done[0] >= min(number - 1, times), 240)
        due.release()
    assert done[0] == times
    return digest(simulation)


# In everyday tests, one rule that needs sums and one that needs slices of rows.
WORKERS_KILLED = dict.fromkeys(CASES, 20) if SOAK else {"sparsefed": 4, "bulyan": 2}
MACHINES_KILLED = dict.fromkeys(CASES, 3) if SOAK else {"sparsefed": 1}


@pytest.mark.parametrize(("case", "times"), WORKERS_KILLED.items())
def test_workers_that_die_change_nothing(machines: TwoMachines, case: str, times: int) -> None:
    long = {**table(case), "rounds": times + 10}
    run = Simulation.from_config(long, on="ray:2")
    assert disturbed(run, machines.kill_worker, times) == here(long)


@pytest.mark.parametrize(("case", "times"), MACHINES_KILLED.items())
def test_machines_that_die_change_nothing(machines: TwoMachines, case: str, times: int) -> None:
    long = {**table(case), "rounds": times + 10}

    def kill() -> bool:
        machines.kill_machine()
        return True

    assert disturbed(Simulation.from_config(long, on="ray:4"), kill, times) == here(long)


@pytest.mark.usefixtures("machines")
def test_a_run_goes_on_here_that_was_begun_on_a_cluster(tmp_path: Path) -> None:
    begun = Simulation.from_config(table("sparsefed"), on="ray:2")
    for report in begun:
        if report.state.round == 2:
            break
    begun.save(tmp_path / "run")
    gone_on = Simulation.from_run(tmp_path / "run").run()
    assert torch.equal(gone_on.theta, Simulation.from_config(table("sparsefed")).run().theta)


@pytest.mark.usefixtures("machines")
def test_a_worker_with_other_data_is_refused_by_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    real = greeting.greet
    monkeypatch.setattr("sparsefed.cluster.engine.greet", lambda *given: real(*given)._replace(data="0123"))
    with pytest.raises(ConfigError, match=r"worker on \S+ has other data \(\w+, here 0123\)"):
        away(table("sparsefed"))


@pytest.mark.usefixtures("machines")
def test_more_workers_than_fit_are_refused_by_a_sentence() -> None:
    with pytest.raises(ConfigError, match=r"asks for 99 workers of 1 threads, but the cluster has room for \d+"):
        away(table("sparsefed"), "ray:99")


def test_the_workers_are_released(machines: TwoMachines) -> None:
    built = Simulation.from_config(table("sparsefed"), on="ray:4")
    assert isinstance(built.built.setup.engine, RayEngine)
    built.run()
    again = Simulation.from_config(table("sparsefed"), on="ray:4")  # would wait for ever if they were not
    again.run()
    assert digest(again) == digest(built)
    assert len(machines.workers()) <= 4


@pytest.mark.usefixtures("machines")
def test_workers_of_an_earlier_connection_are_not_taken() -> None:
    first = away(table("sparsefed"))
    connect.library().shutdown()
    assert away(table("sparsefed")) == first


@pytest.mark.usefixtures("machines")
def test_a_run_without_a_worker_that_may_go_on_ends_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    simulation = Simulation.from_config({**table("sparsefed"), "rounds": 30}, on="ray:1")
    reports = iter(simulation)
    next(reports)
    engine = simulation.built.setup.engine
    assert isinstance(engine, RayEngine)
    monkeypatch.setattr(engine._team, "_out", {0: "the worker on node7 has other data"})
    with pytest.raises(RunError, match=r"node7 has other data\. No other worker is left"):
        list(reports)


GRID = {"defense.k": [50, 100], "seed": range(3 if SOAK else 2)}


def test_a_grid_whose_machines_die_has_the_same_results(machines: TwoMachines, tmp_path: Path) -> None:
    subject = {**table("sparsefed"), "rounds": 60}
    sweep(subject, GRID, folder=tmp_path / "here", jobs=2)
    killed, kills, rounds = [0], 10 if SOAK else 3, subject["rounds"]

    def kill(progress: Progress) -> None:
        """Kill after every twentieth round of the grid, so that cells have something to go on from."""
        passed = rounds * progress.done + sum(cell.done for cell in progress.running)
        if killed[0] < kills and passed >= 20 * killed[0] + 1 and machines.kill_worker("produced"):
            killed[0] += 1

    sweep(subject, GRID, folder=tmp_path / "away", on="ray:4", on_progress=kill)
    assert killed[0] == kills
    name = "sweep.jsonl"
    assert (tmp_path / "away" / name).read_bytes() == (tmp_path / "here" / name).read_bytes()


@pytest.mark.parametrize("field", ["data", "code", "versions", "processor", "threads"])
@pytest.mark.usefixtures("machines")
def test_a_machine_that_differs_runs_no_cells(field: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = greeting.run_greeting
    changed: dict[str, Any] = {field: "0123"}
    monkeypatch.setattr("sparsefed.sweeps.cluster_pool.run_greeting", lambda *given: real(*given)._replace(**changed))
    with pytest.raises(RunError, match=rf"worker on \S+ has {greeting.TITLES[field]} \(.+, here 0123\)"):
        sweep(table("sparsefed"), {"seed": [1]}, folder=tmp_path, on="ray:1")


@pytest.mark.usefixtures("machines")
def test_cells_come_from_machines_that_do_not_share_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    subject = {**table("sparsefed"), "rounds": 6}
    sweep(subject, {"seed": [1, 2]}, folder=tmp_path / "here", jobs=1)
    monkeypatch.setattr(
        "sparsefed.sweeps.cluster_pool.CellJob", lambda *given: replace(CellJob(*given), token="another")
    )
    sweep(subject, {"seed": [1, 2]}, folder=tmp_path / "away", on="ray:2")
    assert (tmp_path / "away" / "sweep.jsonl").read_bytes() == (tmp_path / "here" / "sweep.jsonl").read_bytes()


def test_one_study_is_searched_by_all_machines(machines: TwoMachines, tmp_path: Path) -> None:
    killed = threading.Event()

    def kill() -> None:
        until(lambda: machines.kill_worker("produced"), 240)
        killed.set()

    threading.Thread(target=kill, daemon=True).start()
    result = tune.tune(small(), trials=3, folder=tmp_path / "away", on="ray:2")
    assert killed.is_set()
    assert len(result.trials) == 3
    alone = tune.tune(small(), trials=1, folder=tmp_path / "here")
    assert replace(result.first, number=0) == alone.first  # what a trial measures does not depend on where
    assert tune.tune(small(), trials=3, folder=tmp_path / "away").trials == result.trials


def test_the_command_gives_the_run_of_one_process(machines: TwoMachines, tmp_path: Path) -> None:
    (tmp_path / "my.toml").write_text(toml.dumps(table("trimmed_mean")), encoding="utf-8")
    more = [str(tmp_path / "my.toml"), "--on", "ray:2", "--out", str(tmp_path / "run")]
    done = subprocess.run([*COMMAND, "run", *more], env={**os.environ}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert machines.address
    alone = Simulation.from_config(table("trimmed_mean")).run()
    assert digest(Simulation.from_run(tmp_path / "run")) == digest(alone)
