"""The k coordinates of largest absolute value: exact, deterministic, with a stated rule for ties.

Ties are broken by the lowest index, and indices come back in ascending order. -0.0 and 0.0 are equal. NaN must be
rejected upstream (the defenses drop such updates); one that gets here counts as larger than infinity, on every device,
so that it is chosen and shows, rather than being lost.
"""

from __future__ import annotations

import math
import re

import torch
from torch import Tensor

from sparsefed.core.errors import ConfigError


def topk_indices(x: Tensor, k: int) -> Tensor:
    """Return the indices (int64 [k], ascending) of the k largest |x_i| of a float32 vector.

    >>> topk_indices(torch.tensor([1.0, -3.0, 0.0, 3.0, 3.0]), 2)
    tensor([1, 3])
    """
    check_k(k, x.numel())
    if x.device.type != "cpu":
        return topk_indices_torch(x, k)
    from sparsefed.kernels import vector_kernels as kernels  # imported here because numba is slow to import

    return torch.from_numpy(kernels.topk(x.detach().contiguous().numpy(), k))


def topk_mask(x: Tensor, k: int) -> Tensor:
    """Return a bool [d] mask of the k largest |x_i|, with exactly k true."""
    mask = torch.zeros(x.shape, dtype=torch.bool, device=x.device)
    mask[topk_indices(x, k)] = True
    return mask


def topk_indices_torch(x: Tensor, k: int) -> Tensor:
    """Compute `topk_indices` in plain torch operations, for every device."""
    magnitude = x.detach().contiguous().view(torch.int32) & 0x7FFFFFFF
    threshold = torch.topk(magnitude, k, sorted=False).values.min()
    above = magnitude > threshold
    ties = torch.nonzero(magnitude == threshold).squeeze(1)[: k - int(above.sum())]
    return torch.cat([torch.nonzero(above).squeeze(1), ties]).sort().values


def coordinates(k: int | str, d: int) -> int:
    """Return k as a number of coordinates: as it is, or a share of the d there are, rounded up.

    >>> coordinates(50, 1000), coordinates("1%", 1000), coordinates("0.15 %", 1000)
    (50, 10, 2)
    """
    if isinstance(k, str):
        k = math.ceil(_percent(k) * d / 100 - 1e-9)
    check_k(k, d)
    return k


def require_k(k: int | str, why: str) -> None:
    """Refuse a k that fits no model: a number below 1, or a text that is no share."""
    if isinstance(k, str):
        _percent(k)
    elif k < 1:
        raise ConfigError(f'k is {k}, but {why}: choose k >= 1, or a share of the coordinates such as "1%"')


def _percent(text: str) -> float:
    written = re.fullmatch(r"\s*(\d{1,3}(?:\.\d{1,12})?)\s*%\s*", text)
    if written is None or not 0 < float(written[1]) <= 100:
        allowed = 'a share of the coordinates such as "1%" or "0.5%", up to "100%"'
        raise ConfigError(f"k is {text[:40]!r}, but must be a whole number from 1 on, or {allowed}")
    return float(written[1])


def check_k(k: int, d: int) -> None:
    """Refuse a k that is not from 1 to d."""
    if k < 1:
        raise ConfigError(f"k is {k}, but top-k keeps at least one coordinate: choose k from 1 to {d}")
    if k > d:
        raise ConfigError(f"k is {k}, but the model has only d = {d} parameters: choose k from 1 to {d}")


def rehearse() -> None:
    """Call each kernel for top-k once."""
    from sparsefed.kernels import vector_kernels as kernels

    x = torch.tensor([1.0, 1.0, 2.0, 2.0]).numpy()
    kernels.topk(x, 1)
    kernels.accumulate_topk(x, x, x, 1, 0.5, True)
