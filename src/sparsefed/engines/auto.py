"""The engine that a config names: one local step by one batched pass, several by whichever method suits their size.

`fused` follows the rule; `by_client` and `stacked` always use one method, for comparison or to override the rule.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from sparsefed.core.engine import (
    MEMORY_BUDGET,
    ONE_STEP,
    Cohort,
    Engine,
    LocalPlan,
    LocalStep,
    few,
    is_one_batch,
    one_batch,
    one_step,
    split,
)
from sparsefed.core.task import Task, draws, working_copy
from sparsefed.core.types import Batch, IntArray
from sparsefed.core.types import Block as Updates
from sparsefed.engines.batched_pass import unknown_layers
from sparsefed.engines.convolutions import AnyTransposed
from sparsefed.engines.fused import fused
from sparsefed.engines.loop import loop
from sparsefed.engines.several_steps import (
    STACK_LIMIT,
    STACKED,
    Device,
    StepBlock,
    devices_of,
    first_batch,
    go_on,
    operations,
    stackable,
)
from sparsefed.engines.transfer import batch_on, batches_on
from sparsefed.engines.unfused import unfused, unless_small
from sparsefed.kernels.blocks import RowsBlock

log = logging.getLogger(__name__)

Way = Literal["rule", "by client", "stacked"]


def local(task: Task, dtype: torch.dtype = torch.float32, budget: int = MEMORY_BUDGET, way: Way = "rule") -> Engine:
    """Compute one local step in one batched pass, several on stacked weights or one client at a time."""
    single = fused(task, dtype, budget, unfused(task, dtype, budget))
    if any(isinstance(layer, AnyTransposed) for layer in task.template.modules()):
        single = unless_small(single, task, dtype, budget)
    several = loop(task, dtype, budget) if draws(task.template) else _several(task, dtype, budget, way)

    def compute(theta: Tensor, cohort: Cohort, step: LocalStep) -> Iterator[Updates]:
        if is_one_batch(step.plan):
            cohort, step = one_batch(cohort, step), step._replace(plan=ONE_STEP)
        return (single if one_step(step.plan, cohort.sizes) else several)(theta, cohort, step)

    return compute


def by_client(task: Task, dtype: torch.dtype = torch.float32, budget: int = MEMORY_BUDGET) -> Engine:
    """Compute updates as `fused` does, but several local steps always one client after the other."""
    return local(task, dtype, budget, "by client")


def stacked(task: Task, dtype: torch.dtype = torch.float32, budget: int = MEMORY_BUDGET) -> Engine:
    """Compute updates as `fused` does, but several local steps always on stacked weights, if the model allows it."""
    return local(task, dtype, budget, "stacked")


def _several(task: Task, dtype: torch.dtype, budget: int, way: Way) -> Engine:
    """Return the engine for several local steps; not for random layers, which share one generator across threads."""
    threads = torch.get_num_threads() if task.device.type == "cpu" else 1
    modules = [working_copy(task, dtype).train() for _ in range(threads)]
    first = None if unknown_layers(task) else fused(task, dtype, budget // 2)
    limits: list[float] = []  # examples per step up to which clients are stacked, once known
    most = min(STACKED, budget // (160 * task.d))  # each thread's stack holds weights, gradients and copies of both

    def compute(theta: Tensor, cohort: Cohort, step: LocalStep) -> Iterator[Updates]:
        if not limits:
            limits.append(_stack_up_to(task, theta, batch_on(few(cohort), task.device), way) if most > 1 else 0.0)
        example = 4.0 * cohort.gather(cohort.ids[:1]).x[0].numel()
        blocks = split(cohort, 4.0 * task.d, 2 * example, budget // 2)
        for ids, batch in batches_on(cohort.gather, blocks, task.device):
            devices = devices_of(task, ids, batch, step, dtype)
            block = StepBlock(task, theta, step, theta.new_zeros(len(ids), task.d))
            if first is not None and not (step.plan.momentum or step.plan.adam):  # these need the first gradient too
                devices = _begin(block, first, first_batch(batch, devices), devices)
            go_on(block, devices, modules, _stacking(limits[0], step.plan, most))
            yield RowsBlock(block.rows, ids)
            del block, batch, devices  # free their memory before the next are computed

    return compute


def _begin(block: StepBlock, first: Engine, batch: Batch, devices: list[Device]) -> list[Device]:
    """Take everyone's first step, from common weights, and return the devices with their remaining steps."""
    stops = np.cumsum(batch.sizes)

    def gather(members: IntArray) -> Batch:
        if len(members) == len(stops):
            return batch
        rows = torch.from_numpy(np.concatenate([np.arange(stops[i] - batch.sizes[i], stops[i]) for i in members]))
        return Batch(batch.x[rows], batch.y[rows], batch.sizes[members])

    step = block.step._replace(plan=ONE_STEP)
    for done in first(block.theta, Cohort(np.arange(len(stops)), batch.sizes, gather), step):
        block.rows[torch.from_numpy(done.senders)] = done.rows()
    return [device._replace(turns=device.turns[1:]) for device in devices]


def _stack_up_to(task: Task, theta: Tensor, batch: Batch, way: Way) -> float:
    """Return the number of examples per step up to which stacking is faster."""
    if way == "by client" or not stackable(task, theta, batch):
        return 0.0
    each = operations(task, batch)
    limit = float("inf") if way == "stacked" or each == 0 else STACK_LIMIT / each
    log.info("several local steps: clients of up to %g examples a step are stacked", limit)
    return limit


def _stacking(limit: float, plan: LocalPlan, most: int) -> Callable[[Device, int], bool]:
    def stacking(device: Device, already: int) -> bool:
        size = len(device.y) if plan.batch is None else min(plan.batch, len(device.y))
        return already < most and size <= limit

    return stacking
