"""The constants of a softmax layer: exact, attained, never exceeded; and the estimate for other models."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from sparsefed.core.errors import ConfigError
from sparsefed.core.rng import rng
from sparsefed.models import MODELS, USUAL
from sparsefed.models.outline import outline
from sparsefed.models.softmax import softmax
from sparsefed.theory import lipschitz
from sparsefed.theory.lipschitz import (
    SoftmaxLayer,
    clip_free,
    estimate_c,
    is_softmax_layer,
    softmax_growth,
    softmax_layer,
)
from tests.support import reference


def normal(*shape: int, seed: int, name: str = "test") -> Tensor:
    return torch.from_numpy(rng(seed, name).standard_normal(shape))


def mean_gradient(theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Of cross-entropy, [.., C, m]: mean (p - y) x^T."""
    p = torch.softmax(x @ theta.mT, -1)
    return (p - nn.functional.one_hot(y, theta.shape[-2])).mT @ x / x.shape[-2]


def climbed(objective: Callable[..., Tensor], *at: Tensor, steps: int = 200, lr: float = 0.1) -> float:
    """The highest value that Adam finds from here; every value on the way counts."""
    leaves = [tensor.clone().requires_grad_() for tensor in at]
    optimizer = torch.optim.Adam(leaves, lr=lr, maximize=True)
    best = -math.inf
    for _ in range(steps):
        value = objective(*leaves)
        best = max(best, float(value.detach().max()))
        optimizer.zero_grad()
        value.sum().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return best


# --- the constants from data -----------------------------------------------------------------------------------------


@settings(max_examples=60)
@given(data=st.data())
def test_constants_are_those_of_the_definition(data: st.DataObject) -> None:
    m, sizes = data.draw(st.integers(1, 4)), data.draw(st.lists(st.integers(0, 7), min_size=1, max_size=6))
    number = st.sampled_from([0.0, 1.0, -1.0, 2.5, -0.125]) | st.floats(-3, 3, width=32)
    rows = data.draw(
        st.lists(st.lists(number, min_size=m, max_size=m), min_size=max(1, sum(sizes)), max_size=max(1, sum(sizes)))
    )
    sizes = sizes if sum(sizes) else [1]
    bias, chunk = data.draw(st.booleans()), data.draw(st.sampled_from([1, 3, 10, 4096]))
    order = np.array(data.draw(st.permutations(range(len(rows)))))
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    owned = [[rows[order[i]] + [1.0] * bias for i in range(a, b)] for a, b in pairwise(offsets)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lipschitz, "CHUNK", chunk)  # how the examples are cut into pieces changes nothing
        layer = softmax_layer(torch.tensor(rows).reshape(len(rows), m, 1), offsets, examples=order, bias=bias)
    found = (layer.c, layer.column_l1, layer.column_l2, layer.smooth, layer.longest)
    assert found == pytest.approx(reference.softmax_constants(owned), rel=1e-4, abs=1e-9)
    assert layer.smooth >= reference.softmax_constants(owned)[3] * (1 - 1e-9)  # power iteration comes from below


def test_inputs_are_those_that_the_model_gets() -> None:
    raw = torch.arange(12, dtype=torch.uint8).reshape(4, 3)
    offsets = np.array([0, 2, 4])
    prepared = softmax_layer(raw, offsets, prepare=lambda x: x.double() / 4 - 1)
    assert prepared == softmax_layer(raw.double() / 4 - 1, offsets)
    assert prepared != softmax_layer(raw.double(), offsets)


@pytest.mark.parametrize("offsets", [[0, 3], [1, 4], [0, 3, 2, 4]])
def test_offsets_of_other_examples_are_refused(offsets: list[int]) -> None:
    with pytest.raises(ConfigError, match="rise from 0 to 4"):
        softmax_layer(torch.ones(4, 2), np.array(offsets))


def test_all_constants_are_attained() -> None:
    """Two classes at theta = 0, a device with one example: the Hessian is as large as each constant says."""
    x = torch.tensor([[0.5, 2.0, 1.0]], dtype=torch.float64)
    layer = softmax_layer(x, np.array([0, 1]), bias=False)
    half = torch.tensor([[0.25, -0.25], [-0.25, 0.25]], dtype=torch.float64)
    hessian = torch.kron(half, x.T @ x)
    assert float(hessian.abs().max()) == pytest.approx(layer.c)
    assert float(hessian.abs().sum(0).max()) == pytest.approx(layer.column_l1)
    assert float(torch.linalg.vector_norm(hessian, dim=0).max()) == pytest.approx(layer.column_l2)
    assert float(torch.linalg.eigvalsh(hessian).max()) == pytest.approx(layer.smooth)


# --- the paper's example ---------------------------------------------------------------------------------------------


def test_the_printed_hessian_is_right_for_the_same_class_alone() -> None:
    theta, x, y = normal(3, 4, seed=0), normal(1, 4, seed=1).abs(), torch.tensor([2])

    def loss(flat: Tensor) -> Tensor:
        return nn.functional.cross_entropy(x @ flat.view(3, 4).T, y)

    computed = torch.autograd.functional.hessian(loss, theta.flatten()).view(3, 4, 3, 4)  # type: ignore[no-untyped-call]
    p = torch.softmax(x @ theta.T, 1)[0]
    ours = torch.einsum("ik,j,l->ijkl", torch.diag(p) - p[:, None] * p, x[0], x[0])
    printed = torch.einsum("k,j,l->jkl", p * (1 - p), x[0], x[0]).expand(3, 4, 3, 4)
    torch.testing.assert_close(computed, ours)
    for i in range(3):
        torch.testing.assert_close(computed[i, :, i], printed[i, :, i])
        for k in set(range(3)) - {i}:
            assert (computed[i, :, k] < 0).all() and (printed[i, :, k] > 0).all()


def apart(free: Tensor) -> Tensor:
    """A difference of two models, [B, C, m] from [B, C m + 1]: a direction and the logarithm of its l1 length. Cubes,
    because what is steepest in l1 lies along few coordinates, and so it is soon found."""
    directions = free[:, 1:] ** 3
    return directions / directions.abs().sum(1, keepdim=True) * (free[:, :1] - 4).exp()


def quotients(theta: Tensor, free: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Of each pair of models the largest change of a gradient's coordinate, a unit of l1."""
    other = theta + apart(free).view_as(theta)
    change = (mean_gradient(theta, x, y) - mean_gradient(other, x, y)).abs().flatten(1).amax(1)
    return change / (theta - other).abs().flatten(1).sum(1)


@pytest.mark.slow
@pytest.mark.parametrize("classes", [2, 3, 5])
def test_c_is_a_quarter_for_inputs_from_0_to_1(classes: int) -> None:
    """Climbing over both models and the input comes within 1 % of 1/4, and never above."""
    starts = 20
    y = torch.from_numpy(rng(classes, "labels").integers(classes, size=(starts, 1)))
    best = climbed(
        lambda theta, free, x: quotients(theta, free, torch.sigmoid(x), y),
        normal(starts, classes, 3, seed=1),
        normal(starts, classes * 3 + 1, seed=2),
        normal(starts, 1, 3, seed=3),
    )
    assert 0.25 * 0.99 < best <= 0.25 * (1 + 1e-9)


@pytest.mark.parametrize("seed", range(4))
def test_c_of_the_data_is_approached_and_never_exceeded(seed: int) -> None:
    x = torch.cat([normal(5, 3, seed=seed) * 1.5, torch.ones(5, 1, dtype=torch.float64)], 1)
    y = torch.from_numpy(rng(seed, "labels").integers(3, size=5))
    layer = softmax_layer(x[:, :3], np.array([0, 5]))
    best = climbed(
        lambda theta, free: quotients(theta, free, x, y),
        normal(40, 3, 4, seed=seed + 10) * 0.3,
        normal(40, 13, seed=seed + 20),
    )
    assert layer.c * 0.98 < best <= layer.c * (1 + 1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_no_pair_of_models_exceeds_any_constant(seed: int) -> None:
    raw = normal(6, 3, seed=seed) * 2
    layer = softmax_layer(raw, np.array([0, 6]))
    x = torch.cat([raw, torch.ones(6, 1, dtype=torch.float64)], 1)
    y = torch.from_numpy(rng(seed, "labels").integers(3, size=6))

    def change(theta: Tensor, free: Tensor, l_of_change: float, l_of_models: float) -> Tensor:
        difference = apart(free)
        other = theta + difference.view_as(theta)
        moved = (mean_gradient(theta, x, y) - mean_gradient(other, x, y)).flatten(1)
        lengths = torch.linalg.vector_norm(difference, l_of_models, dim=1)
        quotient: Tensor = torch.linalg.vector_norm(moved, l_of_change, dim=1) / lengths
        return quotient

    starts = normal(20, 3, 4, seed=seed + 5), normal(20, 13, seed=seed + 6)
    for of_change, of_models, bound in ((1, 1, layer.column_l1), (2, 1, layer.column_l2), (2, 2, layer.smooth)):
        best = climbed(lambda a, b, u=of_change, v=of_models: change(a, b, u, v), *starts, steps=150)
        assert bound * 0.5 < best <= bound * (1 + 1e-9)
    longest = climbed(lambda theta: torch.linalg.vector_norm(mean_gradient(theta, x, y), dim=(1, 2)), starts[0])
    assert longest <= clip_free(layer)


@pytest.mark.slow
@pytest.mark.parametrize("k", [2, 4, None])
@pytest.mark.parametrize("clip_norm", [0.3, 1.0, math.inf])
def test_no_pair_of_models_exceeds_the_growth(k: int | None, clip_norm: float) -> None:
    """Several devices, cut or not: the l1 change of their mean on any w coordinates."""
    raw, d = normal(9, 3, seed=4) * 2, 3 * 4
    layer = softmax_layer(raw, np.array([0, 3, 6, 9]))
    x = torch.cat([raw, torch.ones(9, 1, dtype=torch.float64)], 1).view(3, 3, 4)
    y = torch.from_numpy(rng(5, "labels").integers(3, size=(3, 3)))

    def mean(theta: Tensor) -> Tensor:  # [B, d]
        rows = mean_gradient(theta[:, None], x, y).flatten(2)
        lengths = torch.linalg.vector_norm(rows, dim=2, keepdim=True)
        cut: Tensor = rows * (clip_norm / lengths).clamp(max=1)
        return cut.mean(1)

    def change(theta: Tensor, free: Tensor) -> Tensor:
        w, difference = d if k is None else min(d, 2 * k), apart(free)
        moved = (mean(theta) - mean(theta + difference.view_as(theta))).abs().topk(w, dim=1).values.sum(1)
        return moved / difference.abs().sum(1)

    best = climbed(change, normal(30, 3, 4, seed=6), normal(30, d + 1, seed=7), steps=150)
    cut = clip_norm < clip_free(layer)
    assert best <= softmax_growth(layer, d, k, clipped=cut)
    assert best > 0.05 * softmax_growth(layer, d, k, clipped=cut)


def test_growth_is_the_smallest_of_what_holds() -> None:
    layer = SoftmaxLayer(c=1.0, column_l1=1e9, column_l2=1e9, smooth=1e9, longest=1.0)
    assert softmax_growth(layer, 100, 8, False) == 16
    assert softmax_growth(layer, 100, 8, True) == 40
    for field in ("column_l2", "smooth"):
        better = SoftmaxLayer(**{**vars(layer), field: 0.5})
        assert softmax_growth(better, 100, 8, True) == softmax_growth(better, 100, 8, False) == 2
    assert softmax_growth(SoftmaxLayer(**{**vars(layer), "column_l1": 3.0}), 100, 8, False) == 3
    assert softmax_growth(SoftmaxLayer(**{**vars(layer), "column_l1": 3.0}), 100, 8, True) == 40


# --- which models ----------------------------------------------------------------------------------------------------


def test_of_the_listed_models_one_is_a_softmax_layer() -> None:
    found = {name for name in MODELS if is_softmax_layer(outline(partial(MODELS[name], *USUAL[name][:2])))}
    assert found == {"softmax"}


class Squared(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        squared: Tensor = self.layer(x) ** 2
        return squared


def test_what_is_one_softmax_layer() -> None:
    linear = nn.Linear(4, 2)
    assert is_softmax_layer(linear) and is_softmax_layer(
        nn.Sequential(nn.Identity(), nn.Sequential(nn.Flatten(), linear))
    )
    for other in (nn.Flatten(), nn.Sequential(linear, nn.Linear(2, 2)), nn.Sequential(linear, nn.ReLU()), Squared()):
        assert not is_softmax_layer(other)


def test_zero_weights_where_asked_for() -> None:
    assert all(bool((p == 0).all()) for p in softmax((1, 4, 4), 3, zero=True).parameters())
    assert any(bool((p != 0).any()) for p in softmax((1, 4, 4), 3).parameters())


# --- the estimate ----------------------------------------------------------------------------------------------------


@settings(max_examples=25)
@given(d=st.integers(1, 9), seed=st.integers(0, 10**6))
def test_on_a_quadratic_the_estimate_is_the_largest_entry(d: int, seed: int) -> None:
    root = normal(d, d, seed=seed)
    matrix = root + root.T
    found = estimate_c(lambda theta: matrix @ theta, [torch.zeros(d, dtype=torch.float64)], starts=d + 1, climbs=0)
    assert found.c == pytest.approx(float(matrix.abs().max()))
    assert found.samples % d == 0 and found.samples >= d * (d + 1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_on_a_softmax_layer_the_estimate_comes_from_below(seed: int) -> None:
    raw = normal(4, 3, seed=seed)
    layer = softmax_layer(raw, np.array([0, 4]))
    x = torch.cat([raw, torch.ones(4, 1, dtype=torch.float64)], 1)
    y = torch.from_numpy(rng(seed, "labels").integers(3, size=4))
    others = [torch.from_numpy(rng(seed, "models around", n).standard_normal(12)) for n in (1, 2)]
    thetas = [torch.zeros(12, dtype=torch.float64), *(0.5 * other for other in others)]
    at_once = estimate_c(lambda t: mean_gradient(t.view(3, 4), x, y).flatten(), thetas, climbs=0, seed=seed)
    searched = estimate_c(lambda t: mean_gradient(t.view(3, 4), x, y).flatten(), thetas, climbs=40, seed=seed)
    assert at_once.c < searched.c
    assert 0.9 * layer.c < searched.c <= layer.c * (1 + 1e-9)


def test_a_network_with_relu_has_no_c() -> None:
    """Its gradient jumps: the smaller the step, the larger the estimate."""

    def gradient(theta: Tensor) -> Tensor:
        w = theta.clone().requires_grad_()
        loss = ((torch.relu(w[0] * 1.5) * w[1] - 1) ** 2).sum()
        return torch.autograd.grad(loss, w)[0]

    at = torch.tensor([0.0, 1.0], dtype=torch.float64)
    found = [estimate_c(gradient, [at], step=step, climbs=0).c for step in (1e-1, 1e-2, 1e-3)]
    assert found[1] > 5 * found[0] and found[2] > 5 * found[1]


def test_nothing_to_estimate_from_is_refused() -> None:
    with pytest.raises(ConfigError, match="one model at least"):
        estimate_c(lambda theta: theta, [])
