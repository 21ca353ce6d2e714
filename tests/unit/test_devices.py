"""Devices: every rule, attack and engine on a pretended accelerator, where any operation across devices is refused."""

from __future__ import annotations

import copy
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
from sparsefed.attacks import ATTACKS, NEEDS, attack_info
from sparsefed.core import device as devices
from sparsefed.core import inputs
from sparsefed.core.errors import ConfigError
from sparsefed.core.round import RoundReport
from sparsefed.core.signatures import parameters
from sparsefed.core.types import Batch
from sparsefed.data.own import from_arrays
from sparsefed.defenses import DEFENSES, PRE, rule_info
from sparsefed.engines import ENGINES, transfer
from sparsefed.models import MODELS, TEXT_MODELS
from sparsefed.sweeps.cells import cell
from tests.rules.test_defenses import settings_of
from tests.support.cohorts import seeded
from tests.support.pretended import DEVICE, MixedDeviceError, Pretended, PretendedDevice
from tests.unit import test_text as text

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
    monkeypatch.setattr(building, "computed_on", lambda name: DEVICE if name == "cuda" else torch.device("cpu"))
    monkeypatch.setattr(building, "_require_buildable", lambda *_: None)  # builds a shell on the real `meta`
    monkeypatch.setattr(torch, "inference_mode", torch.no_grad)  # a `Pretended` tensor cannot be an inference tensor
    kept_tied = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(True)  # tied weights stay tied, as where a device is real
    yield PretendedDevice()
    torch.__future__.set_swap_module_params_on_conversion(kept_tied)


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


TEXT: dict[str, Any] = {**text.RUN, "rounds": 2, "evaluate_every": 2, "train": {"cohort": 4, "lr": 1.0}}
TRIGGER = {"trigger": "w0 w1", "wanted": "w6", "epochs": 2, "points": 20}


@pytest.mark.parametrize("name", ATTACKS)
def test_every_attack_stays_on_the_device(mode: PretendedDevice, name: str) -> None:
    attacker = attack_info(ATTACKS[name])
    known = {parameter.name for part in (attacker.goal, attacker.method) for parameter in parameters(part, 1)}
    if "trigger" in known:
        compare(mode, {**TEXT, "threat": KNOWING, "attack": {"name": name, **TRIGGER}})
        return
    own = {"auxiliary": 20} if "auxiliary" in known else {}
    defense = {"name": "sparsefed", "k": 100, "clip_norm": 1.0}
    compare(mode, {**SMALL, "threat": KNOWING, "attack": {"name": name, **own}, "defense": defense})


LOCAL = {"mode": "fedavg", "local_epochs": 2, "local_batch": 10}


@pytest.mark.parametrize("local", [{}, LOCAL], ids=["one step", "several"])
@pytest.mark.parametrize("engine", ENGINES)
def test_every_engine_stays_on_the_device(mode: PretendedDevice, engine: str, local: dict[str, Any]) -> None:
    train = {**SMALL["train"], "engine": engine, "memory_mb": 1, **local}
    compare(mode, {**SMALL, **PGD, "train": train, "model": {"name": "cnn", "width": 2}})


NARROW = {"resnet9": {"width": 2}, "resnet101_ln": {"width": 2}, "lstm": {"width": 8, "hidden": 8}}
FEW: dict[str, Any] = {**SMALL, "data": {**SMALL["data"], "devices": 400}, "train": {**SMALL["train"], "cohort": 2}}
DEEP = pytest.param("resnet101_ln", marks=pytest.mark.slow)


@pytest.mark.parametrize("model", [*(model for model in MODELS if model not in DEEP.values), DEEP])
def test_models_stay_on_the_device(mode: PretendedDevice, model: str) -> None:
    compare(mode, {**(TEXT if model in TEXT_MODELS else FEW), "model": {"name": model, **NARROW.get(model, {})}})


def test_blocks_are_fetched_in_order_while_others_compute() -> None:
    blocks = [np.array([i, i + 1]) for i in range(0, 8, 2)]
    asked: list[int] = []

    def gather(ids: Any) -> Batch:
        asked.append(int(ids[0]))
        return Batch(torch.from_numpy(ids), torch.from_numpy(ids), np.ones(2, np.int64))

    with PretendedDevice():
        stream = transfer.batches_on(gather, blocks, DEVICE)
        for number, (ids, batch) in enumerate(stream):
            assert batch.x.device == DEVICE and batch.x.tolist() == ids.tolist() == blocks[number].tolist()
    assert asked == [0, 2, 4, 6]
    plain = list(transfer.batches_on(gather, blocks, torch.device("cpu")))
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
        weights = torch.arange(1.0, 10.0) if rule_info(DEFENSES[name]).weights else None
        step = server.step(rows, senders=range(9), root=root, weights=weights)
    assert isinstance(there, Pretended) and isinstance(step.delta, Pretended)
    torch.testing.assert_close(there.elem, here, rtol=1e-4, atol=1e-5)


class Two(nn.Module):
    """A module of two inputs; the recurrent layer is one that the fused engine does not know."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 4), nn.LSTM(2, 4, batch_first=True)

    def forward(self, table: Tensor, series: Tensor) -> Tensor:
        return self.first(table) + self.second(series)[0][:, -1]  # type: ignore[no-any-return]


def measured() -> tuple[dict[str, Any], Any]:
    """Features in natural units, float64, for a regression of four values."""
    draw = np.random.default_rng(4)
    table, series = draw.normal(size=(120, 3)) * (1e-3, 1, 1e3), draw.normal(size=(120, 2, 2))
    return {"table": table, "series": series}, draw.normal(size=(120, 4))


@pytest.mark.parametrize("narrow", [False, True], ids=["float64", "without float64"])
@pytest.mark.parametrize(
    "local", [{}, {"local_steps": 2, "local_batch": 4, "mode": "fedavg", "local_optimizer": "adam"}]
)
def test_several_inputs_stay_on_the_device(
    mode: PretendedDevice, monkeypatch: pytest.MonkeyPatch, narrow: bool, local: dict[str, Any]
) -> None:
    monkeypatch.setattr(inputs, "WITHOUT_FLOAT64", frozenset({DEVICE.type}) if narrow else frozenset())
    x, y = measured()
    options: dict[str, Any] = {"devices": 10, "cohort": 3, "rounds": 2, "schedule": 0.05, "defense": "median"}
    train = {"worker_momentum": 0.5, **local}
    ends = []
    for device in ("cpu", "cuda"):
        mode.narrow = narrow
        with mode:
            data = from_arrays(x, y, normalise="train", target="values")
            simulation = Simulation(seeded(Two), data, train={"device": device, **train}, **options)
            ends.append(simulation.run().theta)
    assert isinstance(ends[1], Pretended) == (not narrow)
    torch.testing.assert_close(devices.state_on({"": ends[1]}, devices.CPU)[""], ends[0], rtol=1e-4, atol=1e-5)


def test_without_float64_rules_and_attacks_are_on_the_cpu(
    mode: PretendedDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inputs, "WITHOUT_FLOAT64", frozenset({DEVICE.type}))
    table = {**SMALL, **PGD, "defense": {"name": "krum", "f": 1}, "model": {"name": "cnn", "width": 2}}
    mode.narrow = True
    with mode:
        there = last_of(on(table, "cuda"))
        with pytest.raises(MixedDeviceError, match="float64"):
            torch.ones(2, device=DEVICE).double()
    assert type(there.state.theta) is Tensor
    torch.testing.assert_close(there.state.theta, last_of(table).state.theta, rtol=1e-4, atol=1e-4)


def test_a_model_and_data_on_a_device_are_taken_as_they_are(mode: PretendedDevice) -> None:
    draw = torch.Generator().manual_seed(1)
    x, y = torch.randn(200, 6, generator=draw), torch.randint(3, (200,), generator=draw)
    module, ends = seeded(lambda: nn.Linear(6, 3)), []
    for device, place in (("cpu", devices.CPU), ("cuda", DEVICE)):
        with mode:
            given = (x.to(place), y.to(place))
            simulation = Simulation(
                copy.deepcopy(module).to(place),
                given,
                devices=10,
                cohort=5,
                rounds=2,
                schedule=0.5,
                train={"device": device},
            )
            ends.append(simulation.run().theta)
            assert next(simulation.model.parameters()).device == place
    assert isinstance(ends[1], Pretended)
    torch.testing.assert_close(ends[1].elem, ends[0], rtol=1e-4, atol=1e-5)


# --- names, manifests, checkpoints ------------------------------------------------------------------------------------


def test_the_default_is_the_cpu_and_no_key_of_a_config_changes() -> None:
    plain = configs.parse(SMALL)
    assert configs.parse(on(SMALL, "cpu")) == plain and "device" not in configs.dump(plain)["train"]
    for name in ("auto", "cuda", "cuda:1", "mps"):
        named = configs.parse(on(SMALL, name))
        assert configs.dump(named)["train"]["device"] == name
        assert cell(named).key != cell(plain).key
    assert cell(plain).key == "aef18f3b9e83dfff"  # of a version without devices


@pytest.mark.parametrize("name", ["gpu", "meta", "cuda:", "cuda:x", "CPU", ""])
def test_an_unknown_device_is_refused_with_the_choices(name: str) -> None:
    with pytest.raises(ConfigError, match=r'train\.device is .*"auto".*"cuda:1"'):
        configs.parse(on(SMALL, name))


def test_a_device_that_is_not_here_is_one_sentence_with_those_that_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    for name in ("cuda", "cuda:3", "mps"):
        with pytest.raises(ConfigError, match=rf"train\.device is '{name}', but torch can use only cpu on.*auto"):
            configs.build(configs.parse(on(SMALL, name)))
    assert devices.computed_on("auto") == devices.computed_on(None) == torch.device("cpu")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: f"model {index}")
    assert devices.computed_on("auto") == devices.computed_on("cuda") == torch.device("cuda:0")
    assert devices.computed_on(None) == devices.computed_on("cpu") == torch.device("cpu")
    assert devices.describe(devices.computed_on("cuda:1")) == "cuda:1 (model 1)"
    with pytest.raises(ConfigError, match=r"only cpu, cuda:0, cuda:1 on"):
        devices.computed_on("cuda:2")
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert devices.computed_on("mps") == torch.device("mps") and devices.home(torch.device("mps")).type == "cpu"


def test_on_cuda_convolutions_keep_float32_and_their_bits_inside_a_round_alone() -> None:
    flags = torch.backends.cudnn
    before = (flags.enabled, flags.benchmark, flags.deterministic, flags.allow_tf32)
    with devices.exactly(torch.device("cuda", 0)):
        assert (flags.enabled, flags.benchmark, flags.deterministic, flags.allow_tf32) == (True, False, True, False)
    assert (flags.enabled, flags.benchmark, flags.deterministic, flags.allow_tf32) == before
    with devices.exactly(torch.device("cpu")):
        assert (flags.enabled, flags.benchmark, flags.deterministic, flags.allow_tf32) == before


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
