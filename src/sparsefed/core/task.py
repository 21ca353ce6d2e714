"""A model and its loss seen through one flat vector; with the engines, the only code that knows `nn.Module`.

A `Task` never trains its template: engines and evaluation work on private copies, so a task can be shared.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from sparsefed.core.device import CPU
from sparsefed.core.errors import ConfigError
from sparsefed.core.types import IGNORED

Loss = Callable[[Tensor, Tensor], Tensor]  # outputs, targets -> the loss of each example [M]


@dataclass(frozen=True)
class Slot:
    """The place of one parameter in the flat vector."""

    name: str
    shape: torch.Size
    start: int

    @property
    def stop(self) -> int:
        return self.start + math.prod(self.shape)


@dataclass(frozen=True)
class Task:
    """The training task: a template module, its slots in the flat vector, and the preparation of raw examples."""

    template: nn.Module
    slots: tuple[Slot, ...]
    prepare: Callable[[Tensor], Tensor]  # raw examples -> float32 inputs (or integer tokens, left as they are)
    loss: Loss | None = None  # of each example; None: cross-entropy
    device: torch.device = CPU  # on which engines and evaluation work; the template stays where it is

    @property
    def d(self) -> int:
        return self.slots[-1].stop

    def initial(self) -> Tensor:
        """Return the template's parameters as a vector [d]."""
        parameters = dict(self.template.named_parameters())
        return torch.cat([parameters[slot.name].detach().reshape(-1).float() for slot in self.slots]).to(self.device)

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the loss of each example [M]: the task's own, or cross-entropy.

        Where an example has several targets (tokens), cross-entropy is the mean over those that are not IGNORED, and 0
        where all are.
        """
        if self.loss is not None:
            return _checked(self.loss(outputs.float(), y), y)
        entropies = _entropies(outputs, y)
        return entropies if y.dim() == 1 else entropies.sum(1) / (y != IGNORED).sum(1).clamp(min=1)


def _checked(losses: Tensor, y: Tensor) -> Tensor:
    if losses.shape != y.shape[:1]:
        raise ConfigError(
            f"the loss returned {list(losses.shape)} numbers for {len(y)} examples; it must return one for each "
            "example, not their mean (in torch: reduction='none')"
        )
    return losses


def _entropies(outputs: Tensor, y: Tensor) -> Tensor:
    """Return the cross-entropy of each target, shaped like y; 0 where the target is IGNORED."""
    flat = outputs.float().flatten(0, y.dim() - 1)
    return F.cross_entropy(flat, y.flatten(), reduction="none", ignore_index=IGNORED).view(y.shape)


def make_task(
    module: nn.Module,
    prepare: Callable[[Tensor], Tensor] | None = None,
    loss: Loss | None = None,
    device: torch.device = CPU,
) -> Task:
    """Return the task of a module; refuse one whose layers mix the examples of a batch.

    Args:
        module: the model; its weights are the initial ones.
        prepare: maps raw examples to inputs; by default `as_float`.
        loss: (outputs, targets) -> the loss of each example; by default cross-entropy.
        device: where updates, metrics and gradients are computed.

    Raises:
        ConfigError: if the module has a BatchNorm layer or nothing to train.
    """
    for name, layer in module.named_modules():
        if isinstance(layer, _BatchNorm):
            raise ConfigError(
                f"layer '{name}' is a {type(layer).__name__}: it mixes the examples of a batch, so one device's update "
                "would depend on other devices' data; use GroupNorm or LayerNorm instead, "
                "for instance sparsefed.models.without_batchnorm(module), which keeps its weights where they fit"
            )
    slots, start = [], 0
    for name, parameter in module.named_parameters():
        if parameter.requires_grad:
            slots.append(Slot(name, parameter.shape, start))
            start += parameter.numel()
    if not slots:
        raise ConfigError("the model has no trainable parameter: nothing to learn")
    return Task(copy.deepcopy(module), tuple(slots), prepare or as_float, loss, device)


def as_float(x: Tensor) -> Tensor:
    """Convert examples without further preparation: bytes to [0, 1], floats to float32; tokens stay integers."""
    if x.dtype == torch.uint8:
        return x.float().div_(255)
    return x.float() if x.is_floating_point() else x


def image_normaliser(mean: tuple[float, ...], std: tuple[float, ...]) -> Callable[[Tensor], Tensor]:
    """Return a function from uint8 [M, H, W, C] to normalised float32 [M, C, H, W], channels-last."""
    scale = 1 / (255 * torch.tensor(std))
    shift = -torch.tensor(mean) / torch.tensor(std)

    def prepare(x: Tensor) -> Tensor:
        return torch.addcmul(shift.to(x.device), x.float(), scale.to(x.device)).permute(0, 3, 1, 2)

    return prepare


def working_copy(task: Task, dtype: torch.dtype) -> nn.Module:
    """Return a private copy of the module on the task's device in `dtype`, 2-d convolutions in channels-last memory."""
    module = copy.deepcopy(task.template).to(task.device, dtype)
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d):
            layer.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        elif isinstance(layer, nn.GroupNorm):
            layer.register_forward_pre_hook(_plain_memory)
    return module


def _plain_memory(layer: nn.Module, inputs: tuple[Any, ...]) -> tuple[Tensor] | None:
    """Copy inputs out of channels-last memory where torch would crash: trained GroupNorm on inputs without gradient.

    Its backward pass (torch 2.13 on the CPU) then writes to a gradient that was never allocated. So it is behind
    frozen layers, or where the first layer is one.
    """
    trained = any(parameter.requires_grad for parameter in layer.parameters(recurse=False))
    if inputs and trained and not inputs[0].requires_grad:
        return (inputs[0].contiguous(),)
    return None


@torch.no_grad()
def load_flat(task: Task, module: nn.Module, theta: Tensor) -> None:
    """Write a flat vector into a working copy."""
    parameters = dict(module.named_parameters())
    for slot in task.slots:
        parameters[slot.name].copy_(theta[slot.start : slot.stop].view(slot.shape))


def draws(module: nn.Module) -> bool:
    """Return whether the module has random layers (dropout)."""
    return any(isinstance(layer, nn.modules.dropout._DropoutNd) for layer in module.modules())


@contextmanager
def seeded_layers(module: nn.Module, seed: int) -> Iterator[None]:
    """Let random layers (dropout) draw from `seed` inside the context, leaving torch's global state alone."""
    if not draws(module):
        yield
        return
    device = next(module.parameters()).device
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.default_generator.manual_seed(seed)
        if device.type == "cuda":
            torch.cuda.default_generators[device.index].manual_seed(seed)
        yield


@dataclass(frozen=True)
class Evaluation:
    """The loss and the predictions of a model on some examples."""

    loss: float  # mean over the targets, equally weighted
    predictions: Tensor  # int64, a label for each target

    def accuracy(self, y: Tensor) -> float:
        counted = y != IGNORED
        return float((self.predictions == y)[counted].double().mean()) if bool(counted.any()) else math.nan


def evaluator(task: Task, dtype: torch.dtype, batch: int = 1000) -> Callable[[Tensor, Tensor, Tensor], Evaluation]:
    """Return a function (theta, x, y) -> loss and predictions, a batch at a time; separate from training."""
    module = working_copy(task, dtype).eval()

    @torch.inference_mode()
    def evaluate(theta: Tensor, x: Tensor, y: Tensor) -> Evaluation:
        load_flat(task, module, theta)
        total, targets, predictions = 0.0, 0, []
        for low in range(0, len(x), batch):
            inputs = task.prepare(x[low : low + batch].to(task.device))
            outputs = module(inputs.to(dtype) if inputs.is_floating_point() else inputs).float()
            wanted = y[low : low + batch].to(task.device)
            losses = _entropies(outputs, wanted) if task.loss is None else task.losses(outputs, wanted)
            total += float(losses.double().sum())
            targets += int((wanted != IGNORED).sum()) if task.loss is None else len(wanted)
            predictions.append(outputs.argmax(-1).cpu())
        return Evaluation(total / max(targets, 1), torch.cat(predictions) if predictions else y[:0])

    return evaluate


def differentiator(task: Task, dtype: torch.dtype) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """Return a function (theta, x, y) -> gradient of the mean loss [d], which any device can compute."""
    module = working_copy(task, dtype).eval()
    named = dict(module.named_parameters())
    parameters = [named[slot.name] for slot in task.slots]

    def gradient(theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
        load_flat(task, module, theta)
        inputs = task.prepare(x.to(task.device))
        outputs = module(inputs.to(dtype) if inputs.is_floating_point() else inputs)
        losses = task.losses(outputs, y.to(task.device))
        parts = torch.autograd.grad(losses.mean(), parameters, materialize_grads=True)
        return torch.cat([part.reshape(-1).float() for part in parts])

    return gradient
