"""A deployment as real processes on loopback, with TLS and keys: the simulator's bits, liars, and `kill -9`.

What takes longer than CI has is run by `make flower-soak`: all four rules, and twenty kills at random moments.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="Flower is not installed here; `make flower-test` runs these in its own environment")

from sparsefed import Simulation, runs
from sparsefed import config as configs
from sparsefed.core.round import ServerState
from sparsefed.flower.app_files import write_app
from sparsefed.flower.journal import refusals
from sparsefed.flower.local import LocalFederation
from sparsefed.flower.show import digest, expected

pytestmark = [pytest.mark.process, pytest.mark.slow]

SOAK = "SPARSEFED_FLOWER_SOAK" in os.environ
NODES = int(os.environ.get("SPARSEFED_FLOWER_NODES", "10"))  # fewer, on a machine that has other work
LIAR, DYING = 1, NODES - 1
DEADLINE = 90.0  # a loaded machine starts ten clients slowly
RULES: dict[str, dict[str, Any]] = {
    "sparsefed": {"k": 100, "clip_norm": 0.5},
    "clipping": {"clip_norm": 0.5},
    "krum": {"f": 2},
    "trimmed_mean": {"f": 2},
}


def config(rule: str, rounds: int) -> configs.Config:
    return configs.parse(
        {
            "rounds": rounds,
            "seed": 7,
            "evaluate_every": rounds,
            "checkpoint_every": 1,
            "data": {"name": "digits", "partition": "iid", "devices": NODES, "per_device": 40},
            "model": {"name": "softmax"},
            "train": {"cohort": NODES, "sampling": "uniform", "lr": 0.2, "engine": "loop"},
            "defense": {"name": rule, **RULES[rule]},
        }
    )


def simulated(config: configs.Config) -> str:
    return digest(Simulation.from_config(config).run().state)


def deployed(folder: Path) -> str:
    state = runs.load_state(folder)
    assert isinstance(state, ServerState)
    return digest(state)


def rounds_done(folder: Path) -> int:
    metrics = folder / runs.METRICS
    return len(metrics.read_bytes().splitlines()) if metrics.exists() else 0


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalFederation]:
    lies = {LIAR: 'red-team="true" fault="nan"'}  # it lies in rehearsals alone
    with LocalFederation(tmp_path_factory.mktemp("federation"), NODES, node_config=lies) as started:
        yield started
    assert started.processes() == {}


def app(folder: Path, config: configs.Config, rehearsal: bool = False, **settings: Any) -> Path:
    usual = {"deadline": DEADLINE, "quorum": NODES, "retries": 5}
    write_app(folder / "app", configs.dump(config), settings={**usual, **settings}, rehearsal=rehearsal)
    return folder / "app"


@pytest.mark.parametrize("rule", list(RULES) if SOAK else ["sparsefed"])
def test_the_model_is_the_simulators_to_the_bit(rule: str, federation: LocalFederation, tmp_path: Path) -> None:
    wanted = config(rule, 5 if SOAK else 2)
    status = federation.run(app(tmp_path, wanted), 600, folder=str(tmp_path / "run"))
    assert status == "finished:completed", log_of(federation)
    assert deployed(tmp_path / "run") == simulated(wanted)
    assert list(refusals(tmp_path / "run")) == []
    assert runs.load_run(tmp_path / "run").manifest["status"] == "finished"


def test_kills_of_everything_end_in_the_same_bits(federation: LocalFederation, tmp_path: Path) -> None:
    """The ServerApp, the SuperLink and a SuperNode are killed in turn; the next run goes on."""
    wanted, folder = config("sparsefed", 10 if SOAK else 2), tmp_path / "run"
    made, draw = app(tmp_path, wanted, deadline=30.0), random.Random(18)
    for kill in range(20 if SOAK else 3):
        run = federation.submit(made, folder=str(folder))
        await_start(federation, run)
        time.sleep(draw.uniform(0, 12 if SOAK else 4))
        (kill_server_app, kill_link, kill_node)[kill % 3](federation, draw)
        if kill % 3 == 2:
            federation.wait(run, 600) if not SOAK else stop(federation, run)
    status = federation.run(made, 600, folder=str(folder))
    assert status == "finished:completed", log_of(federation)
    assert deployed(folder) == simulated(wanted)


def kill_server_app(federation: LocalFederation, _: random.Random) -> None:
    federation.kill_server_app()


def kill_link(federation: LocalFederation, _: random.Random) -> None:
    federation.kill_link()
    federation.start_link()


def kill_node(federation: LocalFederation, draw: random.Random) -> None:
    i = draw.randrange(NODES)
    federation.kill_node(i)
    federation.start_node(i)


def stop(federation: LocalFederation, run: str) -> None:
    federation.flwr("stop", run, "local", "--format", "json")


def await_start(federation: LocalFederation, run: str) -> None:
    """Wait until the run's ServerApp is there, or the run has ended already."""
    until = time.monotonic() + 120
    while time.monotonic() < until:
        if federation.server_apps() or federation.status(run).startswith("finished"):
            return
        time.sleep(0.5)


def test_a_tenth_lies_and_a_tenth_dies(federation: LocalFederation, tmp_path: Path) -> None:
    """Last, for a node stays dead: its absence and the liar's NaN are named, and the model is that of the others."""
    wanted, folder = config("sparsefed", 3), tmp_path / "run"
    made = app(tmp_path, wanted, rehearsal=True, quorum=1, nodes=NODES - 1, deadline=40.0)
    run = federation.submit(made, folder=str(folder))
    until = time.monotonic() + 300
    while rounds_done(folder) < 1 and time.monotonic() < until:
        time.sleep(0.5)
    federation.kill_node(DYING)
    assert federation.wait(run, 600) == "finished:completed", log_of(federation)
    named = {(line["device"], line["reason"]) for line in refusals(folder)}
    liars = {device for device, reason in named if reason == "not finite"}
    assert len(liars) == 1
    assert {reason for _, reason in named} <= {"not finite", "late", "error"}  # error: Flower knows that it is gone
    assert len({device for device, reason in named if reason != "not finite"} - liars) <= 1
    assert deployed(folder) == digest(expected(wanted, folder))


def log_of(federation: LocalFederation) -> str:
    return (federation.folder / "superlink.log").read_text()[-4000:]
