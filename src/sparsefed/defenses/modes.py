"""Where the learning rate goes and what is clipped to which norm: two modes, three presets, as data.

- `uncompressed`: an update is a gradient. It is clipped to L, and the server multiplies by lr(t).
- `fedavg`: an update is `theta_before - theta_after` and holds the learning rate already; the server subtracts as is.

The presets say what the paper and its authors' two public code snapshots do where they differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from sparsefed.defenses.base import Combine, PerUpdate, Transform, chain, pipeline, require
from sparsefed.defenses.clip import clip_l2, clip_l2_adaptive, clip_l2_per_step, no_clip
from sparsefed.defenses.topk_memory import Feedback, Masking
from sparsefed.defenses.transforms import scale_by_lr
from sparsefed.errors import ConfigError, unknown
from sparsefed.types import Defense

Mode = Literal["uncompressed", "fedavg"]
Clip = Literal["fixed", "adaptive", "per_step"]
Placement = Literal["after", "inside"]
PresetName = Literal["paper", "authors-2021-05", "authors-2021-08"]

MODES: tuple[Mode, ...] = get_args(Mode)
CLIPS: tuple[Clip, ...] = get_args(Clip)


@dataclass(frozen=True)
class Preset:
    """One reading of the paper."""

    lr: Placement  # uncompressed mode: after the server's buffers, or inside them
    fedavg_clip: Clip  # L | L * lr(t) | L * lr(t) * local steps
    feedback: Feedback
    masking: Masking


PRESETS: Mapping[str, Preset] = {
    "paper": Preset(lr="after", fedavg_clip="fixed", feedback="momentum", masking="zero"),
    "authors-2021-05": Preset(lr="inside", fedavg_clip="per_step", feedback="momentum", masking="zero"),
    "authors-2021-08": Preset(lr="after", fedavg_clip="adaptive", feedback="momentum", masking="zero"),
}


@dataclass(frozen=True)
class Regime:
    """A mode under a preset, with the clip rule that results."""

    mode: Mode
    preset: Preset
    clip: Clip
    local_steps: int


def regime(mode: Mode, preset: str, clip: Clip | None = None, local_steps: int = 1) -> Regime:
    """The regime of these names; without `clip`, gradients are clipped to L and FedAvg updates as the preset says."""
    if mode not in MODES:
        raise ConfigError(unknown("mode", mode, MODES))
    if preset not in PRESETS:
        raise ConfigError(unknown("preset", preset, PRESETS))
    if clip is not None and clip not in CLIPS:
        raise ConfigError(unknown("clip", clip, CLIPS))
    require(local_steps >= 1, f"local_steps is {local_steps}, but a device takes at least one: choose local_steps >= 1")
    require(
        mode == "fedavg" or local_steps == 1,
        f"local_steps is {local_steps}, but in mode 'uncompressed' a device sends one gradient: use mode 'fedavg'",
    )
    default: Clip = "fixed" if mode == "uncompressed" else PRESETS[preset].fedavg_clip
    return Regime(mode, PRESETS[preset], clip or default, local_steps)


def compose(combine: Combine, server: Transform, clip_norm: float | None, regime: Regime) -> Defense:
    """A rule as a sentence: clip as the regime says (or not at all), combine, and place the learning rate."""
    return pipeline(_clipping(clip_norm, regime), combine, _with_lr(server, regime))


def _clipping(clip_norm: float | None, regime: Regime) -> PerUpdate:
    if clip_norm is None:
        return no_clip()
    rules: Mapping[Clip, PerUpdate] = {
        "fixed": clip_l2(clip_norm),
        "adaptive": clip_l2_adaptive(clip_norm),
        "per_step": clip_l2_per_step(clip_norm, regime.local_steps),
    }
    return rules[regime.clip]


def _with_lr(server: Transform, regime: Regime) -> Transform:
    if regime.mode == "fedavg":
        return chain(server)
    return chain(scale_by_lr(), server) if regime.preset.lr == "inside" else chain(server, scale_by_lr())
