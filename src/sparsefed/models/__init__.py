"""Model builders: (shape [C, H, W], classes, **parameters) -> nn.Module. A new model is one file and a line in each of
the two dicts here."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from sparsefed.models.cnn import cnn
from sparsefed.models.mlp import mlp
from sparsefed.models.resnet9 import resnet9
from sparsefed.models.resnet101_ln import resnet101_ln
from sparsefed.models.softmax import softmax

MODELS: dict[str, Callable[..., nn.Module]] = {
    "softmax": softmax,
    "mlp": mlp,
    "cnn": cnn,
    "resnet9": resnet9,
    "resnet101_ln": resnet101_ln,
}

# The examples a model is usually given (shape, classes, whose), for which `sparsefed list` counts its parameters.
USUAL: dict[str, tuple[tuple[int, ...], int, str]] = {
    "softmax": ((1, 28, 28), 10, "Fashion-MNIST"),
    "mlp": ((1, 28, 28), 10, "Fashion-MNIST"),
    "cnn": ((1, 28, 28), 10, "Fashion-MNIST"),
    "resnet9": ((3, 32, 32), 10, "CIFAR-10"),
    "resnet101_ln": ((1, 28, 28), 62, "FEMNIST"),
}

__all__ = ["MODELS", "USUAL", "cnn", "mlp", "resnet9", "resnet101_ln", "softmax"]
