"""The slow truth: one client at a time, plain autograd. The fused path is compared with this, and falls back to it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn

from sparsefed.client.base import MEMORY_BUDGET, Cohort, Engine, LocalStep, split
from sparsefed.task import Task, load_flat, seeded_layers, working_copy
from sparsefed.types import Batch, Block
from sparsefed.vectors.blocks import RowsBlock


def loop(task: Task, dtype: torch.dtype = torch.float32, budget: int = MEMORY_BUDGET) -> Engine:
    """Updates by a forward and a backward pass for each client."""
    module = working_copy(task, dtype).train()

    def compute(theta: Tensor, cohort: Cohort, step: LocalStep) -> Iterator[Block]:
        load_flat(task, module, theta)
        with seeded_layers(module, step.seed):
            for ids in split(cohort, 4.0 * task.d, 0.0, budget):
                yield RowsBlock(client_rows(task, module, theta, cohort.gather(ids), step), ids)

    return compute


def client_rows(task: Task, module: nn.Module, theta: Tensor, batch: Batch, step: LocalStep) -> Tensor:
    """The updates of a batch's clients [m, d], one after the other; `module` holds `theta` already."""
    named = dict(module.named_parameters())
    parameters = [named[slot.name] for slot in task.slots]
    rows = torch.empty(len(batch.sizes), task.d)
    stops = np.cumsum(batch.sizes)
    for i, (size, stop) in enumerate(zip(batch.sizes, stops, strict=True)):
        inputs = task.prepare(batch.x[stop - size : stop])
        outputs = module(inputs.to(parameters[0].dtype) if inputs.is_floating_point() else inputs)
        loss = task.losses(outputs, batch.y[stop - size : stop]).mean()
        gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
        for slot, gradient in zip(task.slots, gradients, strict=True):
            rows[i, slot.start : slot.stop] = 0 if gradient is None else gradient.reshape(-1)
    return rows.add_(theta, alpha=step.weight_decay).mul_(step.scale)
