"""A probe of a model before anything starts: its loss and gradient on two examples, so that mistakes show early."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sparsefed.config.foreign import located
from sparsefed.core.errors import ConfigError, quoted
from sparsefed.core.inputs import as_tensors, shape_of
from sparsefed.core.target import outputs_for
from sparsefed.core.task import Task, differentiator, evaluator
from sparsefed.core.types import Arrays


def require_trainable(name: str, task: Task, arrays: Arrays, dtype: torch.dtype) -> None:
    """Compute the loss and the gradient of two examples at the initial model.

    Raises:
        ConfigError: if the model of this name does not take the examples, has too few outputs, or its loss or gradient
            is not finite.
    """
    targets = torch.from_numpy(arrays.y_train)
    last = int(targets.argmax()) if targets.dim() == 1 else len(targets) - 1  # the last class needs most outputs
    chosen = torch.tensor([0, last])
    x, y, theta = as_tensors(arrays.x_train)[chosen], targets[chosen], task.initial()
    try:
        with torch.random.fork_rng(devices=[]):
            evaluate = evaluator(task, dtype, whole=True)
            if task.target.kind in ("classes", "tokens"):  # any model has an output for class 0
                _require_outputs(evaluate(theta, x, torch.zeros_like(y)).predictions, outputs_for(arrays))
            evaluation = evaluate(theta, x, y)
            gradient = differentiator(task, dtype)(theta, x, y)
    except Exception as error:  # the model and the loss may be the user's, and raise anything
        what = str(error) if isinstance(error, ConfigError) else f"{located(error)}; change the model"
        raise ConfigError(
            f"model {name} does not fit {arrays.name}, whose examples have the shape "
            f"{quoted(shape_of(arrays.x_train))} and need {outputs_for(arrays)} outputs: {what}"
        ) from error
    if not math.isfinite(evaluation.loss) or not bool(gradient.isfinite().all()):
        raise ConfigError(
            f"model {name} has a loss of {evaluation.loss:g} on two examples of {arrays.name} before any training, and "
            "a gradient that is not finite; look for NaN in the examples, scale them, or mend the loss or the weights"
        )


def _require_outputs(outputs: Tensor, wanted: int) -> None:
    """Refuse a model with fewer outputs than there are classes."""
    shape = list(outputs.shape[1:])
    if not shape or shape[-1] < wanted:
        raise ConfigError(f"its outputs have the shape {shape}; give its last layer {wanted} of them")
