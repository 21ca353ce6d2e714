"""l2 clipping of each update, enforced by the server whatever a device claims (Sun et al. 2019).

    u_i  <-  u_i * min(1, B(t) / ||u_i||_2)

The budget B(t) is L (SparseFed, Algorithm 1), or L times the learning rate ("adaptive" in the paper), or L times the
learning rate and the number of local steps (what per-step clipping on the device amounts to). The learning rate is that
of a device's steps: lr(t), unless devices have a rate of their own.

*Departures.* The paper and its code clip on the device, on its honour; here the device may, and the server does. With
different numbers of examples devices take different numbers of steps, and the server allows all of them the steps of
the one with most, so that no device that clips its own gradients is cut.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from sparsefed.core.types import Context, State
from sparsefed.defenses.pipeline import PerUpdate, require, require_clip_norm, scaled_budget

LARGEST_LOG = 700.0  # of the clip norm's scale: its exponential is a float still


def no_clip() -> PerUpdate:
    """Return a clipping that leaves every finite update as it is."""
    return _clip(lambda context: math.inf)  # noqa: ARG005


def clip_l2(clip_norm: float) -> PerUpdate:
    """Return a clipping to a constant budget, B(t) = L."""
    require_clip_norm(clip_norm)
    return _clip(lambda context: clip_norm)  # noqa: ARG005


def clip_l2_adaptive(clip_norm: float, local_lr: float | None = None) -> PerUpdate:
    """Return a clipping whose budget follows the devices' learning rate, B(t) = L * lr(t), or L * local_lr."""
    return clip_l2_per_step(clip_norm, 1, local_lr)


def clip_l2_per_step(clip_norm: float, local_steps: float, local_lr: float | None = None) -> PerUpdate:
    """Return a clipping to B(t) = L * lr(t) * local_steps, what clipping each local gradient to L amounts to.

    Args:
        clip_norm: L.
        local_steps: the steps of a device, each counted with its share of the first step's rate.
        local_lr: the rate of a device's first step, if it is not lr(t).
    """
    require_clip_norm(clip_norm)
    require(local_steps >= 1, f"local_steps is {local_steps}, but a device takes at least one: choose local_steps >= 1")
    return _clip(lambda context: scaled_budget(clip_norm, (context.lr if local_lr is None else local_lr) * local_steps))


def clip_l2_quantile(clip_norm: float, quantile: float, rate: float) -> PerUpdate:
    """Return a clipping whose budget follows a quantile of the norms.

    B(t+1) = B(t) exp(-rate (b - quantile)), B(0) = L, b the share of updates no longer than B(t): Differentially
    Private Learning with Adaptive Clipping (Andrew et al. 2021, Algorithm 1, geometric update).

    *Departures.* The share b is exact: no noise is added to it, so it is not private by itself.
    """
    require_clip_norm(clip_norm)
    require(math.isfinite(clip_norm), "clip_norm is inf, but a clip norm that follows a quantile starts at a number")
    require(0 < quantile < 1, f"quantile is {quantile}, but it is a share of the updates: choose 0 < quantile < 1")
    require(rate > 0, f"clip_rate is {rate}, but the clip norm must follow: choose clip_rate > 0 (the paper has 0.2)")

    def budget(state: State, context: Context) -> float:  # noqa: ARG001
        return clip_norm * math.exp(float(state["log_scale"]))  # finite: see `learn`

    def learn(state: State, norms: Sequence[float], context: Context) -> State:
        limit = budget(state, context)
        below = sum(norm <= limit for norm in norms) / len(norms)
        return {"log_scale": (state["log_scale"] - rate * (below - quantile)).clamp(-LARGEST_LOG, LARGEST_LOG)}

    return PerUpdate(budget, lambda d: {"log_scale": torch.zeros(())}, learn)  # noqa: ARG005


def _clip(budget: Callable[[Context], float]) -> PerUpdate:
    return PerUpdate(lambda state, context: budget(context))  # noqa: ARG005
