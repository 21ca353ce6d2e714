"""Proven secure aggregation over Flower: the simulator's bits, forgers left out and named, a helper that may die."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="Flower is not installed here; `make flower-test` runs these in its own environment")

from flwr.app import Message

from sparsefed import Simulation
from sparsefed import config as configs
from sparsefed.core.errors import ConfigError, RunError
from sparsefed.flower import Secure, Strategy
from sparsefed.flower.apps import client_app, run
from sparsefed.flower.faults import FAULTS
from sparsefed.flower.journal import refusals, state_of
from sparsefed.flower.sealed import answered, key_of, public_key_of
from sparsefed.runs import load_run, load_state
from sparsefed.secure.circuit import circuit_for
from sparsefed.secure.field import FIELD32
from sparsefed.secure.sealing import new_key, public_key
from sparsefed.secure.two_servers import Leader, RoundTask, upload
from tests.flower.grid import Fault, LocalGrid
from tests.flower.test_faults import nothing, without
from tests.flower.test_same_numbers import NEEDED, same

NODES, HELPER = [7_000 + i for i in range(5)], 9_999
FORGER = 2  # a device number
SUMS = ["clipping", "sparsefed", "fetchsgd", "dp_noise", "crfl", "undefended"]


def secured(rule: str = "sparsefed", rounds: int = 3) -> configs.Config:
    needed = {"clip_norm": 0.5, **NEEDED.get(rule, {})}
    return configs.parse(
        {
            "rounds": rounds,
            "seed": 5,
            "evaluate_every": rounds,
            "checkpoint_every": 1,
            "data": {"name": "digits", "partition": "iid", "devices": len(NODES), "per_device": 20},
            "model": {"name": "softmax"},
            "train": {"cohort": len(NODES), "sampling": "uniform", "lr": 0.1, "engine": "loop"},
            "defense": {"name": rule, **needed},
            "secure": {"scheme": "pine"},
        }
    )


def grid_of(config: configs.Config, key: Path, faults: dict[int, Fault] | None = None) -> LocalGrid:
    grid = LocalGrid([*NODES, HELPER], client_app(config), faults)
    for node in NODES:
        grid.contexts[node].node_config["helper-key"] = public_key_of(key)
    grid.contexts[HELPER].node_config["helper-key-file"] = str(key)
    return grid


def deployed(config: configs.Config, key: Path, faults: dict[int, Fault] | None = None, **settings: Any) -> Strategy:
    secure = Secure(HELPER, public_key_of(key))
    return run(config, grid_of(config, key, faults), secure=secure, deadline=1.0, poll=0.01, **settings)


@pytest.mark.parametrize("rule", SUMS)
def test_a_deployment_has_the_bits_of_the_secure_simulation(rule: str, tmp_path: Path) -> None:
    config = secured(rule)
    strategy = deployed(config, tmp_path / "helper.key")
    assert strategy.session.refused == []
    assert same(state_of(strategy.session.server), Simulation.from_config(config).run().state)


def test_a_forger_is_named_and_the_model_is_that_of_the_others(tmp_path: Path) -> None:
    config = secured()
    strategy = deployed(config, tmp_path / "helper.key", {NODES[FORGER]: FAULTS["forged report"]})
    assert {(one.device, one.node, one.reason) for one in strategy.session.refused} == {
        (FORGER, NODES[FORGER], "proof")
    }
    assert len(strategy.session.refused) == config.rounds
    assert same(state_of(strategy.session.server), without(config, (FORGER,)))


def test_a_device_that_vanishes_is_not_in_the_sum(tmp_path: Path) -> None:
    config = secured()
    strategy = deployed(config, tmp_path / "helper.key", {NODES[FORGER]: nothing})
    assert {(one.device, one.reason) for one in strategy.session.refused} == {(FORGER, "late")}
    assert same(state_of(strategy.session.server), without(config, (FORGER,)))


def test_an_earlier_report_sent_again_is_refused(tmp_path: Path) -> None:
    """A replay of its own report, under a new message, as the attacker of a rehearsal would send it."""
    config, earlier = secured(), list[Any]()

    def replaying(_: Message, reply: Message) -> Message:
        earlier.append(reply.content["report"])
        reply.content["report"] = earlier[0]
        return reply

    strategy = deployed(config, tmp_path / "helper.key", {NODES[FORGER]: replaying})
    assert [(one.round, one.device, one.reason) for one in strategy.session.refused] == [
        (round, FORGER, "report") for round in (2, 3)
    ]
    assert all("replay" in one.detail for one in strategy.session.refused)


def test_a_report_of_another_device_is_refused(tmp_path: Path) -> None:
    config, seen = secured(rounds=1), dict[str, Any]()

    def lending(_: Message, reply: Message) -> Message:
        seen["report"] = reply.content["report"]
        return reply

    def borrowing(_: Message, reply: Message) -> Message:
        reply.content["report"] = seen["report"]
        return reply

    order = [one.device for one in deployed(config, tmp_path / "other.key").session._asked]
    first, last = NODES[order[0]], NODES[order[-1]]
    strategy = deployed(config, tmp_path / "helper.key", {first: lending, last: borrowing})
    assert [(one.device, one.reason) for one in strategy.session.refused] == [(order[-1], "report")]


def test_a_helper_that_dies_ends_the_run_cleanly_and_the_next_one_goes_on(tmp_path: Path) -> None:
    config, key = secured(), tmp_path / "helper.key"

    def dying(message: Message, reply: Message) -> Message | None:
        return None if message.metadata.group_id == "2" else reply

    with pytest.raises(RunError, match=r"round 2 had no sum: the helper did not answer.*continues from the last"):
        deployed(config, key, {HELPER: dying}, folder=tmp_path / "run", retries=0)
    assert load_run(tmp_path / "run").manifest["round"] == 1
    assert {line["reason"] for line in refusals(tmp_path / "run")} == {"late"}
    deployed(config, key, folder=tmp_path / "run")
    state = load_state(tmp_path / "run")
    assert state is not None and same(state, Simulation.from_config(config).run().state)
    assert (tmp_path / "run" / "leader.key").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("answer", ["nan", "garbage", "wrong shape", "claims a gigabyte"])
def test_a_helper_that_answers_nonsense_gives_no_sum(answer: str, tmp_path: Path) -> None:
    config = secured(rounds=1)
    with pytest.raises(RunError, match="no sum"):
        deployed(config, tmp_path / "helper.key", {HELPER: FAULTS[answer]}, retries=0)


def test_a_missing_helper_is_waited_for_and_then_named(tmp_path: Path) -> None:
    config, key = secured(), tmp_path / "helper.key"
    grid = grid_of(config, key)
    grid.nodes.remove(HELPER)
    with pytest.raises(RunError, match="5 of 5, without the helper, were connected"):
        run(config, grid, secure=Secure(HELPER, public_key_of(key)), patience=0.05, poll=0.001)


def test_a_device_seals_to_the_helper_that_it_was_started_with_and_to_no_other(tmp_path: Path) -> None:
    config, key = secured(rounds=1), tmp_path / "helper.key"
    grid = grid_of(config, key)
    grid.contexts[NODES[FORGER]].node_config["helper-key"] = public_key(new_key()).hex()
    strategy = run(config, grid, secure=Secure(HELPER, public_key_of(key)), deadline=1.0, poll=0.01)
    (one,) = strategy.session.refused
    assert one.device == FORGER and "ask the helper's operator" in one.detail


def test_the_helper_remembers_from_one_process_to_the_next(tmp_path: Path) -> None:
    key, private = tmp_path / "helper.key", new_key()
    circuit = circuit_for(FIELD32, 8, 100)
    task = RoundTask(circuit, bytes(16), 1, public_key(private), public_key(key_of(key)))
    leader = Leader(task, private)
    for sender in range(3):
        assert leader.receive(sender, upload(task, sender, circuit.field.to_signed(circuit.field.zeros(8)))) is None
    request = leader.request()
    assert leader.finish(answered(key, task, request, {})).total is not None
    again = leader.finish(answered(key, task, request, {}))
    assert again.total is None and "summed up already" in again.problem
    assert len(json.loads((tmp_path / "helper.memory.json").read_text())["nonces"]) == 3
    stranger = leader.finish(answered(key, task, request, {"leader-key": public_key(new_key()).hex()}))
    assert "from a leader that this helper does not know" in stranger.problem
    assert key.stat().st_mode & 0o077 == 0
    (tmp_path / "no.key").write_text("hello")
    with pytest.raises(RunError, match="holds no private key"):
        key_of(tmp_path / "no.key")


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"rule": "krum", "f": 1}, "rules for it: .*sparsefed"),
        ({"rule": "sparsefed", "k": 3, "clip_norm": 1.0, "weight_cap": 3.0}, "leave out sends, weight_cap, spare"),
        ({"rule": "clipping", "clip_norm": 1.0, "spare": 1}, "leave out sends, weight_cap, spare"),
    ],
)
def test_what_cannot_be_secure_is_refused(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        Strategy(**settings, secure=Secure(1, "00" * 32))
    with pytest.raises(ConfigError, match="64 hexadecimal digits"):
        Secure(1, "none")


def test_a_config_with_secure_needs_a_helper() -> None:
    config = secured()
    with pytest.raises(ConfigError, match=r"sparsefed\.flower\.Secure"):
        run(config, LocalGrid(NODES, client_app(config)))
