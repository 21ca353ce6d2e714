"""Model builders: `(shape, classes, **parameters) -> nn.Module`. A new model is one file and a line in `MODELS`.

The shape of an image is (C, H, W). That of a sequence is (T,), and its classes are the vocabulary: text models map
tokens [M, T] to scores [M, T, classes].
"""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from sparsefed.models.batchnorm import without_batchnorm
from sparsefed.models.cnn import cnn
from sparsefed.models.info import ModelInfo, model, model_info
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

# Derived from the facts that each model's own file states.
TEXT_MODELS = frozenset(name for name, builder in MODELS.items() if model_info(builder).text)
USUAL = {name: (info.shape, info.classes, info.whose) for name, info in ((n, model_info(m)) for n, m in MODELS.items())}

__all__ = [
    "MODELS",
    "TEXT_MODELS",
    "USUAL",
    "ModelInfo",
    "cnn",
    "lstm",
    "mlp",
    "model",
    "model_info",
    "resnet9",
    "resnet101_ln",
    "softmax",
    "transformer",
    "without_batchnorm",
]
