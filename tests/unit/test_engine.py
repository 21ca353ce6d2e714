"""The fused path equals the loop over clients, for every layer it knows and every way a layer can be called."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from sparsefed.core.engine import Cohort, LocalStep
from sparsefed.core.errors import ConfigError
from sparsefed.core.task import load_flat, make_task
from sparsefed.core.types import Batch
from sparsefed.engines import fused, loop
from sparsefed.engines.batched_pass import _groups, fused_block, prepare
from sparsefed.engines.calls import Call
from sparsefed.engines.layers import _CONV2D
from sparsefed.models import MODELS, TEXT_MODELS, cnn
from tests.support.cohorts import PLAIN, assert_same, by_client, cohort_of, seeded


def examples(shape: tuple[int, ...], sizes: list[int], classes: int, seed: int) -> Cohort:
    generator = torch.Generator().manual_seed(seed)
    total = sum(sizes)
    x = torch.randn(total, *shape, generator=generator)
    return cohort_of(x, torch.randint(classes, (total,), generator=generator), sizes)


sizes_lists = st.lists(st.integers(1, 4), min_size=1, max_size=5)


@settings(max_examples=40, deadline=None)
@given(
    data=st.data(),
    sizes=sizes_lists,
    kernel=st.integers(1, 3),
    stride=st.integers(1, 2),
    padding=st.integers(0, 2),
    dilation=st.integers(1, 2),
    groups=st.sampled_from([1, 2]),
    bias=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_conv2d(
    data: st.DataObject,
    sizes: list[int],
    kernel: int,
    stride: int,
    padding: int,
    dilation: int,
    groups: int,
    bias: bool,
    seed: int,
) -> None:
    other = data.draw(st.integers(1, 3))

    def build() -> nn.Module:
        conv = nn.Conv2d(2, 4, (kernel, other), stride, padding, dilation, groups, bias)
        return nn.Sequential(conv, nn.Flatten(), nn.LazyLinear(3))

    module = seeded(build, seed)
    module(torch.zeros(1, 2, 7, 6))
    assert_same(make_task(module), examples((2, 7, 6), sizes, 3, seed))


@settings(max_examples=20, deadline=None)
@given(
    sizes=sizes_lists,
    stride=st.integers(1, 2),
    padding=st.integers(0, 1),
    dilation=st.integers(1, 2),
    seed=st.integers(0, 99),
)
def test_conv2d_by_ghost_norms(sizes: list[int], stride: int, padding: int, dilation: int, seed: int) -> None:
    def build() -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(24, 40, 3, stride, padding, dilation),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(40, 3),
        )

    task = make_task(seeded(build, seed))
    assert_same(task, examples((24, 5, 5), [min(s, 2) for s in sizes], 3, seed), LocalStep(0.3, 0.01), ghost=None)


def test_ghost_norms_are_really_used_where_they_should_be() -> None:
    task = make_task(
        seeded(lambda: nn.Sequential(nn.Conv2d(32, 64, 3, padding=1), nn.Flatten(), nn.Linear(64 * 4, 10)))
    )
    assert_same(task, examples((32, 2, 2), [2, 2, 3], 10, 0), LocalStep(1.0, 0.02), ghost=True)


def test_ghost_norms_survive_in_place_activations() -> None:
    """With weight decay a ghost needs the layer's output, which the activation has overwritten."""

    def build() -> nn.Module:
        conv = nn.Conv2d(48, 96, 3, padding=1)
        return nn.Sequential(conv, nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(96, 10))

    task = make_task(seeded(build))
    assert_same(task, examples((48, 1, 1), [2, 2, 3], 10, 0), LocalStep(1.0, 0.5), ghost=True)


@settings(max_examples=20, deadline=None)
@given(
    sizes=sizes_lists, stride=st.integers(1, 2), padding=st.integers(0, 1), seed=st.integers(0, 99), three=st.booleans()
)
def test_conv1d_and_conv3d(sizes: list[int], stride: int, padding: int, seed: int, three: bool) -> None:
    def build() -> nn.Module:
        conv = nn.Conv3d(2, 3, 2, stride, padding) if three else nn.Conv1d(2, 3, 2, stride, padding)
        return nn.Sequential(conv, nn.ReLU(), nn.Flatten(), nn.LazyLinear(3))

    module, shape = seeded(build, seed), (2, 4, 4, 4) if three else (2, 6)
    module(torch.zeros(1, *shape))
    assert_same(make_task(module), examples(shape, sizes, 3, seed))


@settings(max_examples=25, deadline=None)
@given(
    sizes=sizes_lists,
    inputs=st.integers(1, 12),
    outputs=st.integers(2, 12),
    bias=st.booleans(),
    tokens=st.integers(0, 3),
    seed=st.integers(0, 1000),
)
def test_linear(sizes: list[int], inputs: int, outputs: int, bias: bool, tokens: int, seed: int) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(inputs, outputs, bias), nn.Linear(outputs, 3)

        def forward(self, x: Tensor) -> Tensor:
            h = torch.tanh(self.first(x))
            return self.second(h.mean(1) if tokens else h)  # type: ignore[no-any-return]

    shape = (tokens, inputs) if tokens else (inputs,)
    assert_same(make_task(seeded(Net, seed)), examples(shape, sizes, 3, seed), LocalStep(0.7, 0.1))


@settings(max_examples=25, deadline=None)
@given(
    sizes=sizes_lists,
    kind=st.sampled_from(["group", "layer", "layer-image"]),
    bias=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_normalisation_layers(sizes: list[int], kind: str, bias: bool, seed: int) -> None:
    def build() -> nn.Module:
        shape = [16] if kind == "layer" else [4, 2, 16]  # few numbers of small variance would only test rounding
        norm = nn.GroupNorm(2, 4) if kind == "group" else nn.LayerNorm(shape, bias=bias)
        return nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), norm, nn.ReLU(), nn.Flatten(), nn.Linear(128, 3))

    assert_same(make_task(seeded(build, seed)), examples((2, 2, 16), sizes, 3, seed))


@settings(max_examples=25, deadline=None)
@given(sizes=sizes_lists, several=st.booleans(), eps=st.sampled_from([None, 1e-3]), seed=st.integers(0, 1000))
def test_rms_norm(sizes: list[int], several: bool, eps: float | None, seed: int) -> None:
    def build() -> nn.Module:
        norm = nn.RMSNorm([4, 16] if several else [16], eps=eps)
        return nn.Sequential(nn.Linear(16, 16), norm, nn.Tanh(), nn.Flatten(), nn.Linear(64, 3))

    assert_same(make_task(seeded(build, seed)), examples((4, 16), sizes, 3, seed), LocalStep(0.7, 0.1))


@settings(max_examples=25, deadline=None)
@given(sizes=sizes_lists, shared=st.booleans(), image=st.booleans(), seed=st.integers(0, 1000))
def test_prelu(sizes: list[int], shared: bool, image: bool, seed: int) -> None:
    def build() -> nn.Module:
        first = nn.Conv2d(2, 4, 3) if image else nn.Linear(6, 4)
        return nn.Sequential(first, nn.PReLU(1 if shared else 4), nn.Flatten(), nn.Linear(16 if image else 4, 3))

    shape = (2, 4, 4) if image else (6,)
    assert_same(make_task(seeded(build, seed)), examples(shape, sizes, 3, seed), LocalStep(0.7, 0.1))


@settings(max_examples=30, deadline=None)
@given(
    sizes=sizes_lists,
    dimensions=st.integers(1, 3),
    kernel=st.integers(1, 3),
    stride=st.integers(1, 2),
    padding=st.integers(0, 1),
    extra=st.booleans(),
    groups=st.sampled_from([1, 2]),
    bias=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_transposed_convolutions(
    sizes: list[int],
    dimensions: int,
    kernel: int,
    stride: int,
    padding: int,
    extra: bool,
    groups: int,
    bias: bool,
    seed: int,
) -> None:
    kinds = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
    output_padding = int(extra and stride > 1)

    def build() -> nn.Module:
        first = kinds[dimensions - 1](2, 4, kernel, stride, padding, output_padding, groups, bias)
        return nn.Sequential(first, nn.Tanh(), nn.Flatten(), nn.LazyLinear(3))

    module, shape = seeded(build, seed), (2, *[3] * dimensions)
    module(torch.zeros(1, *shape))
    assert_same(make_task(module), examples(shape, sizes, 3, seed), LocalStep(0.7, 0.1))


def test_a_transposed_convolution_may_be_given_its_output_size() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.out = nn.ConvTranspose2d(2, 3, 3, 2), nn.Linear(3 * 64, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(self.up(x, output_size=[8, 8]).flatten(1))  # type: ignore[no-any-return]

    assert_same(make_task(seeded(Net)), examples((2, 3, 3), [2, 1, 2], 3, 0))


@settings(max_examples=25, deadline=None)
@given(sizes=sizes_lists, vocabulary=st.integers(2, 60), padded=st.booleans(), seed=st.integers(0, 1000))
def test_embedding(sizes: list[int], vocabulary: int, padded: bool, seed: int) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(vocabulary, 4, padding_idx=0 if padded else None)
            self.embedding.weight.data[0] = 0.3  # a padding row that is not zero must not count either
            self.out = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(self.embedding(x).mean(1))  # type: ignore[no-any-return]

    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(vocabulary, (sum(sizes), 3), generator=generator)
    cohort = cohort_of(x, torch.randint(3, (sum(sizes),), generator=generator), sizes)
    assert_same(make_task(seeded(Net, seed)), cohort, LocalStep(1.0, 0.05))


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(MODELS.keys() - TEXT_MODELS))  # those for text: test_text.py
def test_every_model_is_fused(name: str) -> None:
    params = {"width": 4} if name.startswith("resnet") else {}
    task = make_task(seeded(lambda: MODELS[name]((1, 16, 16), 10, **params)))
    assert_same(task, examples((1, 16, 16), [3, 1, 3, 2], 10, 0), LocalStep(0.1, 5e-4))


# --- ways to call a layer -----------------------------------------------------------------------------------------


class Shared(nn.Module):
    """One layer used twice, an in-place activation, a frozen layer, an unused one, and a keyword call."""

    def __init__(self) -> None:
        super().__init__()
        self.twice, self.out, self.unused = nn.Linear(6, 6), nn.Linear(6, 3), nn.Linear(2, 2)
        self.frozen = nn.Linear(6, 6).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.twice(x), inplace=True)
        h = F.relu(self.twice(self.frozen(h)), inplace=True)
        return self.out(input=h)  # type: ignore[no-any-return]


class Tied(nn.Module):
    """Two layers that share one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.tanh(self.first(x)))  # type: ignore[no-any-return]


class Own(nn.Module):
    """A parameter outside any known layer."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.layer = nn.Parameter(torch.ones(4)), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x * self.scale)  # type: ignore[no-any-return]


@pytest.mark.parametrize(("net", "inputs"), [(Shared, 6), (Tied, 3), (Own, 4)])
def test_layers_used_in_unusual_ways(net: Callable[[], nn.Module], inputs: int) -> None:
    assert_same(make_task(seeded(net)), examples((inputs,), [2, 3, 1], 3, 0), LocalStep(1.0, 0.01))


class Hidden(nn.Module):
    """Uses a layer's weight behind its back: no hook can see it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(torch.tanh(self.layer(x)), self.layer.weight)


@pytest.mark.parametrize("net", [Hidden])
def test_unknown_models_fall_back_to_the_loop_with_one_line(
    net: Callable[[], nn.Module], caplog: pytest.LogCaptureFixture
) -> None:
    task, cohort = make_task(seeded(net)), examples((4,), [2, 3], 4, 0)
    with caplog.at_level(logging.WARNING):
        engine = fused(task)
        for _ in range(3):
            rows, _ = by_client(engine, task.initial(), cohort, LocalStep(1.0, 0.0))
    truth, _ = by_client(loop(task), task.initial(), cohort, LocalStep(1.0, 0.0))
    torch.testing.assert_close(rows, truth, rtol=0, atol=0)
    assert len(caplog.records) == 1 and "client by client" in caplog.text


def test_batch_norm_is_refused_with_a_way_out() -> None:
    with pytest.raises(ConfigError, match=r"'1' is a BatchNorm2d.*GroupNorm.*models\.without_batchnorm"):
        make_task(nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2)))


def test_dropout_draws_from_the_step_and_leaves_the_global_generator_alone() -> None:
    task = make_task(seeded(lambda: nn.Sequential(nn.Linear(8, 64), nn.Dropout(0.5), nn.Linear(64, 3))))
    cohort, theta = examples((8,), [4, 4], 3, 0), task.initial()
    before = torch.random.get_rng_state()
    rows = [by_client(fused(task), theta, cohort, LocalStep(1.0, 0.0, seed))[0] for seed in (1, 1, 2)]
    assert torch.equal(rows[0], rows[1]) and not torch.equal(rows[0], rows[2])
    assert torch.equal(before, torch.random.get_rng_state())


# --- blocks ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("budget", [1, 200_000, 2**30])
def test_splitting_into_blocks_changes_nothing(budget: int) -> None:
    task, cohort = make_task(seeded(lambda: cnn((1, 8, 8), 10))), examples((1, 8, 8), [1, 2, 3, 2, 1, 3, 3], 10, 0)
    step = LocalStep(0.5, 0.01)
    truth, _ = by_client(loop(task), task.initial(), cohort, step)  # both paths put devices of equal size side by side
    blocks = list(fused(task, budget=budget)(task.initial(), cohort, step))
    assert len(blocks) == {1: 7, 2**30: 1}.get(budget, len(blocks))
    rows = torch.cat([block.rows() for block in blocks])
    torch.testing.assert_close(rows, truth, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e30])
def test_a_broken_device_spoils_no_other(bad: float) -> None:
    """Its norm is not finite, and a weight of 0 leaves it out of the sum."""
    task = make_task(seeded(lambda: nn.Sequential(nn.Conv2d(4, 8, 3), nn.Flatten(), nn.Linear(8 * 4, 10))))
    good = examples((4, 4, 4), [2, 2, 2], 10, 0)
    batch = good.gather(np.arange(3))
    x = batch.x.clone()
    x[2:4] = bad
    module = prepare(task, torch.float32)
    load_flat(task, module.module, task.initial())
    step = LocalStep(1.0, 0.0)
    broken = fused_block(task, module, task.initial(), np.arange(3), Batch(x, batch.y, batch.sizes), step)
    whole = fused_block(task, module, task.initial(), np.arange(3), batch, step)
    norms, weights = broken.norms(), torch.tensor([0.5, 0.0, 2.0], dtype=torch.float64)
    assert not torch.isfinite(norms[1]) or norms[1] > 1e20
    torch.testing.assert_close(norms[[0, 2]], whole.norms()[[0, 2]])
    torch.testing.assert_close(broken.weighted_sum(weights), whole.weighted_sum(weights), rtol=1e-5, atol=1e-6)


@settings(max_examples=25, deadline=None)
@given(
    sizes=sizes_lists,
    channels=st.sampled_from([1, 3, 6]),  # few: shifted copies; more: patches
    kernel=st.integers(1, 3),
    stride=st.integers(1, 2),
    padding=st.integers(0, 1),
    dilation=st.integers(1, 2),
)
def test_the_ways_of_bfloat16_are_the_same_contraction(
    sizes: list[int], channels: int, kernel: int, stride: int, padding: int, dilation: int
) -> None:
    """In bfloat16 convolutions take other paths; on whole numbers they are exact, so they must agree to the bit."""
    layer = nn.Conv2d(channels, 5, (kernel, 2), stride, padding, dilation, bias=False)
    generator = torch.Generator().manual_seed(sum(sizes))
    layer.requires_grad_(False)
    a = torch.randint(-2, 3, (sum(sizes), channels, 6, 7), generator=generator).float()
    out = layer(a)
    g = torch.randint(-1, 2, tuple(out.shape), generator=generator).float()
    ordered = np.sort(np.array(sizes))
    rows = {
        dtype: _CONV2D.rows(Call(layer.to(dtype), a.to(dtype), g.to(dtype), _groups(ordered))).float()
        for dtype in (torch.bfloat16, torch.float32)
    }
    assert float(rows[torch.float32].abs().max()) < 256  # beyond, bfloat16 cannot count
    assert torch.equal(rows[torch.float32], rows[torch.bfloat16])


def test_bfloat16_is_near_float32() -> None:
    task, cohort = make_task(seeded(lambda: cnn((1, 28, 28), 10))), examples((1, 28, 28), [6] * 8, 10, 0)
    truth, _ = by_client(loop(task), task.initial(), cohort, LocalStep(1.0, 0.0))
    (block,) = fused(task, torch.bfloat16)(task.initial(), cohort, LocalStep(1.0, 0.0))
    size = torch.linalg.vector_norm(truth, dim=1, dtype=torch.float64)
    torch.testing.assert_close(block.norms(), size, rtol=0.03, atol=0)
    assert torch.all(torch.linalg.vector_norm(block.rows() - truth, dim=1) <= 0.2 * size)  # a ReLU near 0 may flip


def test_weights_are_not_counted_as_if_every_example_had_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model with few activations and many weights must not be cut into blocks of one client."""
    layers = (nn.Linear(100, 500), nn.Tanh(), nn.Linear(500, 500), nn.Tanh(), nn.Linear(500, 2))
    task = make_task(seeded(lambda: nn.Sequential(*layers)))
    costs: list[float] = []
    engine = sys.modules["sparsefed.engines.fused"]

    def spy(cohort: Cohort, *numbers: float) -> list[Any]:
        costs.append(numbers[1])  # bytes an example
        return [cohort.ids]

    monkeypatch.setattr(engine, "split", spy)
    list(fused(task)(task.initial(), examples((100,), [4, 4], 2, 0), PLAIN))
    assert 2 * 500 * 4 <= costs[0] <= 6 * (100 + 4 * 500 + 2) * 4  # what an example leaves behind, a few times
