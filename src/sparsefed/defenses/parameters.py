"""The parameters that rules share, each named once, with the line that a person reads."""

from __future__ import annotations

from typing import Annotated

from sparsefed.defenses.modes import Clip, Mode, PresetName
from sparsefed.defenses.topk_memory import Feedback, Masking

TopK = Annotated[int, "coordinates of the model that a round may change"]
ClipNorm = Annotated[float, "L, the l2 norm to which the server clips every update"]
Rho = Annotated[float, "server momentum, from 0 (none) to below 1"]
ModeName = Annotated[Mode, "updates are gradients (uncompressed), or hold the learning rate already (fedavg)"]
PresetChoice = Annotated[PresetName, "whose reading of the paper"]
ClipRule = Annotated[Clip | None, "clip to L, L * lr(t) or L * lr(t) * local_steps; by default as the preset says"]
LocalSteps = Annotated[int, "steps a device takes in a round (fedavg only)"]
FeedbackChoice = Annotated[Feedback | None, "what the memory adds up; by default as the preset says"]
MaskingChoice = Annotated[Masking | None, "how momentum forgets what was applied; by default as the preset says"]
