"""CRFL's training half: the server clips the *model* to a norm and adds Gaussian noise to its parameters.

CRFL: Certifiably Robust Federated Learning against Backdoor Attacks (Xie, Chen, Chen, Li 2021), Algorithm 1:

    w        =  theta - delta                                  aggregate
    w       <-  w / max(1, ||w||_2 / model_norm)               clip    (rho_t in the paper)
    theta'   =  w + sigma z,   z ~ N(0, I)                     perturb (sigma_t)

The server subtracts, so the result is `theta - theta'`.

*Departures.* The paper leaves the noise out in the last round, and its authors' code measures and saves each clipped
model before the noise; a prediction is then the vote of many models with fresh noise (randomised smoothing), which is
what the certificate is about. A defense here does not know which round is the last and makes one model: the noise is
in every round's model, also in the last and when it is measured, and there is no vote and no certificate. `model_norm`
and sigma are constant (the authors let rho_t grow by a rule for each data set: min(15, 2 + 0.1 t) for MNIST, with
sigma 0.01). Devices weigh the same unless weights are given. Momentum is the frame's; the paper has none (rho = 0).
"""

from __future__ import annotations

from typing import Annotated, Unpack

import torch
from torch import Tensor

from sparsefed.core.errors import ConfigError
from sparsefed.core.types import Context, State
from sparsefed.defenses.combine import mean
from sparsefed.defenses.dp_noise import normal, require_sigma
from sparsefed.defenses.options import CommonKeywords, RuleParts
from sparsefed.defenses.parameter_types import Sigma
from sparsefed.defenses.pipeline import Flow, Transform, no_state, require
from sparsefed.defenses.rule import rule


@rule(
    paper="Xie et al. 2021, CRFL: Certifiably Robust Federated Learning against Backdoor Attacks",
    needs=("model",),
    weights=True,
)
def crfl(
    model_norm: Annotated[float, "l2 norm to which the server clips the model"],
    sigma: Sigma,
    **_: Unpack[CommonKeywords],
) -> RuleParts:
    """CRFL: the mean; then the new model is clipped to an l2 norm and gets Gaussian noise."""
    return RuleParts(mean(), last=clip_and_perturb(model_norm, sigma))


def clip_and_perturb(model_norm: float, sigma: float) -> Transform:
    """Return delta -> theta - (c (theta - delta) + sigma z), c = min(1, model_norm / ||theta - delta||)."""
    require(model_norm > 0, f"model_norm is {model_norm}, but a model must be allowed some length: choose > 0")
    require_sigma(sigma)

    def step(state: State, vector: Tensor, context: Context) -> Flow:
        theta = _theta(context).to(vector.device)
        length = float(torch.linalg.vector_norm(theta - vector, dtype=torch.float64))
        c = model_norm / length if length > model_norm else 1.0
        # c delta + (1 - c) theta: small updates of a large model would drown in theta - c (theta - delta).
        delta = vector * c if c == 1 else (vector * c).add_(theta, alpha=1 - c)
        if sigma > 0:
            delta = normal(context, "crfl-noise", vector).mul_(-sigma).add_(delta)
        return Flow(state, delta, {"model_length": length, "model_kept": c})

    return Transform(no_state, step)


def _theta(context: Context) -> Tensor:
    if context.theta is None:
        raise ConfigError(
            "crfl clips the model itself, so it must see it: pass theta, aggregate('crfl', ..., theta=...)"
        )
    return context.theta
