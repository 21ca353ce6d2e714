"""The device a run computes on: its name in a config, whether this machine has it, and what lives there."""

from __future__ import annotations

import re
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from sparsefed.core.errors import ConfigError, quoted
from sparsefed.core.inputs import each_part, has_float64
from sparsefed.core.types import Defense, State

CPU = torch.device("cpu")
CHOICES = 'one of "auto", "cpu", "cuda", "cuda:1" (or another number), "mps"'
_NAME = re.compile(r"auto|cpu|mps|cuda(:\d{1,3})?")


def is_device_name(name: str) -> bool:
    """Return whether a config may have this as `train.device`.

    >>> [is_device_name(name) for name in ("auto", "cuda", "cuda:1", "gpu", "meta")]
    [True, True, True, False, False]
    """
    return _NAME.fullmatch(name) is not None


def available() -> dict[str, str]:
    """Return the accelerators of this machine by name, each with a description."""
    found = {f"cuda:{i}": torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())}
    return found | ({"mps": "Apple"} if torch.backends.mps.is_available() else {})


def computed_on(name: str | None) -> torch.device:
    """Return the device that the config value `train.device` stands for on this machine; None is the CPU.

    Raises:
        ConfigError: This machine does not have it; the message names those that it has.
    """
    if name is None or name == "cpu":
        return CPU
    if name == "auto":
        return torch.device("cuda", 0) if torch.cuda.is_available() else CPU
    if not is_device_name(name):
        raise ConfigError(f"train.device is {quoted(name)}, but must be {CHOICES}")
    here = ["cpu", *available()]
    if (wanted := "cuda:0" if name == "cuda" else name) not in here:
        raise ConfigError(
            f"train.device is {quoted(name)}, but torch can use only {', '.join(here)} on this machine; choose one of "
            'them, or "auto"'
        )
    return torch.device(wanted)


def home(device: torch.device) -> torch.device:
    """Return where server, rules and attacks of a run work: on its device, or the CPU if that one has no float64."""
    return device if has_float64(device) else CPU


def describe(device: torch.device) -> str:
    """Return a device's name for the manifest, with the model of an accelerator."""
    model = available().get(str(device))
    return f"{device} ({model})" if model else str(device)


def exactly(device: torch.device) -> AbstractContextManager[Any]:
    """Return a context in which convolutions on a CUDA device keep float32 and repeat their bits."""
    if device.type != "cuda":
        return nullcontext()
    return torch.backends.cudnn.flags(enabled=True, deterministic=True, allow_tf32=False)


def generators(device: torch.device) -> list[torch.Generator]:
    """Return the generators that random layers on a device draw from: the host's, and its own."""
    if device.type == "cuda":
        return [torch.default_generator, torch.cuda.default_generators[device.index]]
    return [torch.default_generator, *([torch.mps._get_default_mps_generator()] if device.type == "mps" else [])]


def initial_state(defense: Defense, d: int, device: torch.device) -> State:
    """Return a defense's state before the first round, made on a device."""
    if device.type == "cpu":
        return defense.init(d)
    with device:
        return defense.init(d)


def state_on(state: State, device: torch.device) -> State:
    """Return a defense's state with every tensor on a device; those that are there already are not copied."""
    return {name: tensor.to(device) for name, tensor in state.items()}


def examples_on(part: Tensor, device: torch.device) -> Tensor:
    """Return examples or targets on a device; for one without float64, in float32."""
    if has_float64(device):
        return each_part(part, lambda each: each.to(device))
    return each_part(part, lambda each: (each.float() if each.dtype is torch.float64 else each).to(device))
