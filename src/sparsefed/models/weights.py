"""Initial weights from a file, to train on from a pretrained model; only safetensors, which hold numbers alone.

A file saved by torch (`.pt`, `.pth`) is a pickle, which runs code when it is loaded; it has to be converted first.
"""

from __future__ import annotations

import copy
import functools
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from sparsefed.core.errors import ConfigError, quoted

HOW_TO_SAVE = "save them by safetensors.torch.save_file(module.state_dict(), path)"
NAMED = 3  # names that a message lists at most


@dataclass(frozen=True, eq=False)
class StateDict:
    """Weights by the names of a module's `state_dict`, as a value of its own so that a config can refer to it."""

    tensors: Mapping[str, Tensor]


def read_weights(path: str | Path) -> StateDict:
    """Read the weights in a safetensors file.

    Raises:
        ConfigError: There is no such file, or it is not in this format.
    """
    _require_file(Path(path))
    try:
        return StateDict(load_file(path))
    except (SafetensorError, OSError, ValueError) as error:
        raise ConfigError(
            f"model.weights: {quoted(str(path))} is not a safetensors file ({error}); {HOW_TO_SAVE}"
        ) from error


def checksum(path: str | Path) -> str:
    """Return the SHA-256 of a file of weights, in hex; a file that has not changed is read once per process."""
    _require_file(Path(path))
    status = Path(path).stat()
    return _checksum(Path(path).resolve(), status.st_mtime_ns, status.st_size)


@functools.cache
def _checksum(path: Path, _changed: int, _size: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _require_file(path: Path) -> None:
    if not path.is_file():
        raise ConfigError(
            f"model.weights: there is no file {quoted(str(path), longest=300)}; give the path of a safetensors file, "
            "relative to the folder in which the command is run"
        )


def with_weights(module: nn.Module, weights: StateDict) -> nn.Module:
    """Return a copy of a module with these weights; frozen parameters stay frozen.

    Raises:
        ConfigError: A name is missing or unknown, or a shape, a type or a number does not fit.
    """
    if not isinstance(weights.tensors, Mapping):
        raise ConfigError(f"weights are a {type(weights.tensors).__name__}; give a state dict or the path of a file")
    warm = copy.deepcopy(module)
    places: dict[str, Tensor] = warm.state_dict()
    _require_same_names(places, weights.tensors)
    with torch.no_grad():
        for name, tensor in weights.tensors.items():
            _require_fit(name, places[name], tensor)
            places[name].copy_(tensor)
    return warm


def _require_same_names(places: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> None:
    given = {places[name].data_ptr() for name in tensors if name in places}  # tied weights are saved once
    missing = [name for name in places if name not in tensors and places[name].data_ptr() not in given]
    strange = [name for name in tensors if name not in places]
    if missing or strange:
        parts = ((f"lack {_listed(missing)}", missing), (f"have {_listed(strange)}, which it has not", strange))
        raise ConfigError(
            f"the weights do not fit the model: they {' and '.join(text for text, names in parts if names)}; give "
            "those of a model of the same layers"
        )


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(map(quoted, names[:NAMED])) + more


def _require_fit(name: str, place: Tensor, tensor: Tensor) -> None:
    if not isinstance(tensor, Tensor) or tensor.shape != place.shape:
        shape = list(tensor.shape) if isinstance(tensor, Tensor) else type(tensor).__name__
        raise ConfigError(
            f"the weights do not fit the model: {quoted(name)} is {shape}, in the model {list(place.shape)}"
        )
    if tensor.is_floating_point() != place.is_floating_point():
        raise ConfigError(
            f"the weights do not fit the model: {quoted(name)} is {tensor.dtype}, in the model {place.dtype}"
        )
    if not bool(torch.isfinite(tensor).all()):
        raise ConfigError(f"the weights cannot be trained on: {quoted(name)} has numbers that are not finite")
