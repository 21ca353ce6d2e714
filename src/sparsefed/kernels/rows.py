"""Norms, moments and weighted sums of many rows at once; each row is read once."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sparsefed.kernels.sliced import Rows, SlicedRows

NORM_NUMBERS = 1 << 20  # numbers per step that torch squares in float64
MIN_NUMBERS = 1 << 23  # per thread; below, one thread is faster


def row_norms(rows: Tensor) -> Tensor:
    """Return ||row||_2 of float32 rows [m, d], summed in float64 [m]; not finite where the row is not."""
    if rows.device.type != "cpu" or rows.dtype != torch.float32 or not rows.is_contiguous():
        # A few rows at a time: a float64 copy of all would triple their memory.
        few = max(1, NORM_NUMBERS // max(1, rows.shape[1]))
        parts = [torch.linalg.vector_norm(part, dim=1, dtype=torch.float64) for part in torch.split(rows, few)]
        return torch.cat(parts)
    from sparsefed.kernels import vector_kernels as kernels

    array, squares = rows.detach().numpy(), np.zeros(len(rows))
    kernels.over_chunks(lambda _, a, b: kernels.float_squares(array, a, b, squares), _row_chunks(rows))
    return torch.from_numpy(squares).sqrt_()


def row_moments(rows: Tensor, theta: Tensor) -> tuple[Tensor, Tensor]:
    """Return |row|^2 and <row, theta> of each row [m, K], float64 [m]."""
    if rows.device.type != "cpu":
        wide = rows.double()
        return wide.square().sum(1), wide @ theta.double()
    from sparsefed.kernels import vector_kernels as kernels

    bits, half = _as_array(rows)
    moments = np.zeros((len(bits), 2))
    kernel, other = (kernels.half_moments if half else kernels.float_moments), theta.contiguous().numpy()
    kernels.over_chunks(lambda _, a, b: kernel(bits, other, a, b, moments), _row_chunks(rows))
    squares, dots = torch.from_numpy(moments).unbind(1)
    return squares, dots


def weighted_sum(rows: Rows, weights: Tensor) -> Tensor:
    """Return sum_i weights[i] rows[i] in float32 [K]; a weight of 0 skips its row, whatever it holds."""
    if isinstance(rows, SlicedRows):
        return rows.columnwise(partial(weighted_sum, weights=weights))
    if rows.device.type != "cpu":
        taken = weights != 0
        return weights[taken].float() @ rows[taken].float()
    from sparsefed.kernels import vector_kernels as kernels

    bits, half = _as_array(rows)
    out, factors = np.empty(bits.shape[1], np.float32), weights.float().numpy()
    kernel = kernels.half_weigh if half else kernels.float_weigh
    threads = _threads(rows)
    width = -(-bits.shape[1] // threads)
    chunks = [(low, min(low + width, bits.shape[1])) for low in range(0, bits.shape[1], width)]
    kernels.over_chunks(lambda _, a, b: kernel(bits, factors, a, b, out), chunks)
    return torch.from_numpy(out)


def _threads(rows: Tensor) -> int:
    """Return a small thread count: torch's idle workers hold the other cores for a while after parallel work."""
    return max(1, min(torch.get_num_threads(), rows.numel() // MIN_NUMBERS))


def _row_chunks(rows: Tensor) -> list[tuple[int, int]]:
    threads = _threads(rows)
    return list(pairwise([len(rows) * c // threads for c in range(threads + 1)]))


def _as_array(rows: Tensor) -> tuple[npt.NDArray[Any], bool]:
    rows = rows.detach().contiguous()
    if rows.dtype == torch.bfloat16:
        return rows.view(torch.uint16).numpy(), True
    return rows.float().numpy(), False


def rehearse() -> None:
    """Call each kernel on rows once."""
    for dtype in (torch.float32, torch.bfloat16):
        rows = torch.ones(2, 2, dtype=dtype)
        row_norms(rows)
        row_moments(rows, torch.ones(2))
        weighted_sum(rows, torch.ones(2))
