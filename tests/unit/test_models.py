"""Models: exact numbers of parameters, and that what `sparsefed list` says of them is so."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from sparsefed.cli.catalogue import catalogue
from sparsefed.core.errors import ConfigError
from sparsefed.core.signatures import check_arguments
from sparsefed.models import MODELS, USUAL, cnn, mlp, resnet9, resnet101_ln, softmax
from sparsefed.models.outline import outline

COUNTS = {
    "softmax": 28 * 28 * 10 + 10,
    "mlp": 199_210,  # McMahan et al. 2017, the MNIST 2NN
    "cnn": (25 + 1) * 16 + (25 * 16 + 1) * 32 + (7 * 7 * 32 + 1) * 52 + 53 * 10,
    "resnet9": 6_568_640,  # the paper
    "resnet101_ln": 43_124_350,  # the authors' code
    "lstm": 10_000 * (64 + 1) + 4 * 128 * (64 + 128 + 2) + 4 * 128 * (128 + 128 + 2) + 129 * 64,
    "transformer": 10_000 * (64 + 1) + 10 * 64 + 2 * (65 * 192 + 65 * 64 + 65 * 256 + 257 * 64 + 4 * 64) + 2 * 64,
}


def count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def test_every_model_has_an_exact_number_of_parameters() -> None:
    listed = {entry["name"]: entry for entry in catalogue()["models"]}
    assert COUNTS.keys() == MODELS.keys() == USUAL.keys() == listed.keys()
    for name, builder in MODELS.items():
        shape, classes, whose = USUAL[name]
        assert count(outline(lambda b=builder, s=shape, c=classes: b(s, c))) == COUNTS[name], name  # type: ignore[misc]
        assert listed[name]["size"] == f"{COUNTS[name]:,} ({whose})".replace(",", " ")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_cnn_may_pool_before_the_relu(dtype: torch.dtype) -> None:
    """Outputs and gradients are those of the usual order to the bit, with ties and images of zeros too."""
    generator = torch.Generator().manual_seed(0)
    pooled_first = cnn((1, 28, 28), 10).to(dtype)
    layers = list(pooled_first)  # type: ignore[call-overload]
    usual = nn.Sequential(*(layers[i] for i in (0, 2, 1, 3, 5, 4, *range(6, 10))))
    x = torch.randint(-2, 3, (8, 1, 28, 28), generator=generator).to(dtype)
    x[0] = 0
    found = []
    for model in (pooled_first, usual):
        outputs = model(x)
        found.append([outputs, *torch.autograd.grad(outputs.float().square().sum(), tuple(pooled_first.parameters()))])
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


def naive_resnet101(height: int, width: int, channels: int, classes: int) -> int:
    """He et al. 2016, table 1, column 101, counted line by line; a scale and a shift for every entry of every image."""
    total, inputs = channels * 64 * 49, 64
    height, width = math.ceil(height / 2), math.ceil(width / 2)
    total += 2 * 64 * height * width
    height, width = math.ceil(height / 2), math.ceil(width / 2)  # the pooling
    for stage, (narrow, blocks) in enumerate([(64, 3), (128, 4), (256, 23), (512, 3)]):
        for block in range(blocks):
            total += inputs * narrow + 2 * narrow * height * width
            if stage > 0 and block == 0:
                height, width = math.ceil(height / 2), math.ceil(width / 2)
            total += narrow * narrow * 9 + 2 * narrow * height * width
            total += narrow * 4 * narrow + 2 * 4 * narrow * height * width
            if block == 0:
                total += inputs * 4 * narrow + 2 * 4 * narrow * height * width
            inputs = 4 * narrow
    return total + 2048 * classes + classes


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (2, 17, 40), (1, 1, 1)])
def test_resnet101_ln_is_the_published_table(shape: tuple[int, int, int]) -> None:
    model = outline(lambda: resnet101_ln(shape, 62))
    assert count(model) == naive_resnet101(*shape[1:], shape[0], 62)
    weighted = [layer for layer in model.modules() if isinstance(layer, (nn.Conv2d, nn.Linear))]
    assert len(weighted) == 101 + 4  # and the four projections of a shortcut
    assert not any(isinstance(layer, nn.BatchNorm2d) for layer in model.modules())


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 9, 20)])
def test_resnet101_ln_takes_every_image_size(shape: tuple[int, int, int]) -> None:
    """Every normalisation fits the image that reaches it, and every parameter is used."""
    model = resnet101_ln(shape, 5, width=2)
    out: Tensor = model(torch.ones(2, *shape))
    assert out.shape == (2, 5)
    out.logsumexp(1).sum().backward()  # type: ignore[no-untyped-call]
    assert all(p.grad is not None for p in model.parameters())


@settings(max_examples=20, deadline=None)
@given(hidden=st.lists(st.integers(1, 9), max_size=4), classes=st.integers(2, 5))
def test_mlp_has_the_layers_that_were_asked_for(hidden: list[int], classes: int) -> None:
    model = mlp((2, 3, 1), classes, hidden=tuple(hidden))
    widths = [6, *hidden, classes]
    assert count(model) == sum((a + 1) * b for a, b in pairwise(widths))
    assert sum(isinstance(layer, nn.ReLU) for layer in model.children()) == len(hidden)
    assert model(torch.zeros(3, 2, 3, 1)).shape == (3, classes)


@pytest.mark.parametrize("hidden", [5, "5", [2.5], ["a"], [True], {"a": 1}])
def test_hidden_layers_that_are_no_list_of_numbers_are_refused(hidden: Any) -> None:
    with pytest.raises(ConfigError, match="must be list of int"):
        check_arguments("model mlp", mlp, {"hidden": hidden}, skip=2)


def test_a_hidden_layer_without_units_is_refused() -> None:
    check_arguments("model mlp", mlp, {"hidden": [3, 4]}, skip=2)
    with pytest.raises(ConfigError, match="at least 1 unit"):
        mlp((1, 2, 2), 3, hidden=(4, 0))


@pytest.mark.parametrize("builder", [softmax, mlp, cnn, resnet9])
def test_an_outline_is_the_model_without_its_weights(builder: Any) -> None:
    before = torch.random.get_rng_state()
    drawn = outline(lambda: builder((1, 12, 12), 3))
    assert torch.equal(before, torch.random.get_rng_state())
    real = builder((1, 12, 12), 3)
    assert {n: p.shape for n, p in drawn.named_parameters()} == {n: p.shape for n, p in real.named_parameters()}
    assert all(p.is_meta for p in drawn.parameters())


def test_a_model_without_parameters_is_not_given_any() -> None:
    def bare(shape: tuple[int, ...], classes: int) -> nn.Module:
        return nn.Linear(math.prod(shape), classes)

    check_arguments("model bare", bare, {}, skip=2)
    with pytest.raises(ConfigError, match="model bare: it takes no parameters, but was given 'width'"):
        check_arguments("model bare", bare, {"width": 3}, skip=2)
