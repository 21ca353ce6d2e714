"""The servers that the theory covers, and how they look to it; others are refused, each with its reason.

Covered: the mean of updates that the server clips, applied as it is (`clipping`) or through global top-k with an error
memory (`sparsefed`), with server momentum or without, where every honest device takes one gradient step.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from sparsefed.config import Config
from sparsefed.config.lookup import regime, rule
from sparsefed.core.engine import one_step
from sparsefed.core.errors import ConfigError
from sparsefed.core.round import RoundSetup
from sparsefed.defenses import CommonOptions

COVERED = "covered are sparsefed and clipping (a mean of clipped updates, one local step a device)"
MEANS = ("clipping", "mean", "undefended")
WHY = {
    "fetchsgd": "it recovers what it applies from a sketch, which is not top-k",
    "dp_noise": "its noise is not bounded",
    "crfl": "it adds noise to the model and clips it, which the theory leaves out",
    "local_topk": "each device keeps a memory of its own, and the theory has one, at the server",
}
NOT_A_MEAN = "it is not the mean of clipped updates"


class CoveredServer(NamedTuple):
    """A covered server: how it applies the mean of the clipped updates."""

    k: int | None  # None: it applies every coordinate
    rho: float  # of the momentum that reaches the model
    inside: bool  # the learning rate is already in what the server receives or remembers


def server_of(config: Config) -> CoveredServer:
    """Return the server of a config that the theory covers, or raise an error with the reason."""
    name, params = config.defense.name, _parameters(config)
    if name not in (*MEANS, "sparsefed"):
        _refuse(f"defense {name}", WHY.get(name, NOT_A_MEAN))
    frame = CommonOptions(**{key: value for key, value in params.items() if key in CommonOptions.__dataclass_fields__})
    if frame.pre:
        _refuse(f"pre-aggregation ({frame.pre})", "what is averaged then is not the updates that were clipped")
    if frame.clip_norm is None or not math.isfinite(frame.clip_norm):
        _refuse(f"defense {name} without a clip norm", "one update can be as long as it likes, so nothing is bounded")
    if frame.clip == "quantile":
        _refuse("clip = 'quantile'", "the clip norm depends on what attackers send")
    inside = config.train.mode == "fedavg" or frame.reading.lr == "inside"
    if name != "sparsefed":
        return CoveredServer(None, frame.rho, inside)
    feedback = params.get("feedback") or frame.reading.feedback
    masking = params.get("masking") or frame.reading.masking
    rho = frame.rho if feedback == "momentum" else 0.0  # the update is remembered, and momentum has no effect
    if rho > 0 and masking == "subtract":
        _refuse("masking = 'subtract'", "what it leaves in the momentum is not bounded by what the proof uses")
    return CoveredServer(int(params["k"]), rho, inside)


def _parameters(config: Config) -> dict[str, Any]:
    defense = config.defense
    usual = rule(defense.name).usual
    return {**usual, **regime(config), **defense.params}


def refuse_several_steps(setup: RoundSetup) -> None:
    """Refuse devices with several local steps; how many each takes depends on how much data it has."""
    sizes = np.diff(setup.federation.partition.offsets)
    if setup.device_lr and not one_step(setup.plan, sizes):
        _refuse("several local steps", "the bound on how an honest update changes with the model is for one gradient")


def _refuse(what: str, why: str) -> None:
    raise ConfigError(f"{what} has no certificate: {why}; {COVERED}")
