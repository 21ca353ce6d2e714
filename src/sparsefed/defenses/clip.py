"""l2 clipping of each update, enforced by the server whatever a device claims (Sun et al. 2019).

    u_i  <-  u_i * min(1, B(t) / ||u_i||_2)

The budget B(t) is L (SparseFed, Algorithm 1), or L times the learning rate ("adaptive" in the paper), or L times the
learning rate and the number of local steps (what per-step clipping on the device amounts to).

*Departures.* The paper and its code clip on the device, on its honour; here the device may, and the server does.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from sparsefed.defenses.base import PerUpdate, require, require_clip_norm, scaled_budget
from sparsefed.types import Context


def no_clip() -> PerUpdate:
    """Every finite update as it came."""
    return PerUpdate(lambda norms, context: torch.ones_like(norms), lambda context: math.inf)  # noqa: ARG005


def clip_l2(clip_norm: float) -> PerUpdate:
    """B(t) = L."""
    require_clip_norm(clip_norm)
    return _clip(lambda context: clip_norm)  # noqa: ARG005


def clip_l2_adaptive(clip_norm: float) -> PerUpdate:
    """B(t) = L * lr(t)."""
    require_clip_norm(clip_norm)
    return _clip(lambda context: scaled_budget(clip_norm, context.lr))


def clip_l2_per_step(clip_norm: float, local_steps: int) -> PerUpdate:
    """B(t) = L * lr(t) * local_steps: the longest update of a device that clips each of its local gradients to L."""
    require_clip_norm(clip_norm)
    require(local_steps >= 1, f"local_steps is {local_steps}, but a device takes at least one: choose local_steps >= 1")
    return _clip(lambda context: scaled_budget(clip_norm, context.lr * local_steps))


def _clip(budget: Callable[[Context], float]) -> PerUpdate:
    def factors(norms: Tensor, context: Context) -> Tensor:
        limit = budget(context)
        return torch.where(norms > limit, limit / norms, 1.0)  # never 0 / 0: a norm above the limit is not 0

    return PerUpdate(factors, budget)
