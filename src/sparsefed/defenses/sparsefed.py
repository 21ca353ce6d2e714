"""SparseFed (Panda et al. 2022, Algorithm 1): clip, mean, and top-k of an error memory; `topk_memory` is the memory."""

from __future__ import annotations

from typing import Annotated, Unpack

from sparsefed.defenses.combine import mean
from sparsefed.defenses.options import CommonKeywords, RuleParts
from sparsefed.defenses.parameter_types import TopK
from sparsefed.defenses.rule import rule
from sparsefed.defenses.topk_memory import Feedback, Masking, topk_memory


@rule(
    paper="Panda et al. 2022, SparseFed: Mitigating Model Poisoning Attacks in Federated Learning with Sparsification",
    usual={"clip_norm": 5.0},
    audit=True,
    weights=True,
)
def sparsefed(
    k: TopK,
    feedback: Annotated[Feedback | None, "what the memory adds up; by default as the preset says"] = None,
    masking: Annotated[Masking | None, "how momentum forgets what was applied; by default as the preset says"] = None,
    **_: Unpack[CommonKeywords],
) -> RuleParts:
    """Clip, mean, and only the k largest coordinates of an error memory reach the model."""
    return RuleParts(
        mean(),
        lambda frame: topk_memory(k, frame.rho, feedback or frame.reading.feedback, masking or frame.reading.masking),
    )
