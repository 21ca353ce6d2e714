"""Momentum, error memory and top-k of the memory in one step: the heart of SparseFed, without its masking."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from sparsefed.kernels.topk import check_k, topk_indices_torch


class Accumulated(NamedTuple):
    """The server's vectors after adding a round's update: fresh tensors, before masking."""

    momentum: Tensor  # float32 [d], rho R + u
    memory: Tensor  # float32 [d], W + (the momentum, or u)
    indices: Tensor  # int64 [k], ascending: the top k of the memory
    mass: Tensor  # float64 [2], |memory|_1 and |memory|_2^2


def accumulate_topk(
    update: Tensor, momentum: Tensor, memory: Tensor, k: int, rho: float, through_momentum: bool
) -> Accumulated:
    """Add an update to momentum and memory, and find the top k of the memory.

    R = rho R + u; W = W + R, or W + u if not `through_momentum`; the k largest |W|, ties by lowest index.
    """
    check_k(k, update.numel())
    if update.device.type != "cpu":
        return accumulate_topk_torch(update, momentum, memory, k, rho, through_momentum)
    from sparsefed.kernels import vector_kernels as kernels

    u, r, w = (vector.detach().contiguous().numpy() for vector in (update, momentum, memory))
    sums = kernels.accumulate_topk(u, r, w, k, rho, through_momentum)
    return Accumulated(*map(torch.from_numpy, sums))


def accumulate_topk_torch(
    update: Tensor, momentum: Tensor, memory: Tensor, k: int, rho: float, through_momentum: bool
) -> Accumulated:
    """Compute `accumulate_topk` in plain torch operations: bit for bit, the mass to a part in 10^12."""
    # Two operations rather than add(alpha=rho), which may round once instead of twice.
    new_momentum = momentum * rho + update
    new_memory = memory + (new_momentum if through_momentum else update)
    lengths = [torch.linalg.vector_norm(new_memory, order, dtype=torch.float64) for order in (1, 2)]
    mass = torch.stack([lengths[0], lengths[1] ** 2])
    return Accumulated(new_momentum, new_memory, topk_indices_torch(new_memory, k), mass)
