"""The rules by name, each a sentence of clip, combine and server; a new rule is a file and a line in `DEFENSES`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from sparsefed.defenses.combine import mean
from sparsefed.defenses.modes import compose, regime
from sparsefed.defenses.parameters import (
    ClipNorm,
    ClipRule,
    FeedbackChoice,
    LocalSteps,
    MaskingChoice,
    ModeName,
    PresetChoice,
    Rho,
    TopK,
)
from sparsefed.defenses.topk_memory import topk_memory
from sparsefed.defenses.transforms import momentum
from sparsefed.errors import ConfigError, unknown
from sparsefed.parameters import check_arguments
from sparsefed.types import Defense


@dataclass(frozen=True)
class Rule:
    """A line of the dict: how to build the rule, whose it is, what it must see of the updates."""

    builder: Callable[..., Defense]
    paper: str
    needs: Literal["norms", "rows"]

    @property
    def summary(self) -> str:
        return (self.builder.__doc__ or "").strip().partition("\n")[0]


def undefended(rho: Rho = 0.9, mode: ModeName = "uncompressed", preset: PresetChoice = "paper") -> Defense:
    """The plain mean of all finite updates, with server momentum: no defense."""
    return compose(mean(), momentum(rho), None, regime(mode, preset))


def clipping(
    clip_norm: ClipNorm = 5.0,
    rho: Rho = 0.9,
    mode: ModeName = "uncompressed",
    preset: PresetChoice = "paper",
    clip: ClipRule = None,
    local_steps: LocalSteps = 1,
) -> Defense:
    """Every update clipped to an l2 norm, then the mean, with server momentum."""
    return compose(mean(), momentum(rho), clip_norm, regime(mode, preset, clip, local_steps))


def sparsefed(
    k: TopK,
    clip_norm: ClipNorm = 5.0,
    rho: Rho = 0.9,
    mode: ModeName = "uncompressed",
    preset: PresetChoice = "paper",
    clip: ClipRule = None,
    local_steps: LocalSteps = 1,
    feedback: FeedbackChoice = None,
    masking: MaskingChoice = None,
) -> Defense:
    """Clip, mean, and only the k largest coordinates of an error memory reach the model."""
    here = regime(mode, preset, clip, local_steps)
    server = topk_memory(k, rho, feedback or here.preset.feedback, masking or here.preset.masking)
    return compose(mean(), server, clip_norm, here)


_FEDAVG = "McMahan et al. 2017, Communication-Efficient Learning of Deep Networks from Decentralized Data"
_CLIPPING = "Sun et al. 2019, Can You Really Backdoor Federated Learning?"
_SPARSEFED = (
    "Panda et al. 2022, SparseFed: Mitigating Model Poisoning Attacks in Federated Learning with Sparsification"
)

DEFENSES: Mapping[str, Rule] = {
    "mean": Rule(undefended, _FEDAVG, "norms"),
    "undefended": Rule(undefended, _FEDAVG, "norms"),
    "clipping": Rule(clipping, _CLIPPING, "norms"),
    "sparsefed": Rule(sparsefed, _SPARSEFED, "norms"),
}


def build(name: str, **params: Any) -> Defense:
    """The named rule with these parameters, or one sentence that says what is wrong with them.

    >>> from sparsefed.types import Context
    >>> build("sparsefed", k=1000, clip_norm=3.0).budget(Context(round=0, lr=0.1))
    3.0
    """
    if name not in DEFENSES:
        raise ConfigError(unknown("defense", name, DEFENSES))
    builder = DEFENSES[name].builder
    check_arguments(name, builder, params)
    return builder(**params)
