"""Models as Flower's records: named arrays to tensors and back, without a copy more than needed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from flwr.app import Array, ArrayRecord, MetricRecord
from torch import Tensor

from sparsefed.core.errors import ConfigError


def arrays_of(record: ArrayRecord) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays of a record by name.

    Raises:
        ConfigError: if one is not an array of numbers.
    """
    arrays = {}
    for name, array in record.items():
        try:
            arrays[name] = array.numpy()
        except (TypeError, ValueError, EOFError) as error:
            raise ConfigError(f"array '{name}' of the initial model cannot be read ({error})") from error
    if not arrays:
        raise ConfigError("the initial model has no arrays; give ArrayRecord(model.state_dict())")
    return arrays


def tensors_of(arrays: Mapping[str, npt.NDArray[Any]]) -> dict[str, Tensor]:
    """Return arrays as tensors that own their memory."""
    return {name: torch.from_numpy(np.array(array)) for name, array in arrays.items()}


def record_of_model(parts: Mapping[str, Tensor]) -> ArrayRecord:
    """Return a model's parts as a record."""
    return ArrayRecord({name: Array(part.detach().cpu().numpy()) for name, part in parts.items()})


def metric_record(metrics: Mapping[str, Any]) -> MetricRecord:
    """Return the finite numbers among some metrics as a record."""
    return MetricRecord(
        {
            name: value
            for name, value in metrics.items()
            if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
        }
    )
