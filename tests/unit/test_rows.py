"""Moments and weighted sums of many rows against float64 loops, and what rows left out may hold."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsefed.kernels.rows import MIN_NUMBERS, row_moments, weighted_sum

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def made(m: int, width: int, dtype: str, seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(m, width, generator=generator) * torch.logspace(-6, 3, m)[:, None]
    weights = torch.rand(m, generator=generator, dtype=torch.float64) - 0.3
    return rows.to(DTYPES[dtype]), torch.randn(width, generator=generator), weights


@settings(deadline=None, max_examples=40)
@given(
    m=st.integers(1, 7), width=st.integers(1, 5000), dtype=st.sampled_from(sorted(DTYPES)), seed=st.integers(0, 1000)
)
def test_moments_and_sums(m: int, width: int, dtype: str, seed: int) -> None:
    rows, theta, weights = made(m, width, dtype, seed)
    squares, dots = row_moments(rows, theta)
    exact = rows.double().numpy()
    for i in range(m):
        assert squares[i].item() == pytest.approx(float(exact[i] @ exact[i]), rel=1e-5)
        size = float(np.linalg.norm(exact[i]) * np.linalg.norm(theta.double().numpy()))
        assert dots[i].item() == pytest.approx(float(exact[i] @ theta.double().numpy()), abs=1e-5 * size)
    total = sum(w * row for w, row in zip(weights.float().double().numpy(), exact, strict=True))
    bound = sum(abs(w) * abs(row) for w, row in zip(weights.numpy(), exact, strict=True))
    assert np.all(np.abs(weighted_sum(rows, weights).double().numpy() - total) <= 1e-5 * bound + 1e-30)


@pytest.mark.parametrize("dtype", sorted(DTYPES))
def test_the_number_of_threads_changes_no_bit(dtype: str) -> None:
    rows, theta, weights = made(5, 2 * MIN_NUMBERS // 4, dtype, 0)
    before, results = torch.get_num_threads(), []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        results.append((*row_moments(rows, theta), weighted_sum(rows, weights)))
    torch.set_num_threads(before)
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@pytest.mark.parametrize("dtype", sorted(DTYPES))
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_weight_of_zero_leaves_a_row_out_whatever_it_holds(dtype: str, bad: float) -> None:
    rows, theta, weights = made(4, 300, dtype, 1)
    rows[2, 17], weights[2] = bad, 0.0
    squares, _ = row_moments(rows, theta)
    assert not torch.isfinite(squares[2]) and bool(torch.isfinite(squares[[0, 1, 3]]).all())
    assert torch.equal(weighted_sum(rows, weights), weighted_sum(rows[[0, 1, 3]], weights[[0, 1, 3]]))
