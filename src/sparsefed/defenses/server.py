"""What a server does with the one vector: momentum, and the learning rate."""

from __future__ import annotations

import torch
from torch import Tensor

from sparsefed.core.types import Context, State
from sparsefed.defenses.pipeline import Flow, Transform, identity, no_state, require_rho


def momentum(rho: float) -> Transform:
    """R = rho R + u, and R goes on (Algorithm FedAvg in the paper's appendix); rho = 0 keeps no buffer."""
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
    """The vector times lr(t)."""
    return Transform(no_state, lambda state, vector, context: Flow(state, vector * context.lr))
