"""The modes and presets, as data: where the learning rate enters, and to which norm updates are clipped.

- `uncompressed`: an update is a gradient. It is clipped to L, and the server multiplies by lr(t).
- `fedavg`: an update is `theta_before - theta_after` and holds the learning rate already; the server subtracts as is.

The presets record where the paper and its authors' two public code snapshots differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from sparsefed.defenses.topk_memory import Feedback, Masking

Mode = Literal["uncompressed", "fedavg"]
Clip = Literal["fixed", "adaptive", "per_step", "quantile"]
Placement = Literal["after", "inside"]
PresetName = Literal["paper", "authors-2021-05", "authors-2021-08"]

MODES: tuple[Mode, ...] = get_args(Mode)


@dataclass(frozen=True)
class Preset:
    """One reading of the paper: where the learning rate enters and how fedavg updates are clipped."""

    lr: Placement  # uncompressed mode: after the server's buffers, or inside them
    fedavg_clip: Clip  # L | L * lr(t) | L * lr(t) * local steps
    feedback: Feedback
    masking: Masking


PRESETS: Mapping[str, Preset] = {
    "paper": Preset(lr="after", fedavg_clip="fixed", feedback="momentum", masking="zero"),
    "authors-2021-05": Preset(lr="inside", fedavg_clip="per_step", feedback="momentum", masking="zero"),
    "authors-2021-08": Preset(lr="after", fedavg_clip="adaptive", feedback="momentum", masking="zero"),
}
