"""The baselines of all other rules: the plain mean, and the mean of clipped updates."""

from __future__ import annotations

from typing import Unpack

from sparsefed.defenses.combine import mean
from sparsefed.defenses.options import CommonKeywords
from sparsefed.defenses.pipeline import Combine
from sparsefed.defenses.rule import rule

FEDAVG = "McMahan et al. 2017, Communication-Efficient Learning of Deep Networks from Decentralized Data"


@rule(paper=FEDAVG, audit=True, weights=True)
def undefended(**_: Unpack[CommonKeywords]) -> Combine:
    """The plain mean of all finite updates, with server momentum: no defense."""
    return mean()


@rule(
    paper="Sun et al. 2019, Can You Really Backdoor Federated Learning?",
    usual={"clip_norm": 5.0},
    audit=True,
    weights=True,
)
def clipping(**_: Unpack[CommonKeywords]) -> Combine:
    """Every update clipped to an l2 norm, then the mean, with server momentum."""
    return mean()
