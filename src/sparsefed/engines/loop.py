"""The reference engine: one client at a time, plain autograd. The fused engine is checked against it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn

from sparsefed.core.engine import (
    MEMORY_BUDGET,
    ONE_STEP,
    Cohort,
    Engine,
    LocalStep,
    is_one_batch,
    one_batch,
    one_step,
    split,
    turns,
)
from sparsefed.core.inputs import in_dtype, outputs_of
from sparsefed.core.rng import integer_seed
from sparsefed.core.task import Task, load_flat, seeded_layers, working_copy
from sparsefed.core.types import Batch, Block, IntArray
from sparsefed.engines.moments import Moments
from sparsefed.engines.transfer import batches_on
from sparsefed.kernels.blocks import RowsBlock


def loop(task: Task, dtype: torch.dtype = torch.float32, budget: int = MEMORY_BUDGET) -> Engine:
    """Compute updates by a forward and a backward pass for each client."""
    module = working_copy(task, dtype).train()

    def compute(theta: Tensor, cohort: Cohort, step: LocalStep) -> Iterator[Block]:
        if is_one_batch(step.plan):
            cohort, step = one_batch(cohort, step), step._replace(plan=ONE_STEP)
        if not one_step(step.plan, cohort.sizes):
            for ids, batch in batches_on(cohort.gather, split(cohort, 4.0 * task.d, 0.0, budget), task.device):
                rows = trained_rows(task, module, theta, ids, batch, step)
                del batch
                yield RowsBlock(rows, ids)
                del rows  # its memory must be free while the next is computed
            return
        load_flat(task, module, theta)
        with seeded_layers(module, step.seed):
            for ids, batch in batches_on(cohort.gather, split(cohort, 4.0 * task.d, 0.0, budget), task.device):
                rows = client_rows(task, module, theta, batch, step)
                del batch
                yield RowsBlock(rows, ids)
                del rows

    return compute


def client_rows(task: Task, module: nn.Module, theta: Tensor, batch: Batch, step: LocalStep) -> Tensor:
    """Return the updates of a batch's clients [m, d], one after the other; `module` already holds `theta`."""
    rows = theta.new_empty(len(batch.sizes), task.d)
    stops = np.cumsum(batch.sizes)
    for i, (size, stop) in enumerate(zip(batch.sizes, stops, strict=True)):
        rows[i] = _gradient(task, module, batch.x[stop - size : stop], batch.y[stop - size : stop])
    return rows.add_(theta, alpha=step.weight_decay).mul_(step.scale)


def trained_rows(task: Task, module: nn.Module, theta: Tensor, ids: IntArray, batch: Batch, step: LocalStep) -> Tensor:
    """Return the updates of clients after several local steps: theta - theta_local [m, d].

    theta_local <- theta_local - rate d,  d = gradient + weight_decay theta_local + prox (theta_local - theta),
    or with local momentum or Adam their step in place of d.
    """
    rows = theta.new_empty(len(batch.sizes), task.d)
    stops = np.cumsum(batch.sizes)
    for i, (device, size, stop) in enumerate(zip(ids.tolist(), batch.sizes.tolist(), stops.tolist(), strict=True)):
        x, y, local = batch.x[stop - size : stop], batch.y[stop - size : stop], theta
        memory = Moments()
        with seeded_layers(module, integer_seed(step.seed, "layers of a device", client=device)):
            for chosen, rate in turns(step, device, size):
                mine, labels = (x, y) if chosen is None else (x[torch.from_numpy(chosen)], y[torch.from_numpy(chosen)])
                load_flat(task, module, local)
                gradient = _gradient(task, module, mine, labels)
                direction = gradient + step.weight_decay * local + step.plan.prox * (local - theta)
                local = local - rate * memory.step(step.plan, [direction])[0]
        rows[i] = theta - local
    return rows


def _gradient(task: Task, module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Return the gradient of the mean loss at the weights that `module` holds [d]."""
    named = dict(module.named_parameters())
    parameters = [named[slot.name] for slot in task.slots]
    outputs = outputs_of(module, in_dtype(task.prepare(x), parameters[0].dtype))
    gradients = torch.autograd.grad(task.losses(outputs, y).mean(), parameters, materialize_grads=True)
    return torch.cat([gradient.reshape(-1).float() for gradient in gradients])
