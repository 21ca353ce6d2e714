"""Replies that are wrong, hostile, late or missing are refused by name, and the model is that of a run without them."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed here; `make flower-test` runs these in its own environment")

import torch
from flwr.app import ConfigRecord, Error, Message

from sparsefed import config as configs
from sparsefed.core.engine import Cohort
from sparsefed.core.errors import RunError
from sparsefed.core.round import ServerState, _context, local_step
from sparsefed.defenses import DEFENSES
from sparsefed.flower.apps import client_app, run
from sparsefed.flower.client import record_of
from sparsefed.flower.faults import FAULTS
from sparsefed.flower.journal import refusals, state_of
from sparsefed.flower.roster import Roster
from sparsefed.flower.strategy import Strategy
from sparsefed.runs import load_run, load_state
from tests.flower.grid import Fault, LocalGrid
from tests.flower.test_same_numbers import same, table

NODES = [7_000 + i for i in range(12)]
LIARS = (2, 5)  # device numbers
WITH_COUNTS = ("count 0", "count nan", "count -30")
REASON = {
    "wrong key": "keys",
    "extra record": "records",
    "wrong shape": "shape",
    "garbage": "body",
    "nan": "not finite",
    "count 0": "count",
    "count nan": "count",
    "count -30": "count",
    "claims a gigabyte": "body",
    "10 000 keys": "keys",
    "old round": "round",
    "other sender": "identity",
    "raise": "error",
    "exit": "late",
    "sleep": "late",
}


def without(config: configs.Config, liars: tuple[int, ...]) -> ServerState:
    """The run of a config in which some devices' updates never come, from the definition."""
    built = configs.build(config)
    setup, state = built.setup, built.begin()
    while state.round < config.rounds:
        context = _context(setup, state.theta, state.round + 1)
        cohort = np.array([i for i in setup.federation.cohort(context.round) if i not in liars])
        gather = partial(setup.federation.training, round=context.round)
        devices = Cohort(cohort, setup.federation.sizes(cohort), gather)
        blocks = setup.engine(state.theta, devices, local_step(setup, context))
        step = setup.defense.step(state.defense, blocks, context)
        state = ServerState(context.round, state.theta - step.delta, step.state)
    return state


def nothing(_: Message, __: Message) -> None:
    return None


def failing(message: Message, _: Message) -> Message:
    """What the SuperLink hands over if a client raised."""
    return Message(Error(code=4, reason="this client failed"), reply_to=message)


def faults(name: str) -> Fault:
    """A fault of `FAULTS`; those that would end or stop this process, as the server sees them."""
    return {"exit": nothing, "sleep": nothing, "raise": failing}.get(name, FAULTS[name])


def deployed(rule: str, fault: Fault, **settings: Any) -> Strategy:
    config = configs.parse(table(rule))
    grid = LocalGrid(NODES, client_app(config), {NODES[i]: fault for i in LIARS})
    return run(config, grid, deadline=0.05, poll=0.01, **settings)


@pytest.mark.parametrize("name", sorted(REASON))
def test_a_fault_is_refused_by_name_and_changes_nothing(name: str) -> None:
    weights = {"weight_cap": 16.0} if name in WITH_COUNTS else {}
    strategy = deployed("sparsefed", faults(name), **weights)
    refused = strategy.session.refused
    assert {one.device for one in refused} == set(LIARS)
    assert {one.reason for one in refused} == {REASON[name]}
    assert {one.node for one in refused} == {NODES[i] for i in LIARS}
    assert same(state_of(strategy.session.server), without(configs.parse(table("sparsefed")), LIARS))


@pytest.mark.parametrize("rule", sorted(DEFENSES))
def test_every_rule_goes_on_without_the_refused(rule: str) -> None:
    strategy = deployed(rule, FAULTS["nan"])
    assert {one.reason for one in strategy.session.refused} == {"not finite"}
    assert same(state_of(strategy.session.server), without(configs.parse(table(rule)), LIARS))


def test_counts_mean_nothing_unless_asked_for_and_no_more_than_the_cap_then() -> None:
    honest = deployed("clipping", lambda _, reply: reply)
    for name in ("count 0", "count nan", "count 1e9", "count -30"):
        ignored = deployed("clipping", FAULTS[name])
        assert ignored.session.refused == []
        assert same(state_of(ignored.session.server), state_of(honest.session.server))
    # Every device has 20 examples, so a cap of 20 leaves a liar the weight of an honest device.
    capped = deployed("clipping", FAULTS["count 1e9"], weight_cap=20.0)
    torch.testing.assert_close(capped.session.server.theta, honest.session.server.theta)
    bold = deployed("clipping", FAULTS["count 1e9"], weight_cap=1e9)
    assert not torch.allclose(bold.session.server.theta, honest.session.server.theta)


def test_a_second_reply_and_a_stranger_are_refused() -> None:
    config = configs.parse(table("sparsefed"))
    built, app = configs.build(config), client_app(config)
    grid = LocalGrid(NODES, app)
    strategy = Strategy("sparsefed", k=100, clip_norm=0.5, lr=0.1, seed=5, cohort=10, block_mb=64)
    arrays = record_of(built.task, built.theta)
    requests = strategy.configure_train(1, arrays, ConfigRecord(), grid)
    replies = [reply for id in grid.push_messages(requests) for reply in grid.pull_messages([id])]
    twice = [reply for id in grid.push_messages(requests) for reply in grid.pull_messages([id])][:1]
    stranger = next(iter(grid.pull_messages(grid.push_messages(requests))))
    stranger.metadata.__dict__["_src_node_id"] = 5
    before = strategy.session.server.theta
    strategy.aggregate_train(1, [*replies[::-1], *twice, stranger])
    assert sorted(one.reason for one in strategy.session.refused) == ["duplicate", "stranger"]
    assert not before.equal(strategy.session.server.theta)


def test_a_reply_that_cannot_be_decoded_is_refused() -> None:
    config = configs.parse(table("sparsefed"))

    class Broken(LocalGrid):
        def pull_messages(self, message_ids: Any) -> Any:
            (id,) = message_ids
            if self._sent[id].metadata.dst_node_id in (NODES[2], NODES[5]):
                raise KeyError("an object is missing")
            return super().pull_messages([id])

    strategy = run(config, Broken(NODES, client_app(config)))
    assert {one.reason for one in strategy.session.refused} == {"unreadable"}
    assert same(state_of(strategy.session.server), without(config, LIARS))


@pytest.mark.parametrize("errors", [2, 100])
def test_an_error_of_the_superlink_is_given_time_to_go_away(errors: int, monkeypatch: pytest.MonkeyPatch) -> None:
    import httpx

    monkeypatch.setattr("sparsefed.flower.transport.PAUSES", (0.001, 0.001, 0.001))
    config, left = configs.parse(table("sparsefed")), [errors]

    class Locked(LocalGrid):
        def pull_messages(self, message_ids: Any) -> Any:
            left[0] -= 1
            if left[0] >= 0:
                raise httpx.ReadError("database is locked")
            return super().pull_messages(message_ids)

    if errors == 100:
        with pytest.raises(RunError, match=r"cannot be reached .database is locked.; start it and run this again"):
            run(config, Locked(NODES, client_app(config)))
        return
    strategy = run(config, Locked(NODES, client_app(config)))
    assert same(state_of(strategy.session.server), without(config, ()))


# --- waiting ---------------------------------------------------------------------------------------------------------


def test_a_round_without_a_quorum_is_repeated_and_then_the_run_ends_with_a_checkpoint(tmp_path: Path) -> None:
    config, down = configs.parse(table("sparsefed") | {"checkpoint_every": 1}), list[int]()

    def dying(message: Message, reply: Message) -> Message | None:
        return None if int(message.content["config"]["server-round"]) > 1 and down else reply

    grid = LocalGrid(NODES, client_app(config), dict.fromkeys(NODES, dying))
    down.append(1)
    with pytest.raises(RunError, match=r"round 2 had 0 usable replies, but the quorum is 6 \(10 late.*continues from"):
        run(config, grid, folder=tmp_path / "run", deadline=0.05, poll=0.01, retries=1)
    assert load_run(tmp_path / "run").manifest["status"] == "interrupted"
    assert load_run(tmp_path / "run").manifest["round"] == 1
    down.clear()
    run(config, grid, folder=tmp_path / "run")
    state = load_state(tmp_path / "run")
    assert state is not None
    assert same(state, without(config, ()))
    assert [row["reason"] for row in refusals(tmp_path / "run")] == []  # those of rounds that were repeated are gone


def test_too_few_nodes_end_the_run_with_a_sentence() -> None:
    config = configs.parse(table("sparsefed"))
    grid = LocalGrid(NODES[:3], client_app(config))
    with pytest.raises(RunError, match=r"round 1 needs more nodes: 3 of 12 were connected after 0.05 s; start more"):
        run(config, grid, patience=0.05, poll=0.001)


def test_a_run_that_is_ended_anywhere_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    config = configs.parse(table("sparsefed") | {"checkpoint_every": 1})
    expected = without(config, ())

    class Fragile(LocalGrid):
        lasts = 0

        def pull_messages(self, message_ids: Any) -> Any:
            Fragile.lasts -= 1
            if Fragile.lasts == 0:
                raise KeyboardInterrupt
            return super().pull_messages(message_ids)

    for ends in (1, 7, 12, 20, 29, 1_000):
        Fragile.lasts = ends
        try:
            run(config, Fragile(NODES, client_app(config)), folder=tmp_path / "run")
        except KeyboardInterrupt:
            assert ends < 1_000
    state = load_state(tmp_path / "run")
    assert state is not None
    assert same(state, expected)
    record = load_run(tmp_path / "run")
    assert record.manifest["status"] == "finished"
    assert [row["round"] for row in record.rows] == [1, 2, 3]


def test_spare_nodes_fill_in_for_those_that_do_not_reply() -> None:
    config = configs.parse(table("trimmed_mean"))
    grid = LocalGrid(NODES, client_app(config), {NODES[i]: nothing for i in LIARS})
    strategy = run(config, grid, spare=2, poll=0.01, deadline=30.0)
    assert strategy.session.refused == []  # nobody waited for those that were not needed
    record = strategy.session.result.train_metrics_clientapp
    assert [metrics["cohort"] for metrics in record.values()] == [10, 10, 10]


def test_a_node_keeps_its_number_when_others_join(tmp_path: Path) -> None:
    config = configs.parse(table("foolsgold") | {"checkpoint_every": 1})
    run(config, LocalGrid(NODES, client_app(config)), folder=tmp_path / "run")
    roster = Roster.load(tmp_path / "run")
    assert roster.join([1, *NODES])
    assert [roster.number(node) for node in NODES] == list(range(12))
    assert roster.number(1) == 12


def test_the_account_of_refusals_names_node_and_reason_and_survives(tmp_path: Path) -> None:
    strategy = deployed("sparsefed", FAULTS["wrong shape"], folder=tmp_path / "run")
    lines = list(refusals(tmp_path / "run"))
    assert len(lines) == len(strategy.session.refused) > 0
    assert {(line["node"], line["reason"]) for line in lines} == {(str(NODES[i]), "shape") for i in LIARS}
    rows = load_run(tmp_path / "run").rows
    assert sum(row["refused"] for row in rows) == sum(row.get("refused_shape", 0) for row in rows) == len(lines)
