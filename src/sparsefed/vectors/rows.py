"""Numbers of many rows at once: moments and weighted sums of float32 or bfloat16 rows, each row read once."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

MIN_NUMBERS = 1 << 23  # of a thread's share; below, one thread is faster


def row_moments(rows: Tensor, theta: Tensor) -> tuple[Tensor, Tensor]:
    """|row|^2 and <row, theta> of each row [m, K], float64 [m]."""
    if rows.device.type != "cpu":
        wide = rows.double()
        return wide.square().sum(1), wide @ theta.double()
    from sparsefed.vectors import kernels

    bits, half = _as_array(rows)
    moments = np.zeros((len(bits), 2))
    kernel, other = (kernels.half_moments if half else kernels.float_moments), theta.contiguous().numpy()
    threads = _threads(rows)
    chunks = list(pairwise([len(bits) * c // threads for c in range(threads + 1)]))
    kernels.over_chunks(lambda _, a, b: kernel(bits, other, a, b, moments), chunks)
    squares, dots = torch.from_numpy(moments).unbind(1)
    return squares, dots


def weighted_sum(rows: Tensor, weights: Tensor) -> Tensor:
    """sum_i weights[i] rows[i] in float32 [K]; a weight of 0 leaves its row out, whatever it holds."""
    if rows.device.type != "cpu":
        taken = weights != 0
        return weights[taken].float() @ rows[taken].float()
    from sparsefed.vectors import kernels

    bits, half = _as_array(rows)
    out, factors = np.empty(bits.shape[1], np.float32), weights.float().numpy()
    kernel = kernels.half_weigh if half else kernels.float_weigh
    threads = _threads(rows)
    width = -(-bits.shape[1] // threads)
    chunks = [(low, min(low + width, bits.shape[1])) for low in range(0, bits.shape[1], width)]
    kernels.over_chunks(lambda _, a, b: kernel(bits, factors, a, b, out), chunks)
    return torch.from_numpy(out)


def _threads(rows: Tensor) -> int:
    """Few: right after a parallel torch operation its idle workers still hold the other cores for a while."""
    return max(1, min(torch.get_num_threads(), rows.numel() // MIN_NUMBERS))


def _as_array(rows: Tensor) -> tuple[npt.NDArray[Any], bool]:
    rows = rows.detach().contiguous()
    if rows.dtype == torch.bfloat16:
        return rows.view(torch.uint16).numpy(), True
    return rows.float().numpy(), False
