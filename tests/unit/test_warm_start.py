"""Warm start: initial weights from a safetensors file or a state dict, checked name by name."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file, save_model
from torch import Tensor, nn

from sparsefed import Simulation
from sparsefed import config as configs
from sparsefed.core.errors import ConfigError
from sparsefed.models import mlp, transformer
from sparsefed.models.weights import StateDict, read_weights, with_weights
from sparsefed.sweeps.cells import cell

SMALL: dict[str, Any] = {
    "rounds": 2,
    "data": {"name": "digits", "devices": 30, "partition": "iid"},
    "train": {"cohort": 5, "lr": 0.1, "schedule": "constant"},
}


def model() -> nn.Module:
    return mlp((1, 8, 8), 10, hidden=(16,))


def described(path: Path | str, **more: Any) -> dict[str, Any]:
    return {**SMALL, "model": {"name": "mlp", "hidden": [16], "weights": str(path), **more}}


@pytest.fixture
def pretrained() -> nn.Module:
    return model()


@pytest.fixture
def path(tmp_path: Path, pretrained: nn.Module) -> Path:
    save_file(pretrained.state_dict(), tmp_path / "weights.safetensors")
    return tmp_path / "weights.safetensors"


def flat(module: nn.Module) -> Tensor:
    return torch.cat([p.detach().reshape(-1) for p in module.parameters()])


def test_a_run_starts_from_the_file_and_leaves_the_cold_start_as_it_was(path: Path, pretrained: nn.Module) -> None:
    warm = Simulation.from_config(described(path))
    assert torch.equal(warm.theta, flat(pretrained))
    cold = Simulation.from_config({**SMALL, "model": {"name": "mlp", "hidden": [16]}})
    assert not torch.equal(cold.theta, warm.theta)
    assert not {"weights", "weights_sha256"} & configs.dump(cold.config)["model"].keys()


def test_a_simulation_takes_a_path_a_state_dict_or_the_module_itself(path: Path, pretrained: nn.Module) -> None:
    options: dict[str, Any] = {"devices": 30, "cohort": 5, "rounds": 2, "schedule": 0.1}
    own = model()
    before = flat(own)
    given: list[tuple[nn.Module, Any]] = [
        (own, path),
        (own, str(path)),
        (own, pretrained.state_dict()),
        (pretrained, None),
    ]
    ends = [Simulation(module, "digits", weights=weights, **options).run().theta for module, weights in given]
    assert all(torch.equal(ends[0], end) for end in ends)
    assert torch.equal(flat(own), before)


def test_frozen_weights_are_loaded_too_and_stay(path: Path, pretrained: nn.Module) -> None:
    own = model()
    own[1].requires_grad_(False)  # type: ignore[index]
    done = Simulation(own, "digits", weights=path, devices=30, cohort=5, rounds=2, schedule=0.5).run()
    assert len(done.theta) == 17 * 10
    assert torch.equal(done.state_dict()["1.weight"], pretrained.state_dict()["1.weight"])


def test_the_config_is_bound_to_the_content_of_the_file(path: Path, tmp_path: Path) -> None:
    first = configs.parse(described(path))
    dumped = configs.dump(first)
    assert len(dumped["model"]["weights_sha256"]) == 64 and configs.parse(dumped) == first
    Simulation.from_config(first).run().save(tmp_path / "run")
    assert Simulation.from_run(tmp_path / "run").round == 2
    save_file(model().state_dict(), path)
    assert cell(configs.parse(described(path))).key != cell(first).key
    for again in (lambda: configs.parse(dumped), lambda: Simulation.from_run(tmp_path / "run")):
        with pytest.raises(ConfigError, match="no longer the file"):
            again()


def test_other_precisions_and_tied_weights_fit(tmp_path: Path) -> None:
    half = {name: tensor.bfloat16() for name, tensor in model().state_dict().items()}
    assert flat(with_weights(model(), StateDict(half))).dtype == torch.float32
    tied, other = transformer((4,), 20, width=8, heads=2), transformer((4,), 20, width=8, heads=2)
    save_model(tied, str(tmp_path / "tied.safetensors"))  # writes a tied weight once
    warm = with_weights(other, read_weights(tmp_path / "tied.safetensors"))
    assert torch.equal(flat(warm), flat(tied)) and warm.scores.weight is warm.embedding.weight  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"1.weight": None}, ["lack", "'1.weight'"]),
        ({"head.weight": torch.ones(2)}, ["'head.weight'", "has not"]),
        ({"3.bias": torch.ones(11)}, ["'3.bias'", "[11]", "[10]"]),
        ({"3.bias": torch.ones(10, dtype=torch.int64)}, ["'3.bias'", "int64"]),
        ({"3.bias": torch.full((10,), torch.nan)}, ["'3.bias'", "not finite"]),
    ],
)
def test_weights_that_do_not_fit_are_refused_by_name(change: dict[str, Tensor | None], words: list[str]) -> None:
    tensors = {**model().state_dict(), **change}
    with pytest.raises(ConfigError) as error:
        with_weights(model(), StateDict({name: value for name, value in tensors.items() if value is not None}))
    assert all(word in str(error.value) for word in words) and "\n" not in str(error.value)


def test_only_safetensors_are_read(tmp_path: Path) -> None:
    pickled = io.BytesIO()
    torch.save(model().state_dict(), pickled)
    for name, content, words in (("w.pt", pickled.getvalue(), "not a safetensors file"), ("w", b"", "not a safeten")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ConfigError, match=words) as error:
            Simulation.from_config(described(tmp_path / name))
        assert "save_file" in str(error.value)
    with pytest.raises(ConfigError, match=r"no file.*nowhere"):
        configs.parse(described(tmp_path / "nowhere.safetensors"))
    with pytest.raises(ConfigError, match=r"model\.weights"):
        configs.parse({**SMALL, "model": {"name": "mlp", "weights": 7}})
