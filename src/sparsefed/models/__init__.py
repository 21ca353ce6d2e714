"""Model builders: (shape, classes, **parameters) -> nn.Module. A new model is one file and a line in each of the two
dicts here.

An image's shape is (C, H, W). A sequence's is (T,), and its classes are the vocabulary: such models map tokens [M, T]
to scores [M, T, classes] and are listed in TEXT_MODELS as well.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from sparsefed.models.cnn import cnn
from sparsefed.models.lstm import lstm
from sparsefed.models.mlp import mlp
from sparsefed.models.resnet9 import resnet9
from sparsefed.models.resnet101_ln import resnet101_ln
from sparsefed.models.softmax import softmax
from sparsefed.models.transformer import transformer

MODELS: dict[str, Callable[..., nn.Module]] = {
    "softmax": softmax,
    "mlp": mlp,
    "cnn": cnn,
    "resnet9": resnet9,
    "resnet101_ln": resnet101_ln,
    "lstm": lstm,
    "transformer": transformer,
}

TEXT_MODELS = frozenset({"lstm", "transformer"})

# The examples a model is usually given (shape, classes, whose), for which `sparsefed list` counts its parameters.
USUAL: dict[str, tuple[tuple[int, ...], int, str]] = {
    "softmax": ((1, 28, 28), 10, "Fashion-MNIST"),
    "mlp": ((1, 28, 28), 10, "Fashion-MNIST"),
    "cnn": ((1, 28, 28), 10, "Fashion-MNIST"),
    "resnet9": ((3, 32, 32), 10, "CIFAR-10"),
    "resnet101_ln": ((1, 28, 28), 62, "FEMNIST"),
    "lstm": ((10,), 10_000, "Reddit"),
    "transformer": ((10,), 10_000, "Reddit"),
}

__all__ = ["MODELS", "TEXT_MODELS", "USUAL", "cnn", "lstm", "mlp", "resnet9", "resnet101_ln", "softmax", "transformer"]
