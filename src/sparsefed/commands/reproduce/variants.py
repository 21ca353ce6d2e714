"""SparseFed as public code of others has it, each with the step by which it differs from the paper.

Numbers for "SparseFed" in later papers come from such code. What they share with the paper is that few coordinates are
applied; configs refer to them by `sparsefed.commands.reproduce.variants:NAME`. Two more need no rule of their own:
without momentum (`rho = 0`), and crafted updates put in after the clip (`clip_norm = inf`, where honest updates are
shorter than L anyway).
"""

from __future__ import annotations

from typing import Annotated, Unpack

import torch
from torch import Tensor

from sparsefed.core.types import Context, State
from sparsefed.defenses.combine import mean
from sparsefed.defenses.options import CommonKeywords, RuleParts
from sparsefed.defenses.parameter_types import TopK
from sparsefed.defenses.pipeline import Flow, Transform, chain, no_state, require
from sparsefed.defenses.rule import rule
from sparsefed.defenses.server import momentum
from sparsefed.defenses.topk_memory import topk_memory
from sparsefed.kernels.topk import topk_mask

Share = Annotated[float, "of the coordinates that reach the model"]
PAPER = "Panda et al. 2022, SparseFed, as implemented by others"


@rule(paper=PAPER, usual={"clip_norm": 5.0}, weights=True)
def unmasked(k: TopK, **_: Unpack[CommonKeywords]) -> RuleParts:
    """Clip, mean and top-k of an error memory, but momentum keeps what was applied and adds it again."""
    return RuleParts(mean(), lambda frame: chain(momentum(frame.rho), topk_memory(k, 0.0, "update")))


@rule(paper=PAPER, usual={"clip_norm": 5.0}, weights=True)
def largest_share(share: Share = 0.7, **_: Unpack[CommonKeywords]) -> RuleParts:
    """Clip, mean, and the largest coordinates of the round's own mean; what is left out is forgotten."""
    return RuleParts(mean(), lambda frame: chain(momentum(frame.rho), kept(share, largest=True)))


@rule(paper=PAPER, usual={"clip_norm": 5.0}, weights=True)
def smallest_share(share: Share = 0.95, **_: Unpack[CommonKeywords]) -> RuleParts:
    """Clip, mean, and the smallest coordinates of the round's own mean: the sign of the comparison is wrong."""
    return RuleParts(mean(), lambda frame: chain(momentum(frame.rho), kept(share, largest=False)))


def kept(share: float, *, largest: bool) -> Transform:
    """Return a transform that keeps a share of the coordinates, the largest or the smallest ones in size."""
    require(0 < share <= 1, f"share is {share}, but some coordinates must reach the model: choose above 0 to 1")

    def step(state: State, vector: Tensor, context: Context) -> Flow:  # noqa: ARG001
        d = len(vector)
        count = max(1, round(share * d))
        if count == d:
            return Flow(state, vector)
        mask = topk_mask(vector, count) if largest else ~topk_mask(vector, d - count)
        return Flow(state, torch.where(mask, vector, 0.0))

    return Transform(no_state, step)
