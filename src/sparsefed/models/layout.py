"""Conversion of a model of any kind (module, state dict, array, tensor, number) to one flat vector and back."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sparsefed.core.errors import ConfigError
from sparsefed.core.task import Slot

MOST = 1 << 33  # coordinates of a model given by their number


@dataclass(frozen=True)
class ModelLayout:
    """The place of each part of a model in the flat vector, and the way back from a vector to such a model."""

    theta: Tensor  # float32 [d], the given model
    slots: tuple[Slot, ...]  # () for a vector without parts
    known: frozenset[str]  # every name that a state dict of this model may have
    restore: Callable[[Tensor], Any]  # [d] -> a model of the given kind

    @property
    def d(self) -> int:
        return len(self.theta)

    def flat(self, parts: Mapping[str, Any]) -> Tensor:
        """Return a state dict (of a model, or of an update) as a vector [d].

        Raises:
            ConfigError: if a part is missing, unknown or of another shape.
        """
        if not self.slots:
            raise ConfigError("an update is a state dict, but the model was given as a vector; give `like` as one too")
        strange = [name for name in parts if name not in self.known]
        if strange:
            raise ConfigError(f"the update has a part '{strange[0]}', which the model has not")
        return torch.cat([self._part(parts, slot) for slot in self.slots])

    def _part(self, parts: Mapping[str, Any], slot: Slot) -> Tensor:
        if slot.name not in parts:
            raise ConfigError(f"the update lacks '{slot.name}'; it must have every trained part of the model")
        part = _tensor(slot.name, parts[slot.name])
        if part.shape != slot.shape:
            raise ConfigError(f"'{slot.name}' has shape {list(part.shape)}, but in the model {list(slot.shape)}")
        return part.reshape(-1).to(torch.float32)


def layout(like: nn.Module | Mapping[str, Any] | Tensor | np.ndarray[Any, Any] | int) -> ModelLayout:
    """Return the layout of a model.

    Args:
        like: a module (its trainable parameters), a state dict (its floating-point tensors), a vector, or a number of
            coordinates, which stands for a vector of zeros.

    Raises:
        ConfigError: if it is none of these, or has nothing to train.
    """
    if isinstance(like, nn.Module):
        trained = {name: p.detach() for name, p in like.named_parameters() if p.requires_grad}
        return _of_parts(trained, frozenset(like.state_dict()), lambda slots, theta: _module(like, slots, theta))
    if isinstance(like, Mapping):
        tensors = {name: _tensor(name, part) for name, part in like.items()}
        trained = {name: tensor for name, tensor in tensors.items() if tensor.is_floating_point()}
        return _of_parts(trained, frozenset(tensors), lambda slots, theta: {**tensors, **_parts(trained, slots, theta)})
    if isinstance(like, int) and not isinstance(like, bool) and 0 < like <= MOST:
        return ModelLayout(torch.zeros(like), (), frozenset(), torch.clone)
    if isinstance(like, (Tensor, np.ndarray)) and like.ndim == 1 and len(like):
        theta = _finite(_tensor("like", like).clone().float())
        return ModelLayout(theta, (), frozenset(), torch.clone if isinstance(like, Tensor) else _array)
    raise ConfigError("like must be a module, a state dict, a vector of numbers or how many coordinates there are")


def _tensor(name: str, part: Any) -> Tensor:
    """Return a part of a model or an update as a tensor; refuse what does not hold real numbers."""
    try:
        ready = np.ascontiguousarray(part) if isinstance(part, np.ndarray) and part.ndim else part
        flipped = isinstance(ready, np.ndarray) and min(ready.strides, default=0) < 0
        tensor = torch.as_tensor(ready.copy() if flipped else ready).detach()
    except (TypeError, ValueError, RuntimeError, OverflowError):
        raise ConfigError(
            f"'{name}' is a {type(part).__name__} that holds no numbers; give a tensor or array"
        ) from None
    if tensor.is_complex() or tensor.layout is not torch.strided or tensor.is_meta or tensor.is_quantized:
        raise ConfigError(f"'{name}' holds {tensor.dtype}, but must be an ordinary tensor of real numbers")
    return tensor


def _finite(theta: Tensor) -> Tensor:
    if not bool(torch.isfinite(theta).all()):
        raise ConfigError("the model holds numbers that are not finite; start from a model that is")
    return theta


def _of_parts(
    trained: Mapping[str, Tensor], known: frozenset[str], restore: Callable[[tuple[Slot, ...], Tensor], Any]
) -> ModelLayout:
    if not trained:
        raise ConfigError("the model has no trainable parameter: nothing to learn")
    starts = [0, *np.cumsum([tensor.numel() for tensor in trained.values()]).tolist()]
    slots = tuple(Slot(name, t.shape, start) for (name, t), start in zip(trained.items(), starts, strict=False))
    theta = _finite(torch.cat([tensor.reshape(-1).float() for tensor in trained.values()]))
    return ModelLayout(theta, slots, known | frozenset(trained), lambda vector: restore(slots, vector))


def _parts(trained: Mapping[str, Tensor], slots: tuple[Slot, ...], theta: Tensor) -> dict[str, Tensor]:
    cut = torch.split(theta, [math.prod(slot.shape) for slot in slots])
    return {s.name: part.view(s.shape).to(trained[s.name], copy=True) for s, part in zip(slots, cut, strict=True)}


@torch.no_grad()
def _module(like: nn.Module, slots: tuple[Slot, ...], theta: Tensor) -> nn.Module:
    module = copy.deepcopy(like)
    parameters = dict(module.named_parameters())
    for slot in slots:
        parameters[slot.name].copy_(theta[slot.start : slot.stop].view(slot.shape))
    return module


def _array(theta: Tensor) -> np.ndarray[Any, Any]:
    return theta.numpy().copy()
