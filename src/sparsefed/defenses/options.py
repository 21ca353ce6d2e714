"""The frame around every rule: clipping and pre-aggregation before it, momentum and the learning rate after it.

A rule's builder makes a `Combine`, or `RuleParts` where its server is not plain momentum; `CommonOptions` builds the
pipeline around it:

    clip  ->  pre-aggregation  ->  combine  ->  server (momentum)  ->  learning rate  ->  last
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, TypedDict

from sparsefed.core.signatures import MAY_BE_INFINITE
from sparsefed.core.types import Defense
from sparsefed.defenses.clip import clip_l2, clip_l2_adaptive, clip_l2_per_step, clip_l2_quantile, no_clip
from sparsefed.defenses.combine import after
from sparsefed.defenses.modes import PRESETS, Clip, Mode, Preset, PresetName
from sparsefed.defenses.pipeline import Combine, PerUpdate, Transform, chain, identity, pipeline, require
from sparsefed.defenses.pre_aggregation import pre_aggregations
from sparsefed.defenses.server import momentum, scale_by_lr

REGIME = ("mode", "preset", "local_steps", "local_lr")  # options that depend on how devices train, not on the rule


class CommonKeywords(TypedDict, total=False):
    """The keywords that every rule takes, for editors and type checkers; `CommonOptions` documents them."""

    clip_norm: float | None
    clip: Clip | None
    quantile: float
    clip_rate: float
    pre: str | Sequence[str | Mapping[str, Any]]
    rho: float
    local_steps: float


@dataclass(frozen=True, kw_only=True)
class CommonOptions:
    """The parameters that every rule takes besides its own."""

    clip_norm: Annotated[
        float | None, "L, the l2 norm to which the server clips every update; None: no clipping", MAY_BE_INFINITE
    ] = None
    clip: Annotated[
        Clip | None, "clip to L, L * lr(t), L * lr(t) * local_steps, or a running quantile; else as the preset says"
    ] = None
    quantile: Annotated[float, "clip = 'quantile': the share of updates that should stay unclipped"] = 0.5
    clip_rate: Annotated[float, "clip = 'quantile': how fast the clip norm, which starts at L, follows"] = 0.2
    pre: Annotated[
        str | Sequence[str | Mapping[str, Any]],
        "pre-aggregation: 'nnm', 'bucketing', 'arc', a list of them, or tables with name and parameters",
    ] = ()
    rho: Annotated[float, "server momentum, from 0 (none) to below 1"] = 0.9
    mode: Annotated[Mode, "updates are gradients (uncompressed), or hold the learning rate already (fedavg)"] = (
        "uncompressed"
    )
    preset: Annotated[PresetName, "whose reading of the paper"] = "paper"
    local_steps: Annotated[float, "steps a device takes in a round, in units of its first (fedavg only)"] = 1
    local_lr: Annotated[float | None, "the rate of a device's first step (fedavg only); None: lr(t)"] = None

    @property
    def reading(self) -> Preset:
        return PRESETS[self.preset]

    def around(self, words: RuleParts, f: int | None = None) -> Defense:
        """Return the whole pipeline; pre-aggregations without an `f` of their own take the rule's."""
        self._check()
        combine = after(pre_aggregations(self.pre, f), words.combine)
        server = chain(*self._with_lr(words.server(self)), words.last)
        return pipeline(self._clipping(), combine, server)

    def _check(self) -> None:
        steps, fedavg = self.local_steps, self.mode == "fedavg"
        require(steps >= 1, f"local_steps is {steps}, but a device takes at least one: choose local_steps >= 1")
        require(
            fedavg or steps == 1,
            f"local_steps is {steps}, but in mode 'uncompressed' a device sends one gradient: use mode 'fedavg'",
        )
        require(
            self.clip_norm is not None or self.clip is None,
            f"clip is '{self.clip}', but there is no norm to clip to: set clip_norm too",
        )

    def _clipping(self) -> PerUpdate:
        if self.clip_norm is None:
            return no_clip()
        rule = self.clip or ("fixed" if self.mode == "uncompressed" else self.reading.fedavg_clip)
        rules: Mapping[Clip, Callable[[float], PerUpdate]] = {
            "fixed": clip_l2,
            "adaptive": lambda clip_norm: clip_l2_adaptive(clip_norm, self.local_lr),
            "per_step": lambda clip_norm: clip_l2_per_step(clip_norm, self.local_steps, self.local_lr),
            "quantile": lambda clip_norm: clip_l2_quantile(clip_norm, self.quantile, self.clip_rate),
        }
        return rules[rule](self.clip_norm)

    def _with_lr(self, server: Transform) -> tuple[Transform, ...]:
        if self.mode == "fedavg":
            return (server,)
        return (scale_by_lr(), server) if self.reading.lr == "inside" else (server, scale_by_lr())


def _momentum(frame: CommonOptions) -> Transform:
    return momentum(frame.rho)


@dataclass(frozen=True)
class RuleParts:
    """The parts of the pipeline that belong to the rule itself."""

    combine: Combine
    server: Callable[[CommonOptions], Transform] = _momentum
    last: Transform = field(default_factory=identity)
