"""Global top-k with error memory and momentum: the server side of SparseFed (Algorithm 1, and its appendix box).

    R      <-  rho R + u                     momentum
    W      <-  W + R   (or W + u)            error feedback
    Delta   =  top_k(W)                      ties by lowest index
    W      <-  W - Delta
    R      <-  R with 0 at Delta's k coordinates   (or R - Delta)

The paper's two boxes disagree on the feedback: the main one adds the update (and then R never reaches the model), the
appendix adds the momentum. They also print `R - Delta`, where the authors' code sets R to 0. Both are data here; the
default is what the authors ran.

Each round reports what the certificate and the convergence theorem need of top-k, W being its input:

    omega  =  |W - Delta|_1 / |W|_1          the share of the l1 mass that waits; 0 where there was none
    delta  =  |Delta|_2^2 / |W|_2^2          the contraction: |W - Delta|_2^2 = (1 - delta) |W|_2^2; 1 where W = 0
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

import torch
from torch import Tensor

from sparsefed.core.errors import ConfigError, unknown
from sparsefed.core.types import Context, State
from sparsefed.defenses.pipeline import Flow, Transform, require_rho
from sparsefed.kernels.compilation import warm_up
from sparsefed.kernels.error_feedback import accumulate_topk
from sparsefed.kernels.topk import coordinates, rehearse, require_k

Feedback = Literal["momentum", "update"]
Masking = Literal["zero", "subtract"]


def topk_memory(k: int | str, rho: float, feedback: Feedback = "momentum", masking: Masking = "zero") -> Transform:
    """Return a transform that applies the k largest coordinates of the memory W; the rest waits in it."""
    require_k(k, "SparseFed must update at least one coordinate a round")
    require_rho(rho)
    if feedback not in get_args(Feedback):
        raise ConfigError(unknown("feedback", feedback, get_args(Feedback)))
    if masking not in get_args(Masking):
        raise ConfigError(unknown("masking", masking, get_args(Masking)))

    def init(d: int) -> State:
        coordinates(k, d)
        warm_up(rehearse)  # kernels are compiled here, never inside a round
        return {"momentum": torch.zeros(d), "memory": torch.zeros(d)}

    def step(state: State, vector: Tensor, context: Context) -> Flow:  # noqa: ARG001
        old = {name: tensor.to(vector.device) for name, tensor in state.items()}
        many = coordinates(k, vector.numel())
        sums = accumulate_topk(vector, old["momentum"], old["memory"], many, rho, feedback == "momentum")
        chosen = sums.memory[sums.indices]
        delta = torch.zeros_like(vector).index_copy_(0, sums.indices, chosen)
        # The sums are fresh tensors of this call, so writing to them changes no state.
        sums.memory[sums.indices] = 0
        sums.momentum[sums.indices] = 0 if masking == "zero" else sums.momentum[sums.indices] - chosen
        return Flow({"momentum": sums.momentum, "memory": sums.memory}, delta, _kept(sums.mass, chosen))

    return Transform(init, step)


def _kept(mass: Tensor, chosen: Tensor) -> Mapping[str, float]:
    """Return omega and delta from (|W|_1, |W|_2^2) and the chosen coordinates of W, in float64."""
    parts = chosen.double()
    l1, square = mass.tolist()
    # If all of W is chosen, two sums of the same numbers in another order may differ in the last digit. The
    # order of the arguments keeps a NaN a NaN.
    omega = max(1 - float(parts.abs().sum()) / l1, 0.0) if l1 else 0.0
    return {"omega": omega, "delta": min(float(parts @ parts) / square, 1.0) if square else 1.0}
