"""A deployment as real processes on loopback, with TLS and keys: the simulator's bits, liars, and `kill -9`.

CI has five nodes, one rule and a helper; `make flower-soak` has ten nodes for each of four rules and for liars, and
four for twenty kills and for every fault; with SPARSEFED_FLOWER_SOAK=small, five nodes and three kills.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="Flower is not installed here; `make flower-test` runs these in its own environment")

from sparsefed import Simulation, runs
from sparsefed import config as configs
from sparsefed.core.round import ServerState
from sparsefed.flower.app_files import write_app
from sparsefed.flower.faults import FAULTS
from sparsefed.flower.journal import refusals
from sparsefed.flower.local import LocalFederation
from sparsefed.flower.sealed import public_key_of
from sparsefed.flower.show import digest, expected
from tests.flower.test_faults import REASON, without

pytestmark = [pytest.mark.process, pytest.mark.slow]

SOAK = os.environ.get("SPARSEFED_FLOWER_SOAK") == "1"
long = pytest.mark.skipif("SPARSEFED_FLOWER_SOAK" not in os.environ, reason="minutes; `make flower-soak` runs it")
NODES = 10 if SOAK else 5
KILLS = 20 if SOAK else 3
FEW = 4  # nodes where it is about rounds: every message to a node starts a Python that loads torch
LIAR, DYING = 1, NODES - 1
DEADLINE = 180.0  # a loaded machine starts ten clients slowly
END = 900.0  # seconds after which a run has hung
RULES: dict[str, dict[str, Any]] = {
    "sparsefed": {"k": 100, "clip_norm": 0.5},
    "clipping": {"clip_norm": 0.5},
    "krum": {"f": 2},
    "trimmed_mean": {"f": 2},
}


def config(rule: str, rounds: int, nodes: int = NODES) -> configs.Config:
    return configs.parse(
        {
            "rounds": rounds,
            "seed": 7,
            "evaluate_every": rounds,
            "checkpoint_every": 1,
            "data": {"name": "digits", "partition": "iid", "devices": nodes, "per_device": 40},
            "model": {"name": "softmax"},
            "train": {"cohort": nodes, "sampling": "uniform", "lr": 0.2, "engine": "loop"},
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
    usual = {"deadline": DEADLINE, "quorum": config.train.cohort, "retries": 5}
    write_app(folder / "app", configs.dump(config), settings={**usual, **settings}, rehearsal=rehearsal)
    return folder / "app"


@pytest.mark.parametrize("rule", list(RULES) if SOAK else ["sparsefed"])
def test_the_model_is_the_simulators_to_the_bit(rule: str, federation: LocalFederation, tmp_path: Path) -> None:
    wanted = config(rule, 5 if SOAK else 2)
    status = federation.run(app(tmp_path, wanted), END, folder=str(tmp_path / "run"))
    assert status == "finished:completed", log_of(federation)
    assert deployed(tmp_path / "run") == simulated(wanted)
    assert list(refusals(tmp_path / "run")) == []
    assert runs.load_run(tmp_path / "run").manifest["status"] == "finished"


@long
def test_kills_of_everything_end_in_the_same_bits(tmp_path: Path) -> None:
    """ServerApp, SuperLink and SuperNodes are killed at random moments; the next run goes on, and nothing hangs."""
    wanted, folder = config("sparsefed", 20 if SOAK else 3, nodes=FEW), tmp_path / "run"
    made, draw, status = app(tmp_path, wanted), random.Random(18), ""
    with LocalFederation(tmp_path / "federation", FEW) as federation:
        for kill in range(KILLS):
            begin(federation, made, folder)
            time.sleep(draw.uniform(0, 15 if SOAK else 6))
            KILLERS[kill % len(KILLERS)](federation, draw)
        for _ in range(3):  # what is still running, and then the next run
            if status != "finished:completed":
                ended(federation, END)
                status = federation.run(made, END, folder=str(folder))
        assert status == "finished:completed", log_of(federation)
    assert deployed(folder) == simulated(wanted)


def begin(federation: LocalFederation, app: Path, folder: Path) -> None:
    """Start the next run unless one is going on, and wait for its ServerApp."""
    if federation.server_apps():
        return
    run, until = federation.submit(app, folder=str(folder)), time.monotonic() + 120
    while not federation.server_apps() and time.monotonic() < until:
        time.sleep(0.2)
        assert federation.link is not None and federation.link.poll() is None, run


def ended(federation: LocalFederation, seconds: float) -> None:
    """Wait until no ServerApp is left: one that is being ended holds the folder for a few seconds."""
    until = time.monotonic() + seconds
    while federation.server_apps():
        assert time.monotonic() < until, f"a ServerApp is still there after {seconds} s: {log_of(federation)}"
        time.sleep(0.2)


def kill_server_app(federation: LocalFederation, _: random.Random) -> None:
    federation.kill_server_app()
    ended(federation, 30)


def kill_link(federation: LocalFederation, _: random.Random) -> None:
    federation.kill_link()
    ended(federation, 60)  # its ServerApp notices
    federation.start_link()


def kill_node(federation: LocalFederation, draw: random.Random) -> None:
    i = draw.randrange(FEW)
    federation.kill_node(i)
    federation.start_node(i)


KILLERS: tuple[Callable[[LocalFederation, random.Random], None], ...] = (kill_server_app, kill_link, kill_node)


@long
def test_a_tenth_lies_and_a_tenth_dies(federation: LocalFederation, tmp_path: Path) -> None:
    """Last, for a node stays dead: its absence and the liar's NaN are named, and the model is that of the others."""
    wanted, folder = config("sparsefed", 3), tmp_path / "run"
    made = app(tmp_path, wanted, rehearsal=True, quorum=1, nodes=NODES - 1)
    run = federation.submit(made, folder=str(folder))
    await_round(folder, 1)
    federation.kill_node(DYING)
    assert federation.wait(run, END) == "finished:completed", log_of(federation)
    named = {(line["device"], line["reason"]) for line in refusals(folder)}
    liars = {device for device, reason in named if reason == "not finite"}
    assert len(liars) == 1
    assert {reason for _, reason in named} <= {"not finite", "late", "error"}  # error: Flower knows that it is gone
    assert len({device for device, reason in named if reason != "not finite"} - liars) <= 1
    assert deployed(folder) == digest(expected(wanted, folder))


def await_round(folder: Path, round: int) -> None:
    until = time.monotonic() + END
    while rounds_done(folder) < round:
        assert time.monotonic() < until, f"round {round} did not come"
        time.sleep(0.5)


# Those that end or stop a client last: its node needs a while.
IN_TURN = [*(name for name in FAULTS if name not in ("exit", "sleep")), "exit", "sleep"]


@pytest.mark.skipif(not SOAK, reason="sixteen rounds of processes; `make flower-soak` runs it")
def test_every_fault_of_a_real_client_is_named_and_changes_nothing(tmp_path: Path) -> None:
    """One node of four breaks its replies, every round in another way."""
    lies = {0: f'red-team="true" fault="{", ".join(IN_TURN)}"'}
    wanted, folder = config("sparsefed", len(IN_TURN), nodes=FEW), tmp_path / "run"
    made = app(tmp_path, wanted, rehearsal=True, quorum=FEW - 1, deadline=60.0, weight_cap=32.0)
    with LocalFederation(tmp_path / "federation", FEW, node_config=lies) as small:
        assert small.run(made, END, folder=str(folder)) == "finished:completed", log_of(small)
    named = {IN_TURN[line["round"] - 1]: line["reason"] for line in refusals(folder)}
    assert named.pop("exit") in ("late", "error")  # error: its SuperNode misses its heartbeat
    assert named.pop("other sender") == "late"  # the SuperLink drops it: it is not from the node that was asked
    assert named == {name: reason for name, reason in REASON.items() if name not in ("exit", "other sender")}
    assert len({line["device"] for line in refusals(folder)}) == 1
    assert deployed(folder) == digest(expected(wanted, folder))


def test_a_helper_adds_up_what_nobody_sees_and_a_forger_is_left_out(tmp_path: Path) -> None:
    """Five devices, of which one forges its proof, and a helper under another key; the bits of a run without it."""
    table = {**configs.dump(config("sparsefed", 3, nodes=5)), "secure": {"scheme": "pine"}}
    wanted, folder, key = configs.parse(table), tmp_path / "run", tmp_path / "helper.key"
    pinned = f'helper-key="{public_key_of(key)}"'
    roles = {i: f'{pinned} red-team="true" fault="{"forged report" if i == 2 else ""}"' for i in range(5)}
    made = app(tmp_path, wanted, rehearsal=True, quorum=4, nodes=5)
    with LocalFederation(tmp_path / "federation", 6, node_config={**roles, 5: f'helper-key-file="{key}"'}) as started:
        helper = {"helper": str(started.node_ids()[5]), "helper-key": public_key_of(key)}
        assert started.run(made, END, folder=str(folder), **helper) == "finished:completed", log_of(started)
    lines = list(refusals(folder))
    assert [line["reason"] for line in lines] == ["proof"] * 3
    (forger,) = {int(line["device"]) for line in lines}
    assert deployed(folder) == digest(without(wanted, (forger,)))


def log_of(federation: LocalFederation) -> str:
    return (federation.folder / "superlink.log").read_text()[-4000:]
