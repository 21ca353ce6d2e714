"""Model builders: (shape [C, H, W], classes, **parameters) -> nn.Module. A new model is one file and one line here."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from sparsefed.models.cnn import cnn
from sparsefed.models.resnet9 import resnet9
from sparsefed.models.softmax import softmax

MODELS: dict[str, Callable[..., nn.Module]] = {
    "softmax": softmax,
    "cnn": cnn,
    "resnet9": resnet9,
}

__all__ = ["MODELS", "cnn", "resnet9", "softmax"]
