"""Features of any dtype and shape: natural units, normalisation, memory-mapped files, several inputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sparsefed import Simulation, attacks, data
from sparsefed.core.errors import ConfigError, DataError
from sparsefed.core.inputs import SeveralInputs
from sparsefed.data.own import from_arrays

draw = np.random.default_rng(3)
N = 200
UNITS = np.array([1e6, 1.0, 1e-6])
X = draw.standard_normal((N, 3)) * UNITS + np.array([3e6, 0.0, 5e-6])  # float64, in natural units
Y = ((X / UNITS)[:, [0, 2]].sum(1) > 8.0).astype(np.int64)
LATER = {"weight_decay": 0.0}


def net(width: int = 3) -> nn.Module:
    with torch.random.fork_rng():
        torch.default_generator.manual_seed(5)
        return nn.Sequential(nn.Linear(width, 8), nn.Tanh(), nn.Linear(8, 2))


def linear() -> nn.Module:
    layer = nn.Linear(3, 2)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


def everyone(record: Any, model: nn.Module, lr: float, **more: Any) -> Simulation:
    """Fifty undefended rounds in which all devices, of equal size, take part: plain full-batch descent."""
    return Simulation(
        model,
        record,
        defense={"name": "undefended", "rho": 0.0},
        rounds=50,
        cohort=10,
        devices=10,
        schedule=lr,
        train=LATER,
        evaluate_every=50,
        **more,
    ).run()


def plain(model: nn.Module, x: Tensor, y: Tensor, lr: float) -> Tensor:
    optimiser = torch.optim.SGD(model.parameters(), lr)
    for _ in range(50):
        optimiser.zero_grad()
        F.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    return flat(model)


def flat(model: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])


@pytest.mark.parametrize("way", ["train", "given"])
def test_columns_of_any_unit_train_as_in_plain_pytorch(way: str) -> None:
    mean, std = X.mean(0), X.std(0)
    x = torch.from_numpy((X - mean) / std).float()
    truth = plain(net(), x, torch.from_numpy(Y), 0.5)
    normalise: Any = (mean, std) if way == "given" else way
    found = everyone(from_arrays(X, Y, test=(X, Y), normalise=normalise), net(), 0.5)
    assert float((found.theta - truth).abs().max()) < 1e-5
    assert float((truth - flat(net())).abs().max()) > 0.1 and found.evaluate()["test_accuracy"] > 0.9


def test_columns_in_natural_units_train_as_in_plain_pytorch() -> None:
    """Without normalisation the first column needs a rate of 1e-13; it moves by as much as in plain PyTorch."""
    truth = plain(linear(), torch.from_numpy(X).float(), torch.from_numpy(Y), 1e-13)
    found = everyone(from_arrays(X, Y, test=(X, Y), normalise="none"), linear(), 1e-13)
    moved = (truth - flat(linear())).abs()
    assert float((found.theta - truth).abs().max()) < 1e-5 * float(moved.max())
    assert float(moved.max()) * 3e6 > 0.1  # of the outputs


def test_scales_are_those_of_the_training_rows_alone() -> None:
    a = data.load(from_arrays(X, Y, normalise="train"))
    (scale,) = a.scales
    assert scale is not None and a.x_train.dtype == np.float64
    np.testing.assert_allclose(scale.mean, a.x_train.mean(0), rtol=1e-12)
    np.testing.assert_allclose(scale.std, a.x_train.std(0), rtol=1e-12)
    constant = data.load(from_arrays(np.full((10, 2), 7.0), [0, 1] * 5, normalise="train"))
    assert constant.scales == ((((7.0, 7.0), (1.0, 1.0))),)
    assert data.load(from_arrays(X, Y)).scales == () and data.load(from_arrays(X, Y)).x_train.dtype == np.float32


def test_images_can_be_left_as_they_are() -> None:
    images = draw.integers(0, 256, (20, 4, 4, 3), np.uint8)
    a = data.load(from_arrays(images, [0, 1] * 10, normalise="none"))
    assert a.is_image and a.mean == (0.0,) * 3 and a.std == (1.0,) * 3
    given = data.load(from_arrays(images, [0, 1] * 10, normalise=(0.5, 0.25)))
    assert given.mean == (0.5,) * 3 and given.std == (0.25,) * 3


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int8, np.uint16, np.int64, np.bool_])
@pytest.mark.parametrize("shape", [(20,), (20, 3), (20, 5, 3), (20, 2, 3, 7), (20, 2, 2, 2, 2)])
def test_any_dtype_and_shape_reaches_the_model(dtype: Any, shape: tuple[int, ...]) -> None:
    values = draw.integers(0, 2, shape)
    a = data.load(from_arrays(values.astype(dtype), [0, 1] * 10, images=False))
    assert a.x_train.shape[1:] == (shape[1:] or (1,)) and not a.is_image
    assert a.x_train.dtype == (np.float32 if np.dtype(dtype).kind == "f" else np.int64)

    class Mean(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last = nn.Linear(1, 2)

        def forward(self, x: Tensor) -> Tensor:
            assert x.shape[1:] == (shape[1:] or (1,))
            out: Tensor = self.last(x.float().flatten(1).mean(1, keepdim=True))
            return out

    done = Simulation(
        Mean(), from_arrays(values.astype(dtype), [0, 1] * 10, images=False), rounds=1, cohort=2, devices=2
    )
    assert np.isfinite(done.run().evaluate()["test_loss"])


def test_a_mapped_file_is_never_read_as_a_whole(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", X.astype(np.float32))
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    record = from_arrays(mapped[:150], Y[:150], test=(mapped[150:], Y[150:]), normalise="train")
    a = data.load(record)
    assert np.shares_memory(a.x_train, mapped) and np.shares_memory(a.x_test, mapped)
    again = everyone(record, net(), 0.5)
    copied = everyone(
        from_arrays(np.array(mapped[:150]), Y[:150], test=(mapped[150:], Y[150:]), normalise="train"), net(), 0.5
    )
    assert torch.equal(again.theta, copied.theta)
    with pytest.raises(DataError, match="needs a test set"):
        data.load(from_arrays(mapped, Y))
    np.save(tmp_path / "odd.npy", X.astype(">f8"))
    with pytest.raises(DataError, match="mapped file of >f8; write it as one of"):
        odd = np.load(tmp_path / "odd.npy", mmap_mode="r")
        data.load(from_arrays(odd, Y, test=(X, Y)))


# Several inputs.


class Two(nn.Module):
    """A module of two inputs, one of them tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.last = nn.Embedding(4, 3), nn.Linear(6, 2)

    def forward(self, numbers: Tensor, words: Tensor) -> Tensor:
        out: Tensor = self.last(torch.cat([numbers, self.embed(words).mean(1)], 1))
        return out


WORDS = draw.integers(0, 4, (N, 5))


@pytest.mark.parametrize("named", [False, True], ids=["tuple", "dict"])
@pytest.mark.parametrize("more", [{}, {"mode": "fedavg", "local_epochs": 2, "local_batch": 5}], ids=["one", "several"])
def test_several_inputs_give_the_same_in_every_engine(named: bool, more: dict[str, Any]) -> None:
    x: Any = {"numbers": X, "words": WORDS} if named else (X, WORDS)
    thetas = []
    for engine in ("fused", "loop"):
        torch.default_generator.manual_seed(0)
        record = from_arrays(x, Y, normalise="train", users=np.arange(N) % 20)
        run = Simulation(
            Two(), record, partition="by_user", cohort=10, rounds=4, schedule=0.1, train={"engine": engine, **more}
        )
        thetas.append(run.run().theta)
    torch.testing.assert_close(thetas[0], thetas[1], rtol=1e-4, atol=1e-6)


def test_several_inputs_can_be_attacked_and_defended() -> None:
    run = Simulation(
        Two(),
        from_arrays((X, WORDS), Y, normalise="train"),
        attack=attacks.pgd(attacks.goals.labels(auxiliary=10)),
        threat=0.4,
        defense={"name": "fltrust"},
        data_options={"root": 20},
        devices=20,
        cohort=10,
        rounds=3,
    ).run()
    assert run.history[-1]["attackers"] > 0 and 0 <= run.evaluate()["attack_accuracy"] <= 1


def test_several_inputs_are_cut_like_a_tensor() -> None:
    pair = SeveralInputs([torch.arange(6), torch.arange(12).view(6, 2)])
    parts = torch.split(pair, [2, 4])  # type: ignore[arg-type]
    assert [len(part) for part in parts] == [2, 4] and pair.shape == (6,) and pair[0].numel() == 3
    assert torch.equal(pair[torch.tensor([1, 3])].parts[1], torch.tensor([[2, 3], [6, 7]]))
    with pytest.raises(TypeError):
        torch.cat([pair, pair])  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("record", "words"),
    [
        (lambda: from_arrays((X, WORDS[:7]), Y), r"the inputs have \[7, 200\] examples"),
        (lambda: from_arrays({"a": X}, Y, test=({"b": X}, Y)), "training inputs are called a, test inputs b"),
        (lambda: from_arrays({"a": X, "b": X}, Y, test=((X, X), Y)), "training examples are"),
        (lambda: from_arrays({"a": X, "b": X * np.nan}, Y), "row 0, column 0 of input 'b' is nan"),
        (lambda: from_arrays(X, Y, normalise="test"), "unknown normalise 'test'"),
        (lambda: from_arrays(X, Y, normalise=3), "normalise is 3; give one of none, train"),
        (lambda: from_arrays(X, Y, normalise=(0.0, 0.0)), "the std given .* all above 0"),
        (lambda: from_arrays(X, Y, normalise=([0.0, 1.0], 1.0)), r"the mean given .*shape \[2\].*or 3 of them"),
        (lambda: from_arrays({"a": X, "b": X}, Y, normalise={"c": "train"}), "unknown input to normalise 'c'"),
        (lambda: from_arrays(X, Y, normalise={"c": "train"}), "unknown input to normalise 'c'"),
        (lambda: from_arrays([[1.0, "x"], [2.0, 3.0]] * 5, [0, 1] * 5), "must hold numbers"),
        (
            lambda: from_arrays(np.array([[1.0, None], [2.0, 3.0]] * 5, object), [0, 1] * 5),
            "row 0, column 1 of the table is None",
        ),
    ],
)
def test_mistakes_are_one_sentence(record: Any, words: str) -> None:
    with pytest.raises(DataError, match=words) as caught:
        data.load(record())
    assert "\n" not in str(caught.value)


def test_a_listed_model_takes_one_input() -> None:
    with pytest.raises(ConfigError, match=r"model mlp takes one input, but own data has 2; give a module"):
        Simulation("mlp", from_arrays((X, WORDS), Y), devices=10, cohort=5)
