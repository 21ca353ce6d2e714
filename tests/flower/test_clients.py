"""The client's side: training by our engines, Flower's own clients, clipping, and attackers in a rehearsal."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed here; `make flower-test` runs these in its own environment")

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from sklearn.datasets import load_digits
from torch import Tensor, nn

from sparsefed import defenses, report
from sparsefed.attacks import ATTACKS, attack_info
from sparsefed.core.engine import Cohort, LocalPlan, LocalStep
from sparsefed.core.errors import ConfigError, RunError
from sparsefed.core.task import make_task
from sparsefed.core.types import Batch
from sparsefed.engines import ENGINES
from sparsefed.flower.client import client, clip, record_of
from sparsefed.flower.red_team import red_team
from sparsefed.flower.strategy import Strategy
from sparsefed.runs import load_run
from tests.flower.grid import Client, LocalGrid

NODES = [31, 8, 15, 4, 99]


def net() -> nn.Module:
    linear = nn.Linear(64, 10)
    nn.init.zeros_(linear.weight)
    nn.init.zeros_(linear.bias)
    return nn.Sequential(nn.Flatten(), linear)


def digits() -> tuple[Tensor, Tensor]:
    x, y = load_digits(return_X_y=True)
    return torch.from_numpy(x / 16).float(), torch.from_numpy(y).long()


X, Y = digits()


def own(context: Context) -> tuple[Tensor, Tensor]:
    i = int(context.node_config["partition-id"])
    return X[100 * i : 100 * i + 100], Y[100 * i : 100 * i + 100]


def accuracy(model: nn.Module) -> float:
    return float((model(X[1000:]).argmax(1) == Y[1000:]).float().mean())


def trained(strategy: Strategy, app: Client, rounds: int = 3, **start: Any) -> nn.Module:
    grid = LocalGrid(NODES, app)
    result = strategy.start(grid, ArrayRecord(net().state_dict()), rounds, timeout=5, **start)
    model = net()
    model.load_state_dict(result.arrays.to_torch_state_dict())
    return model


# --- training --------------------------------------------------------------------------------------------------------


def test_one_line_trains_a_module_and_the_server_may_evaluate_it() -> None:
    strategy = Strategy("sparsefed", k=300, clip_norm=5.0, lr=1.0)

    def evaluate(round: int, arrays: ArrayRecord) -> MetricRecord:  # noqa: ARG001
        model = net()
        model.load_state_dict(arrays.to_torch_state_dict())
        return MetricRecord({"accuracy": accuracy(model)})

    model = trained(strategy, client(net, own), rounds=8, evaluate_fn=evaluate)
    assert accuracy(model) > 0.5
    assert strategy.session.result.evaluate_metrics_serverapp[8]["accuracy"] == accuracy(model)


def test_several_local_steps_are_those_of_the_engine() -> None:
    app = client(net, own, epochs=2, batch=30, prox=0.1, local_lr=0.3, weight_decay=0.01)
    config = {"server-round": 4, "device": 2, "lr": 0.1, "mode": "fedavg", "sends": "update", "round-seed": 12}
    task = make_task(net())
    theta = torch.linspace(-1, 1, task.d)
    message = Message(RecordDict({"arrays": record_of(task, theta), "config": ConfigRecord(config)}), 15, "train")
    reply = app(message, Context(0, 15, {"partition-id": 2}, RecordDict(), {}))
    arrays = reply.content["arrays"]
    sent = torch.cat([torch.from_numpy(np.array(arrays[slot.name].numpy())).reshape(-1) for slot in task.slots])
    x, y = own(Context(0, 15, {"partition-id": 2}, RecordDict(), {}))
    step = LocalStep(0.3, 0.01, 12, LocalPlan(2, 30, 1.0, 0.1))
    cohort = Cohort(np.array([2]), np.array([100]), lambda _: Batch(x, y, np.array([100])))
    (block,) = ENGINES["loop"](task, torch.float32)(theta, cohort, step)
    assert sent.equal(block.rows()[0])


def quick_start() -> ClientApp:
    """The client of Flower's own quick start, unmodified: it knows nothing of us, and sends its model."""
    app = ClientApp()

    @app.train()
    def train(msg: Message, context: Context) -> Message:
        model = net()
        model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
        x, y = own(context)
        optimizer = torch.optim.SGD(model.parameters(), lr=float(msg.content["config"]["lr"]))
        for _ in range(3):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        metrics = {"train_loss": float(loss.detach()), "num-examples": len(y)}
        content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord(metrics)})
        return Message(content=content, reply_to=msg)

    @app.evaluate()
    def evaluate(msg: Message, context: Context) -> Message:
        liar = context.node_id == NODES[0]
        metrics = MetricRecord({"eval_acc": 1e9 if liar else 0.5, "num-examples": 10**9 if liar else 10})
        return Message(content=RecordDict({"metrics": metrics}), reply_to=msg)

    return app


def test_an_unmodified_client_of_flower_works_and_the_mean_is_fedavg() -> None:
    from flwr.serverapp.strategy import FedAvg

    config = ConfigRecord({"lr": 0.5})
    ours = trained(Strategy("mean", sends="model", rho=0.0), quick_start(), train_config=config)
    grid = LocalGrid(NODES, quick_start())
    fedavg = FedAvg(fraction_evaluate=0.0).start(grid, ArrayRecord(net().state_dict()), 3, train_config=config)
    for name, tensor in fedavg.arrays.to_torch_state_dict().items():
        torch.testing.assert_close(ours.state_dict()[name], tensor, rtol=1e-5, atol=1e-6)
    assert accuracy(ours) > 0.5


def test_federated_evaluation_is_a_median_that_a_liar_does_not_move() -> None:
    strategy = Strategy("median", sends="model", evaluate_share=1.0)
    trained(strategy, quick_start(), rounds=1, train_config=ConfigRecord({"lr": 0.1}))
    assert dict(strategy.session.result.evaluate_metrics_clientapp[1]) == {"eval_acc": 0.5}


# --- clipping --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sends", ["update", "model"])
def test_the_clip_mod_shortens_what_is_too_long_and_leaves_the_rest(sends: Any) -> None:
    lengths = []

    def watch(message: Message, context: Context, call_next: Callable[[Message, Context], Message]) -> Message:
        reply = call_next(message, context)
        sent, before = (next(iter(m.content.array_records.values())) for m in (reply, message))
        parts = [sent[k].numpy() - (before[k].numpy() if sends == "model" else 0) for k in sent]
        lengths.append(math.sqrt(sum(float((part.astype(np.float64) ** 2).sum()) for part in parts)))
        return reply

    for norm in (1e-3, 1e3):
        trained(Strategy("mean", sends=sends, lr=0.5), client(net, own, mods=[watch, clip(norm)]), rounds=1)
    assert lengths[:5] == pytest.approx([1e-3] * 5, rel=1e-4)
    assert min(lengths[5:]) > 0.01
    with pytest.raises(ConfigError, match="choose a norm above 0"):
        clip(0.0)


# --- attackers -------------------------------------------------------------------------------------------------------

RULE = defenses.clipping(clip_norm=1.0)
OTHER_DATA = {"badnets", "dba", "neurotoxin", "replacement", "replacement_text"}  # triggers on images, or text


def attacked(attack: str, node: int = 4, *, announced: bool = True, **options: Any) -> Strategy:
    """A federation in which one node was started with red-team=true."""
    mod = red_team(attack, net, lambda context: (*own(context), X[1500:1520], Y[1500:1520]), **options)
    grid = LocalGrid(NODES, client(net, own, mods=[mod]))
    grid.contexts[node].node_config["red-team"] = "true"
    strategy = Strategy("mean", lr=0.5, seed=1, red_team=announced)
    strategy.start(grid, ArrayRecord(net().state_dict()), 2, timeout=5)
    return strategy


def test_a_red_team_attacks_only_where_it_was_asked_for_twice() -> None:
    calm = attacked("ipm", announced=False).session.server.theta
    plain = Strategy("mean", lr=0.5, seed=1)
    trained(plain, client(net, own), rounds=2)
    assert calm.equal(plain.session.server.theta)
    hurt = attacked("ipm").session.server.theta
    assert not hurt.equal(calm)


@pytest.mark.parametrize("attack", sorted(ATTACKS))
def test_every_attack_can_be_rehearsed(attack: str) -> None:
    takes = "auxiliary" in inspect.signature(attack_info(ATTACKS[attack]).goal).parameters
    few: dict[str, Any] = {"auxiliary": 10} if takes else {}
    strategy = attacked(attack, defense=RULE, clip_norm=1.0, **few)
    assert strategy.session.server.round == 2
    if attack in OTHER_DATA:
        assert all("ConfigError" in one.detail for one in strategy.session.refused)
    else:
        assert strategy.session.refused == []


def test_an_attack_that_tries_the_rule_out_needs_it() -> None:
    with pytest.raises(ConfigError, match="unknown attack 'pdg'"):
        red_team("pdg", net, own)


# --- folders ---------------------------------------------------------------------------------------------------------


def test_the_folder_of_a_deployment_is_reported_as_a_simulations(tmp_path: Path) -> None:
    def evaluate(round: int, arrays: ArrayRecord) -> MetricRecord:  # noqa: ARG001
        return MetricRecord({"accuracy": 0.25, "loss": 2.0})

    strategy = Strategy(defenses.sparsefed(k=300, clip_norm=0.1), lr=1.0, folder=tmp_path / "live")
    trained(strategy, client(net, own), rounds=2, evaluate_fn=evaluate)
    page = report(tmp_path / "live").to_html()
    assert "25" in page
    assert "sparsefed" in page
    rows = load_run(tmp_path / "live").rows
    assert [row["test_accuracy"] for row in rows] == [0.25, 0.25]
    assert all(row["clipped"] == 1.0 for row in rows)
    # More rounds go on from there; another rule is refused.
    trained(Strategy(defenses.sparsefed(k=300, clip_norm=0.1), lr=1.0, folder=tmp_path / "live"), client(net, own))
    assert len(load_run(tmp_path / "live").rows) == 3
    with pytest.raises(RunError, match=r"holds a run of another config \(it differs in defense"):
        trained(Strategy("median", lr=1.0, folder=tmp_path / "live"), client(net, own))


class Listener:
    """A tracker that keeps what it is told."""

    def __init__(self) -> None:
        self.heard: list[Any] = []

    def start(self, config: Any) -> None:
        self.heard.append(config["defense"]["name"])

    def log(self, round: int, metrics: Any) -> None:
        self.heard.append((round, metrics["refused"]))

    def finish(self, status: str) -> None:
        self.heard.append(status)


def test_trackers_hear_of_every_round() -> None:
    listener = Listener()
    trained(Strategy("median", trackers=[listener]), client(net, own), rounds=2)
    assert listener.heard == ["median", (1, 0), (2, 0), "finished"]


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"rule": "fltrust"}, "give root"),
        ({"rule": "krum", "f": 1, "weight_cap": 10.0}, "weight_cap cannot be given"),
        ({"rule": "mean", "sends": "gradient"}, "valid choices: model, update"),
        ({"rule": "mean", "quorum": 0}, "quorum is 0, but must be a whole number from 1 on"),
        ({"rule": "mean", "cohort": 3, "quorum": 4}, "a round has a cohort of 3"),
        ({"rule": "mean", "deadline": -1.0}, "number of seconds above 0"),
        ({"rule": "mean", "sampling": "often"}, "valid choices: epoch, uniform"),
        ({"rule": "sparsefed", "kk": 3}, "kk"),
    ],
)
def test_a_strategy_that_cannot_work_says_so_in_a_sentence(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(sentence)):
        Strategy(**settings)
