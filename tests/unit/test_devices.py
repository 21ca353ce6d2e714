"""Devices: every rule, attack and engine on a pretended accelerator, where any operation across devices is refused."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from sparsefed import Server, Simulation, aggregate, trust
from sparsefed import config as configs
from sparsefed.attacks import ATTACKS, NEEDS
from sparsefed.core import device as devices
from sparsefed.core.engine import LocalPlan, LocalStep
from sparsefed.core.errors import ConfigError
from sparsefed.core.round import RoundReport
from sparsefed.core.task import make_task
from sparsefed.core.types import Batch
from sparsefed.defenses import DEFENSES, PRE
from sparsefed.engines import ENGINES
from sparsefed.models import MODELS, TEXT_MODELS
from tests.rules.test_defenses import settings_of
from tests.support.cohorts import cohort_of, seeded
from tests.support.pretended import DEVICE, MixedDeviceError, Pretended, PretendedDevice

SMALL: dict[str, Any] = {
    "rounds": 2,
    "evaluate_every": 2,
    "data": {"name": "digits", "partition": "iid", "devices": 30},
    "model": {"name": "softmax"},
    "train": {"cohort": 8, "lr": 0.2, "schedule": "constant"},
}
PGD: dict[str, Any] = {"threat": {"per_round": 2}, "attack": {"name": "pgd", "auxiliary": 20}}
KNOWING: dict[str, Any] = {"per_round": 2, "knowledge": list(NEEDS)}


@pytest.fixture
def mode(monkeypatch: pytest.MonkeyPatch) -> Iterator[PretendedDevice]:
    """The pretended device, which `train.device = "cuda"` then means."""
    building = sys.modules["sparsefed.config.build"]  # the package has a function of that name
    monkeypatch.setattr(building, "computed_on", lambda name: DEVICE if name == "cuda" else torch.device(name))
    monkeypatch.setattr(building, "_require_buildable", lambda *_: None)  # builds a shell on the real `meta`
    monkeypatch.setattr(torch, "inference_mode", torch.no_grad)  # a `Pretended` tensor cannot be an inference tensor
    yield PretendedDevice()


def on(table: dict[str, Any], device: str) -> dict[str, Any]:
    return {**table, "train": {**table["train"], "device": device}}


def last_of(table: dict[str, Any]) -> RoundReport:
    built = configs.build(configs.parse(table))
    *_, last = built.reports(built.begin())
    return last


def last_pretended(mode: PretendedDevice, table: dict[str, Any]) -> RoundReport:
    with mode:
        built = configs.build(configs.parse(on(table, "cuda")))
        state = built.begin()
        with mode.strictly():
            *_, last = built.reports(state)
    return last


def compare(mode: PretendedDevice, table: dict[str, Any], tolerance: float = 1e-4) -> None:
    """Two rounds on the pretended device stay on it, and end where they end on the CPU."""
    cpu, there = last_of(table), last_pretended(mode, table)
    assert isinstance(there.state.theta, Pretended)
    assert all(isinstance(tensor, Pretended) for tensor in there.state.defense.values())
    torch.testing.assert_close(there.state.theta.elem, cpu.state.theta, rtol=tolerance, atol=tolerance)
    assert there.metrics.keys() == cpu.metrics.keys()
    assert there.metrics["test_loss"] == pytest.approx(cpu.metrics["test_loss"], rel=1e-3)


def test_the_pretended_device_notices_what_it_should(mode: PretendedDevice) -> None:
    with mode:
        there, here = torch.ones(3, device=DEVICE), torch.ones(3)
        assert (there + 1).device == DEVICE and bool((there.cpu() == here).all())
        for mixed in (torch.add, torch.dot, lambda *both: torch.stack(both)):
            with pytest.raises(MixedDeviceError):
                mixed(there, here)
        assert there[torch.tensor([0, 1])].device == DEVICE  # indices may be on the CPU, as for CUDA
        with mode.strictly(), pytest.raises(MixedDeviceError, match="made"):
            torch.zeros(3)
        with pytest.raises((TypeError, RuntimeError)):
            there.numpy()


def digits_settings(name: str) -> dict[str, Any]:
    larger = {"k": 50, "columns": 200, "clip_norm": 1.0} if name == "fetchsgd" else {}
    return {"name": name, **settings_of(name), **larger}


@pytest.mark.parametrize("name", DEFENSES)
def test_every_rule_stays_on_the_device(mode: PretendedDevice, name: str) -> None:
    compare(mode, {**SMALL, **PGD, "defense": digits_settings(name)})


@pytest.mark.parametrize("name", PRE)
def test_every_pre_aggregation_stays_on_the_device(mode: PretendedDevice, name: str) -> None:
    own = {"f": 1} if name in ("nnm", "arc") else {}
    compare(mode, {**SMALL, **PGD, "defense": {"name": "median", "pre": [{"name": name, **own}]}})


@pytest.mark.parametrize("name", [name for name in ATTACKS if name != "replacement_text"])
def test_every_attack_stays_on_the_device(mode: PretendedDevice, name: str) -> None:
    own = {"auxiliary": 20} if "pgd" in name or name in ("boosted", "adaptive_topk", "adaptive_push") else {}
    defense = {"name": "sparsefed", "k": 100, "clip_norm": 1.0}
    compare(mode, {**SMALL, "threat": KNOWING, "attack": {"name": name, **own}, "defense": defense})


LOCAL = {"mode": "fedavg", "local_epochs": 2, "local_batch": 10}


@pytest.mark.parametrize("local", [{}, LOCAL], ids=["one step", "several"])
@pytest.mark.parametrize("engine", ENGINES)
def test_every_engine_stays_on_the_device(mode: PretendedDevice, engine: str, local: dict[str, Any]) -> None:
    train = {**SMALL["train"], "engine": engine, "memory_mb": 1, **local}
    compare(mode, {**SMALL, **PGD, "train": train, "model": {"name": "cnn", "width": 2}})


@pytest.mark.parametrize("model", sorted(set(MODELS) - TEXT_MODELS - {"resnet101_ln", "resnet9"}))
def test_models_stay_on_the_device(mode: PretendedDevice, model: str) -> None:
    compare(mode, {**SMALL, "model": {"name": model}})


def test_blocks_are_fetched_in_order_while_others_compute() -> None:
    blocks = [np.array([i, i + 1]) for i in range(0, 8, 2)]
    asked: list[int] = []

    def gather(ids: Any) -> Batch:
        asked.append(int(ids[0]))
        return Batch(torch.from_numpy(ids), torch.from_numpy(ids), np.ones(2, np.int64))

    with PretendedDevice():
        stream = devices.batches_on(gather, blocks, DEVICE)
        for number, (ids, batch) in enumerate(stream):
            assert batch.x.device == DEVICE and batch.x.tolist() == ids.tolist() == blocks[number].tolist()
    assert asked == [0, 2, 4, 6]
    plain = list(devices.batches_on(gather, blocks, torch.device("cpu")))
    assert [batch.y.tolist() for _, batch in plain] == [ids.tolist() for ids in blocks]


# --- text, random layers, and everything else that computes -----------------------------------------------------------


class Reader(nn.Module):
    """A module of tokens and dropout; with a parameter of its own, the fused engine does not know it."""

    def __init__(self, own: bool) -> None:
        super().__init__()
        self.embedding, self.dropout, self.scores = nn.Embedding(17, 8), nn.Dropout(0.0), nn.Linear(8, 10)
        self.scale = nn.Parameter(torch.ones(8), requires_grad=own)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.scores(self.dropout(self.embedding(tokens) * self.scale).mean(1))  # type: ignore[no-any-return]


@pytest.mark.parametrize("own", [False, True])
def test_tokens_and_random_layers_stay_on_the_device(mode: PretendedDevice, own: bool) -> None:
    draw = np.random.default_rng(0)
    x, y = draw.integers(17, size=(300, 6)), draw.integers(10, size=300)
    module, ends = seeded(lambda: Reader(own)), []
    for device in ("cpu", "cuda"):
        with mode:
            options: dict[str, Any] = {"devices": 20, "cohort": 6, "rounds": 2, "schedule": 0.5}
            simulation = Simulation(module, (x, y), train={"device": device}, **options)
            ends.append(simulation.run().theta)
    assert isinstance(ends[1], Pretended)
    torch.testing.assert_close(ends[1].elem, ends[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", DEFENSES)
def test_a_server_and_aggregate_work_where_the_updates_are(mode: PretendedDevice, name: str) -> None:
    draw = torch.Generator().manual_seed(3)
    rows, theta, root = (torch.randn(shape, generator=draw) for shape in ((9, 40), (40,), (40,)))
    facts: dict[str, Any] = {"theta": theta, "root": root, "layers": (30, 10)}
    here: Any = aggregate(name, rows, **facts, **settings_of(name))
    with mode:
        there = aggregate(name, rows.to(DEVICE), **facts, **settings_of(name))
        server = Server(name, like=theta.to(DEVICE), layers=(30, 10), **settings_of(name))
        step = server.step(rows, senders=range(9), root=root.to(DEVICE))
    assert isinstance(there, Pretended) and isinstance(step.delta, Pretended)
    torch.testing.assert_close(there.elem, here, rtol=1e-4, atol=1e-5)


# --- names, manifests, checkpoints ------------------------------------------------------------------------------------


def test_the_default_is_the_cpu_and_no_key_of_a_config_changes() -> None:
    assert "device" not in configs.dump(configs.parse(SMALL))["train"]
    assert "device" not in configs.dump(configs.parse(on(SMALL, "cpu")))["train"]
    for name in ("auto", "cuda", "cuda:1", "mps"):
        assert configs.dump(configs.parse(on(SMALL, name)))["train"]["device"] == name


@pytest.mark.parametrize("name", ["gpu", "meta", "cuda:", "cuda:x", "CPU", ""])
def test_an_unknown_device_is_refused_with_the_choices(name: str) -> None:
    with pytest.raises(ConfigError, match=r'train\.device is .*"auto".*"cuda:1"'):
        configs.parse(on(SMALL, name))


def test_a_device_that_is_not_here_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match=r"no CUDA device.*auto"):
        configs.build(configs.parse(on(SMALL, "cuda")))
    with pytest.raises(ConfigError, match="float64"):
        configs.build(configs.parse(on(SMALL, "mps")))
    assert devices.computed_on("auto") == torch.device("cpu")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert devices.computed_on("auto") == torch.device("cuda:0") and devices.computed_on("cuda:1").index == 1
    with pytest.raises(ConfigError, match=r"cuda:0 to cuda:1"):
        devices.computed_on("cuda:2")


def test_a_device_is_no_code() -> None:
    assert trust.code_in({"train": {"device": "cuda:1"}, "model": {"name": "a:b"}}) == {"model.name": "a:b"}


def test_checkpoints_move_between_devices_and_the_manifest_names_them(mode: PretendedDevice, tmp_path: Path) -> None:
    table = {**SMALL, **PGD, "rounds": 4, "defense": {"name": "sparsefed", "k": 100, "clip_norm": 1.0}}
    whole = Simulation.from_config(table).run()
    with mode:
        first = Simulation.from_config(on(table, "cuda"))
        for _ in islice(first, 2):
            pass
        first.save(tmp_path / "there")
    continued = Simulation.from_config(table).restore(tmp_path / "there")
    assert type(continued.theta) is Tensor and continued.round == 2
    torch.testing.assert_close(continued.run().theta, whole.theta, rtol=1e-4, atol=1e-5)
    here = Simulation.from_config(table)
    for _ in islice(here, 2):
        pass
    here.save(tmp_path / "here")
    with mode:
        back = Simulation.from_config(on(table, "cuda")).restore(tmp_path / "here").run()
    assert isinstance(back.theta, Pretended)
    torch.testing.assert_close(back.theta.elem, whole.theta, rtol=1e-4, atol=1e-5)
    manifests = [json.loads((tmp_path / where / "manifest.json").read_text()) for where in ("there", "here")]
    assert [manifest["task"]["device"] for manifest in manifests] == [str(DEVICE), "cpu"]


@pytest.mark.parametrize("engine", ["fused", "by_client"])
@pytest.mark.parametrize("model", sorted(TEXT_MODELS))
def test_text_models_stay_on_the_device(mode: PretendedDevice, model: str, engine: str) -> None:
    draw = torch.Generator().manual_seed(5)
    x, y = (torch.randint(30, (9, 5), generator=draw) for _ in range(2))
    module: Any = seeded(lambda: MODELS[model]((5,), 30))
    module.scores.weight = nn.Parameter(module.scores.weight.detach().clone())  # only CUDA keeps tied weights tied
    cohort, step = cohort_of(x, y, [2, 3, 4]), LocalStep(0.1, 0.01, 1, LocalPlan(2 if engine == "by_client" else 1))
    ends = []
    with mode:
        for device in (torch.device("cpu"), DEVICE):
            task = make_task(module, device=device)
            blocks = list(ENGINES[engine](task)(task.initial(), cohort, step))
            ends.append(torch.cat([block.rows() for block in blocks]))
    assert isinstance(ends[1], Pretended)
    torch.testing.assert_close(ends[1].elem, ends[0], rtol=1e-3, atol=1e-5)
