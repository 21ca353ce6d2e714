"""The server's transforms of the combined vector: momentum, and the learning rate."""

from __future__ import annotations

import torch
from torch import Tensor

from sparsefed.core.types import Context, State
from sparsefed.defenses.pipeline import Flow, Transform, identity, no_state, require_rho


def momentum(rho: float) -> Transform:
    """Return server momentum: R = rho R + u, passed on (the appendix's Algorithm FedAvg); rho = 0 keeps no buffer."""
    require_rho(rho)
    if rho == 0:
        return identity()

    def init(d: int) -> State:
        return {"momentum": torch.zeros(d)}

    def step(state: State, vector: Tensor, context: Context) -> Flow:  # noqa: ARG001
        moved = state["momentum"].to(vector.device) * rho + vector
        return Flow({"momentum": moved}, moved)

    return Transform(init, step)


def scale_by_lr() -> Transform:
    """Return the transform that multiplies the vector by lr(t)."""
    return Transform(no_state, lambda state, vector, context: Flow(state, vector * context.lr))
