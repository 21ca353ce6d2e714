"""Clip and Gaussian noise, as in differentially private training (McMahan et al. 2018; as a defense, Sun et al. 2019).

    u  =  (1/n) sum_i clip(u_i)  +  sigma z,     z ~ N(0, I)            placement "mean"
    delta  =  lr R  +  sigma z                                          placement "update"

"mean" puts the noise on the mean of the clipped updates, before momentum, top-k and learning rate. All that follows is
post-processing, so the models have the guarantee of `sparsefed.theory.privacy`. "update" puts it on the vector that is
subtracted from the model, after everything else: what SparseFed's authors wrote. With momentum or top-k under it there
is no guarantee, because the noise never touches what those two remember.

What they ran is another matter: in FedAvg mode, and in the snapshot of May 2021 uncompressed too, that vector and the
momentum buffer are the same memory in their code, so that the noise stays in the momentum. That is "mean", and with
momentum 0.9 it is up to ten times as much in the model.

SparseFed's text has two strengths: `SIGMA_TABLE` where it compares the accuracy of all defenses, and `SIGMA_FIGURES`
(variance 0.001, attributed to Sun et al.) where it plots noise against SparseFed.

*Departures.* McMahan et al. draw each device by itself and divide by the expected number of them; here a round has a
stated number, and sigma is per coordinate of the mean over those updates that could be used.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Annotated, Literal, Unpack, get_args

import numpy as np
import torch
from torch import Tensor

from sparsefed.core.errors import ConfigError, unknown
from sparsefed.core.rng import rng
from sparsefed.core.types import Block, Context, State
from sparsefed.defenses.combine import mean
from sparsefed.defenses.options import CommonKeywords, CommonOptions, RuleParts
from sparsefed.defenses.parameter_types import Sigma
from sparsefed.defenses.pipeline import Combine, Flow, Transform, identity, no_state, require
from sparsefed.defenses.rule import rule
from sparsefed.defenses.server import momentum
from sparsefed.defenses.topk_memory import topk_memory

NoisePlacement = Literal["mean", "update"]

SIGMA_TABLE = 0.025
SIGMA_FIGURES = math.sqrt(0.001)


@rule(paper="Sun et al. 2019, Can You Really Backdoor Federated Learning?", usual={"clip_norm": 5.0}, weights=True)
def dp_noise(
    sigma: Sigma,
    placement: Annotated[NoisePlacement, "noise on the mean of the updates, or on the vector that is applied"] = "mean",
    k: Annotated[int | None, "top-k with memory as in sparsefed, beside the noise; None: dense"] = None,
    **_: Unpack[CommonKeywords],
) -> RuleParts:
    """Clip, mean, and Gaussian noise on every coordinate."""
    if placement not in get_args(NoisePlacement):
        raise ConfigError(unknown("placement", placement, get_args(NoisePlacement)))
    noise = gaussian_noise(sigma, "dp-noise")

    def server(frame: CommonOptions) -> Transform:
        if k is None:
            return momentum(frame.rho)
        return topk_memory(k, frame.rho, frame.reading.feedback, frame.reading.masking)

    if placement == "mean":
        return RuleParts(_then(mean(), noise), server)
    return RuleParts(mean(), server, last=noise)


def gaussian_noise(sigma: float, purpose: str) -> Transform:
    """Return a transform that adds sigma z, z ~ N(0, I) drawn afresh each round; sigma = 0 draws nothing."""
    require_sigma(sigma)
    if sigma == 0:
        return identity()
    return Transform(
        no_state, lambda state, vector, context: Flow(state, normal(context, purpose, vector).mul_(sigma).add_(vector))
    )


def normal(context: Context, purpose: str, like: Tensor) -> Tensor:
    """Draw z ~ N(0, I) of this round, a fresh float32 vector as long as `like` and on its device."""
    drawn = rng(context.seed, purpose, context.round).standard_normal(len(like), dtype=np.float32)
    return torch.from_numpy(drawn).to(like.device)


def require_sigma(sigma: float) -> None:
    require(
        0 <= sigma < math.inf,
        f"sigma is {sigma}, but it is the standard deviation of noise: choose a number, 0 (none) or larger",
    )


def _then(combine: Combine, transform: Transform) -> Combine:
    """Return a `Combine` whose result passes through a transform that keeps no state."""

    def step(state: State, blocks: Iterable[Block], context: Context) -> Flow:
        combined = combine.step(state, blocks, context)
        return combined._replace(vector=transform.step({}, combined.vector, context).vector)

    return replace(combine, step=step)
