"""Local training as one writes it with torch.optim: one device, one step after the other."""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from sparsefed.core.engine import LocalStep
from sparsefed.core.rng import rng
from sparsefed.core.task import Task


def drawn_batches(step: LocalStep, device: int, size: int) -> list[list[int]]:
    """The examples of each step, from the definition: drawn anew, without replacement within a step."""
    assert step.plan.steps is not None
    most = size if step.plan.batch is None else min(size, step.plan.batch)
    if most == size:
        return [list(range(size)) for _ in range(step.plan.steps)]
    return [
        rng(step.seed, "local batch", number, device).choice(size, most, replace=False).tolist()
        for number in range(step.plan.steps)
    ]


def trained(task: Task, x: Tensor, y: Tensor, step: LocalStep, device: int) -> Tensor:
    """theta - theta_local after the plan's steps, from the task's own first weights."""
    module = copy.deepcopy(task.template).train()
    parameters = [dict(module.named_parameters())[slot.name] for slot in task.slots]
    start = [parameter.detach().clone() for parameter in parameters]
    optimizer: torch.optim.Optimizer
    if step.plan.adam:
        optimizer = torch.optim.Adam(parameters, step.scale, weight_decay=step.weight_decay)
    else:
        optimizer = torch.optim.SGD(parameters, step.scale, step.plan.momentum, weight_decay=step.weight_decay)
    for batch in drawn_batches(step, device, len(y)):
        optimizer.zero_grad()
        loss = task.losses(module(task.prepare(x[batch])), y[batch]).mean()
        distance = sum(((p - first) ** 2).sum() for p, first in zip(parameters, start, strict=True))
        (loss + step.plan.prox / 2 * distance).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    moved = [first - parameter.detach() for first, parameter in zip(start, parameters, strict=True)]
    return torch.cat([part.reshape(-1) for part in moved])
