"""What a task's targets are, and what follows from it: the default loss, the metrics that fit, and success.

    classes  int64 [N], one of several classes; the model has an output for each
    binary   int64 [N], 0 or 1; one output, the log-odds of 1
    labels   int64 [N, L], each 0 or 1 (or IGNORED); an output for each
    values   float32 [N] or [N, K], numbers to predict (regression); an output for each
    tokens   int64 [N, T], the token that follows each one, IGNORED where none does; outputs [N, T, vocabulary]

Everything else asks this file instead of assuming classes; how well a model does is in `data.scores`. Knows no models,
attacks or runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from sparsefed.core.errors import ConfigError
from sparsefed.core.types import IGNORED, Arrays


@dataclass(frozen=True)
class Target:
    """One kind of targets: its default loss, its metrics, and what a model's outputs predict."""

    kind: str
    title: str  # in a sentence: "a task with ..."
    losses: Callable[[Tensor, Tensor], Tensor]  # outputs, y -> the loss of each example [M]
    predict: Callable[[Tensor], Tensor]  # outputs -> predictions, shaped like the targets
    metric: str  # the default score
    metrics: tuple[str, ...]  # those that have a meaning

    @property
    def has_classes(self) -> bool:
        """Whether an example has one class."""
        return self.kind in ("classes", "binary")

    def success(self, predictions: Tensor, wanted: Tensor, tolerance: float | None = None) -> float:
        """Return the share of the wanted targets that are predicted; numbers within a tolerance, all of an example's.

        >>> TARGETS["values"].success(torch.tensor([1.0, 2.0]), torch.tensor([1.4, 4.0]), tolerance=0.5)
        0.5
        """
        if self.kind == "values":
            near = (matched(predictions, wanted) - wanted).abs() <= (tolerance or 0.0)
            return float(near.flatten(1).all(1).double().mean() if near.dim() > 1 else near.double().mean())
        return accuracy(predictions, wanted)


def target_of(arrays: Arrays) -> Target:
    """Return what the targets of a data set are."""
    return TARGETS[arrays.target_kind]


def outputs_for(arrays: Arrays) -> int:
    """Return the number of outputs of a model: of an example, or of a token."""
    kind, shape = arrays.target_kind, arrays.y_train.shape[1:]
    if kind == "values":
        return int(shape[0]) if shape else 1
    return 1 if kind == "binary" else len(arrays.classes)


def matched(outputs: Tensor, y: Tensor) -> Tensor:
    """Return outputs in the shape of the targets: one output and no axis for it are the same.

    Raises:
        ConfigError: if the model has another number of outputs than there are targets.
    """
    if outputs.numel() != y.numel():
        raise ConfigError(
            f"the model's outputs have the shape {list(outputs.shape[1:])} for each example, but the targets have "
            f"{list(y.shape[1:])}; give the model one output for each target"
        )
    return outputs.reshape(y.shape)


def accuracy(predictions: Tensor, y: Tensor) -> float:
    """Return the share of the targets that are predicted, without those that are IGNORED; NaN if there are none."""
    counted = y != IGNORED
    right = predictions.reshape(y.shape) == y
    return float(right[counted].double().mean()) if bool(counted.any()) else float("nan")


# --- losses ----------------------------------------------------------------------------------------------------------


def entropies(outputs: Tensor, y: Tensor) -> Tensor:
    """Return the cross-entropy of each target, shaped like y; 0 where the target is IGNORED."""
    flat = outputs.float().flatten(0, y.dim() - 1)
    return F.cross_entropy(flat, y.flatten(), reduction="none", ignore_index=IGNORED).view(y.shape)


def cross_entropy(outputs: Tensor, y: Tensor) -> Tensor:
    """Return the cross-entropy of each example [M]: with several targets (tokens), the mean of those not IGNORED."""
    each = entropies(outputs, y)
    return each if y.dim() == 1 else each.sum(1) / (y != IGNORED).sum(1).clamp(min=1)


def logistic(outputs: Tensor, y: Tensor) -> Tensor:
    """Return the binary cross-entropy of each example [M], the mean over its labels that are not IGNORED."""
    known = y != IGNORED
    each = F.binary_cross_entropy_with_logits(matched(outputs.float(), y), y.clamp(min=0).float(), reduction="none")
    each = torch.where(known, each, 0.0)
    return each if y.dim() == 1 else each.sum(1) / known.sum(1).clamp(min=1)


def squared(outputs: Tensor, y: Tensor) -> Tensor:
    """Return the squared error of each example [M], the mean over its values."""
    each = (matched(outputs.float(), y) - y) ** 2
    return each if y.dim() == 1 else each.flatten(1).mean(1)


def _likeliest(outputs: Tensor) -> Tensor:
    return outputs.argmax(-1)


def _positive(outputs: Tensor) -> Tensor:
    return (outputs > 0).long()


def _value(outputs: Tensor) -> Tensor:
    return outputs


RANKED = ("accuracy", "balanced_accuracy", "auc", "rare_recall", "f1")
ERRORS = ("mean_squared_error", "mean_absolute_error")
TARGETS: Mapping[str, Target] = {
    target.kind: target
    for target in (
        Target("classes", "one class for each example", cross_entropy, _likeliest, "accuracy", RANKED),
        Target("binary", "a yes or no for each example", logistic, _positive, "auc", RANKED),
        Target("labels", "several labels for each example", logistic, _positive, "auc", RANKED),
        Target("values", "numbers to predict", squared, _value, "mean_squared_error", ERRORS),
        Target("tokens", "a token after each token", cross_entropy, _likeliest, "accuracy", ("accuracy", "perplexity")),
    )
}
