"""Order statistics of each coordinate over all rows: trimmed mean, median, weighted median, and sign votes.

All of them read float32 rows [n, d] of finite numbers and never write to them; sums are taken in float64, over the
survivors only. -0.0 and 0.0 are equal.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from sparsefed.kernels.sliced import Rows, SlicedRows

FEW = 20  # extremes per side up to which keeping them aside is cheaper than counting
MIN_NUMBERS = 1 << 18  # per thread; below, starting it costs more than the work
HALF, ROUNDING = 0.5, 1e-12  # of a sum of shares
SORTED_NUMBERS = 1 << 24  # per call of torch's sort, whose indices take three times the memory


def trimmed_mean(rows: Rows, f: int) -> Tensor:
    """Return the mean of each column without its f smallest and f largest values, float32 [d]; 0 <= 2 f < n.

    >>> trimmed_mean(torch.tensor([[1.0], [2.0], [4.0], [1e30]]), 1)
    tensor([3.])
    """
    if isinstance(rows, SlicedRows):
        return rows.columnwise(partial(trimmed_mean, f=f))
    if rows.device.type != "cpu" or (f > FEW and len(rows) > _most_rows()):
        return trimmed_mean_torch(rows, f)
    from sparsefed.kernels import column_kernels as kernels

    array = rows.detach().contiguous().numpy()
    out = np.empty(array.shape[1], np.float32)
    if f <= FEW:
        _over_columns(rows, lambda a, b: kernels.trim_few(array, f, a, b, out))
    else:
        _over_columns(rows, lambda a, b: kernels.trim_many(array, array.view(np.int32), f, a, b, out))
    return torch.from_numpy(out)


def median(rows: Rows) -> Tensor:
    """Return the median of each column, float32 [d]; for even n the mean of the middle two. n >= 1.

    >>> median(torch.tensor([[1.0], [2.0], [4.0], [1e30]]))
    tensor([3.])
    """
    return trimmed_mean(rows, (len(rows) - 1) // 2)


def weighted_median(rows: Rows, shares: Tensor) -> Tensor:
    """Return the value of each column with half of the weight on either side, float32 [d]; shares add up to 1.

    Where a value has exactly half of the weight below or at it, the mean of it and the next.

    >>> weighted_median(torch.tensor([[1.0], [2.0], [4.0]]), torch.tensor([0.25, 0.25, 0.5]))
    tensor([3.])
    """
    if isinstance(rows, SlicedRows):
        return rows.columnwise(partial(weighted_median, shares=shares))
    few = max(1, SORTED_NUMBERS // (2 * len(rows)))
    return torch.cat([_weighted_middle(part, shares.double()) for part in torch.split(rows, few, dim=1)])


def _weighted_middle(rows: Tensor, shares: Tensor) -> Tensor:
    values, order = rows.sort(dim=0)
    below = shares[order].cumsum(0)  # with the value itself
    last = len(rows) - 1
    low, high = (below < HALF - ROUNDING).sum(0).clamp(max=last), (below < HALF + ROUNDING).sum(0).clamp(max=last)
    middle = torch.stack([values.gather(0, place[None])[0] for place in (low, high)])
    return middle.mean(dim=0, dtype=torch.float64).to(torch.float32)


def sign_votes(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return each column's sum, float64 [d], and its positive minus its negative count, int32 [d].

    >>> sign_votes(torch.tensor([[1.0, 0.0], [2.0, -1.0], [-5.0, -1.0]]))
    (tensor([-2., -2.], dtype=torch.float64), tensor([ 1, -2], dtype=torch.int32))
    """
    if rows.device.type != "cpu":
        return sign_votes_torch(rows)
    from sparsefed.kernels import column_kernels as kernels

    array = rows.detach().contiguous().numpy()
    total, votes = np.zeros(array.shape[1]), np.zeros(array.shape[1], np.int32)
    _over_columns(rows, lambda a, b: kernels.vote(array, a, b, total, votes))
    return torch.from_numpy(total), torch.from_numpy(votes)


def trimmed_mean_torch(rows: Tensor, f: int) -> Tensor:
    """Compute `trimmed_mean` in plain torch operations, for every device."""
    few = max(1, SORTED_NUMBERS // max(1, len(rows)))
    middles = [part.sort(dim=0).values[f : len(rows) - f] for part in torch.split(rows, few, dim=1)]
    return torch.cat([part.mean(dim=0, dtype=torch.float64) for part in middles]).to(torch.float32)


def sign_votes_torch(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Compute `sign_votes` in plain torch operations, for every device."""
    return rows.sum(0, dtype=torch.float64), rows.sign().sum(0, dtype=torch.float64).to(torch.int32)


def rehearse() -> None:
    """Call each kernel on columns once."""
    for f, n in ((1, 3), (FEW + 1, 2 * FEW + 3)):
        trimmed_mean(torch.ones(n, 1), f)
    sign_votes(torch.ones(1, 1))


def _over_columns(rows: Tensor, work: Callable[[int, int], None]) -> None:
    from sparsefed.kernels.vector_kernels import over_chunks

    d = rows.shape[1]
    parts = max(1, min(torch.get_num_threads(), rows.numel() // MIN_NUMBERS, d))
    over_chunks(lambda _, a, b: work(a, b), list(pairwise([d * part // parts for part in range(parts + 1)])))


def _most_rows() -> int:
    from sparsefed.kernels.column_kernels import MAX_ROWS

    return MAX_ROWS
