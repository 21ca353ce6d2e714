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
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.utils.parametrizations import _SpectralNorm

from sparsefed.core.device import CPU, exactly, examples_on, generators, home
from sparsefed.core.errors import ConfigError
from sparsefed.core.inputs import as_float, image_normaliser, in_dtype, outputs_of
from sparsefed.core.target import TARGETS, Target, accuracy, cross_entropy, entropies
from sparsefed.core.types import IGNORED

__all__ = [
    "Evaluation",
    "Loss",
    "Slot",
    "Task",
    "as_float",
    "differentiator",
    "draws",
    "evaluator",
    "image_normaliser",
    "load_flat",
    "make_task",
    "seeded_layers",
    "working_copy",
]

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
    loss: Loss | None = None  # of each example; None: the default of the targets
    target: Target = TARGETS["classes"]
    device: torch.device = CPU  # on which engines and evaluation work; the template stays where it is

    @property
    def d(self) -> int:
        return self.slots[-1].stop

    def initial(self) -> Tensor:
        """Return the template's parameters as a vector [d]."""
        parameters = dict(self.template.named_parameters())
        return torch.cat([parameters[slot.name].detach().reshape(-1).float() for slot in self.slots]).to(
            home(self.device)
        )

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the loss of each example [M]: the task's own, or the default of its targets, such as cross-entropy."""
        return self.target.losses(outputs, y) if self.loss is None else _checked(self.loss(outputs.float(), y), y)


def _checked(losses: Tensor, y: Tensor) -> Tensor:
    if losses.shape != y.shape[:1]:
        raise ConfigError(
            f"the loss returned {list(losses.shape)} numbers for {len(y)} examples; it must return one for each "
            "example, not their mean (in torch: reduction='none')"
        )
    return losses


def make_task(
    module: nn.Module,
    prepare: Callable[[Tensor], Tensor] | None = None,
    loss: Loss | None = None,
    target: Target = TARGETS["classes"],
    device: torch.device = CPU,
) -> Task:
    """Return the task of a module; refuse one whose layers mix the examples of a batch.

    Args:
        module: the model; its weights are the initial ones.
        prepare: maps raw examples to inputs; by default `as_float`.
        loss: (outputs, targets) -> the loss of each example; by default that of the targets.
        target: what the targets are; by default classes, whose loss is cross-entropy.
        device: where updates, metrics and gradients are computed.

    Raises:
        ConfigError: if the module has a BatchNorm layer, a layer with a memory of its own, or nothing to train.
    """
    _require_independent(module)
    slots, start = [], 0
    for name, parameter in module.named_parameters():
        if parameter.requires_grad:
            slots.append(Slot(name, parameter.shape, start))
            start += parameter.numel()
    if not slots:
        raise ConfigError("the model has no trainable parameter: nothing to learn")
    return Task(copy.deepcopy(module), tuple(slots), prepare or as_float, loss, target, device)


def _require_independent(module: nn.Module) -> None:
    """Refuse a module in which one device's update would depend on other devices."""
    for name, layer in module.named_modules():
        if isinstance(layer, _BatchNorm):
            raise ConfigError(
                f"layer '{name}' is a {type(layer).__name__}: it mixes the examples of a batch, so one device's update "
                "would depend on other devices' data; use GroupNorm or LayerNorm instead, "
                "for instance sparsefed.models.without_batchnorm(module), which keeps its weights where they fit"
            )
        if isinstance(layer, _SpectralNorm) or (isinstance(layer, _InstanceNorm) and layer.track_running_stats):
            raise ConfigError(
                f"layer '{name}' is a {type(layer).__name__.strip('_')} that changes a memory of its own in every "
                "pass, so one device's update would depend on who trained before; use one without running statistics, "
                "or weight_norm instead of spectral_norm"
            )


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
    """Return whether the module has random layers (dropout, also that inside of attention and recurrent layers)."""
    random = (nn.modules.dropout._DropoutNd, nn.RReLU)
    holding = (nn.MultiheadAttention, nn.RNNBase)
    return any(
        isinstance(layer, random) or (isinstance(layer, holding) and layer.dropout > 0) for layer in module.modules()
    )


@contextmanager
def seeded_layers(module: nn.Module, seed: int) -> Iterator[None]:
    """Let random layers (dropout) draw from `seed` inside the context, leaving torch's global state alone."""
    if not draws(module):
        yield
        return
    own = generators(next(module.parameters()).device)
    states = [generator.get_state() for generator in own]
    for generator in own:
        generator.manual_seed(seed)
    try:
        yield
    finally:
        for generator, state in zip(own, states, strict=True):
            generator.set_state(state)


@dataclass(frozen=True)
class Evaluation:
    """The loss and the predictions of a model on some examples."""

    loss: float  # mean over the targets, equally weighted
    predictions: Tensor  # int64, a label for each target; or the model's outputs, float32

    def accuracy(self, y: Tensor) -> float:
        return accuracy(self.predictions, y)


def evaluator(
    task: Task, dtype: torch.dtype, batch: int = 1000, whole: bool = False
) -> Callable[[Tensor, Tensor, Tensor], Evaluation]:
    """Return a function (theta, x, y) -> loss and predictions, a batch at a time; separate from training.

    `whole` keeps the model's outputs as predictions; where the targets are numbers or yes and no, they are always kept.
    """
    module = working_copy(task, dtype).eval()
    tokens = task.target.losses is cross_entropy and task.loss is None  # several targets an example, each counts
    labels = task.target.kind in ("classes", "tokens") and not whole

    @torch.inference_mode()
    def evaluate(theta: Tensor, x: Tensor, y: Tensor) -> Evaluation:
        load_flat(task, module, theta)
        total, targets, predictions = 0.0, 0, []
        for low in range(0, len(x), batch):
            inputs, wanted = (examples_on(part[low : low + batch], task.device) for part in (x, y))
            with exactly(task.device):
                outputs = outputs_of(module, in_dtype(task.prepare(inputs), dtype)).float()
            losses = entropies(outputs, wanted) if tokens else task.losses(outputs, wanted)
            total += float(losses.to(home(task.device)).double().sum())
            targets += int((wanted != IGNORED).sum()) if tokens else len(wanted)
            predictions.append((outputs.argmax(-1) if labels else outputs).cpu())
        return Evaluation(total / max(targets, 1), torch.cat(predictions) if predictions else y[:0])

    return evaluate


def differentiator(task: Task, dtype: torch.dtype) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """Return a function (theta, x, y) -> gradient of the mean loss [d], which any device can compute."""
    module = working_copy(task, dtype).eval()
    named = dict(module.named_parameters())
    parameters = [named[slot.name] for slot in task.slots]

    def gradient(theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
        load_flat(task, module, theta)
        inputs, wanted = (examples_on(part, task.device) for part in (x, y))
        outputs = outputs_of(module, in_dtype(task.prepare(inputs), dtype))
        parts = torch.autograd.grad(task.losses(outputs, wanted).mean(), parameters, materialize_grads=True)
        return torch.cat([part.reshape(-1).float() for part in parts]).to(theta.device)

    return gradient
