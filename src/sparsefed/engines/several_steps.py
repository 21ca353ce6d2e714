"""Fast computation of a cohort's updates after several local steps.

The first step starts from common weights, so it is one batched pass (`fused.py`). Then devices diverge, and two methods
remain:

- *stacked*: several clients in one pass over weights with a leading client axis (`torch.func.vmap`). Fewer,
  larger calls; per-client convolutions become grouped ones.
- *by client*: one client after the other, in place.

Either way the work is distributed to as many threads as torch may use, each of which computes on one core:
many small parallel calls would wait for each other. The division of the work does not depend on the number of threads,
and so neither do the results.

The method depends on sizes alone, never on timing: the same config gives the same bits. Stacking pays while a
client's step is too small to keep a core busy, so the rule is a limit on its arithmetic (`STACK_LIMIT`; see
docs/benchmarks.md for how it was fitted: `python -m benchmarks.local_training`).
"""

from __future__ import annotations

import logging
import queue
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.utils.flop_counter import FlopCounterMode

from sparsefed.core.engine import LocalPlan, LocalStep, Turn, turns
from sparsefed.core.inputs import in_dtype, outputs_of
from sparsefed.core.task import Task, working_copy
from sparsefed.core.types import Batch, IntArray
from sparsefed.engines.loop import trained_rows
from sparsefed.engines.moments import Moments

log = logging.getLogger(__name__)

STACK_LIMIT = 80e6  # floating-point operations of a client's forward pass below which stacking is faster
STACKED = 10  # clients in one stack: enough to make calls large, few enough to stay in the cache
PROBE_TOLERANCE = 1e-3

T = TypeVar("T")


class Device(NamedTuple):
    """The remaining work of one client."""

    row: int  # its place in the block
    x: Tensor  # prepared inputs
    y: Tensor
    turns: Sequence[Turn]


class StepBlock(NamedTuple):
    """A block of clients in the middle of their local steps."""

    task: Task
    theta: Tensor
    step: LocalStep
    rows: Tensor  # [m, d]: theta - theta_local so far, written to by the row

    def parts(self, flat: Tensor) -> list[Tensor]:
        """Return a vector [d], or vectors [m, d], as views shaped like the parameters."""
        return [flat[..., slot.start : slot.stop].view(*flat.shape[:-1], *slot.shape) for slot in self.task.slots]


def descend(
    local: list[Tensor],
    gradients: Sequence[Tensor],
    start: list[Tensor],
    rate: float,
    step: LocalStep,
    moments: Moments,
) -> None:
    """Update local <- local - rate (gradient + weight_decay local + prox (local - start)), in place.

    A plan with momentum or Adam takes their step for the sum in parentheses.
    """
    if step.plan.adam or step.plan.momentum:
        directions = [gradient.float() for gradient in gradients]
        if step.weight_decay:
            directions = [d + step.weight_decay * mine for d, mine in zip(directions, local, strict=True)]
        if step.plan.prox:
            away = [mine - first for mine, first in zip(local, start, strict=True)]
            directions = [d + step.plan.prox * part for d, part in zip(directions, away, strict=True)]
        torch._foreach_add_(local, moments.step(step.plan, directions), alpha=-rate)
        return
    kept = 1 - rate * (step.weight_decay + step.plan.prox)
    if kept != 1:
        torch._foreach_mul_(local, kept)
    if step.plan.prox:
        for mine, first in zip(local, start, strict=True):
            mine.add_(first, alpha=rate * step.plan.prox)
    torch._foreach_add_(local, list(gradients), alpha=-rate)


# --- by client -------------------------------------------------------------------------------------------------------


def walk(block: StepBlock, module: nn.Module, device: Device) -> None:
    """Take one client's remaining steps, in the module's own parameters.

    If these are narrower than float32, a float32 copy is kept beside them.
    """
    named = dict(module.named_parameters())
    weights: list[Tensor] = [named[slot.name] for slot in block.task.slots]
    start = block.parts(block.theta)
    own = weights[0].dtype == torch.float32
    with torch.no_grad():
        local = weights if own else [torch.empty_like(part) for part in start]
        for mine, first, moved in zip(local, start, block.parts(block.rows[device.row]), strict=True):
            torch.sub(first, moved, out=mine)
    moments = Moments()
    for chosen, rate in device.turns:
        if not own:
            with torch.no_grad():
                torch._foreach_copy_(weights, local)
        x, y = device.x, device.y
        if chosen is not None:
            x, y = x[torch.from_numpy(chosen)], y[torch.from_numpy(chosen)]
        loss = block.task.losses(outputs_of(module, x), y).mean()
        gradients = torch.autograd.grad(loss, weights, materialize_grads=True)
        with torch.no_grad():
            descend(local, gradients, start, rate, block.step, moments)
    with torch.no_grad():
        for mine, first, moved in zip(local, start, block.parts(block.rows[device.row]), strict=True):
            torch.sub(first, mine, out=moved)


# --- stacked ---------------------------------------------------------------------------------------------------------


def walk_together(block: StepBlock, module: nn.Module, devices: Sequence[Device]) -> None:
    """Take the remaining steps of clients of equal size, all clients at once."""
    names, start = [slot.name for slot in block.task.slots], block.parts(block.theta)
    dtype = dict(module.named_parameters())[names[0]].dtype
    members = torch.tensor([device.row for device in devices], device=block.rows.device)
    local = [first - moved for first, moved in zip(start, block.parts(block.rows[members]), strict=True)]
    x, y = torch.stack([device.x for device in devices]), torch.stack([device.y for device in devices])

    def loss(weights: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return block.task.losses(functional_call(module, weights, (x,)), y).mean()

    moments = Moments()
    for turn, (chosen, rate) in enumerate(devices[0].turns):
        weights = [mine.to(dtype).detach().requires_grad_() for mine in local]
        mine, labels = (x, y) if chosen is None else chosen_examples(x, y, [device.turns[turn] for device in devices])
        total = vmap(loss)(dict(zip(names, weights, strict=True)), mine, labels).sum()
        gradients = torch.autograd.grad(total, weights, materialize_grads=True)
        descend(local, gradients, start, rate, block.step, moments)
    for first, mine, slot in zip(start, local, block.task.slots, strict=True):
        block.rows[members, slot.start : slot.stop] = (first - mine).flatten(1)


def chosen_examples(x: Tensor, y: Tensor, each: Sequence[Turn]) -> tuple[Tensor, Tensor]:
    index = torch.from_numpy(np.stack([turn.examples for turn in each if turn.examples is not None]))
    member = torch.arange(len(x), device=x.device).unsqueeze(1)
    index = index.to(x.device)
    return x[member, index], y[member, index]


def stackable(task: Task, theta: Tensor, batch: Batch) -> bool:
    """Return whether both methods agree on a few examples: some layers cannot be stacked, or only slowly."""
    step, ids = LocalStep(1e-2, 0.0, plan=LocalPlan(epochs=2)), np.arange(len(batch.sizes))
    smallest = int(batch.sizes.min())
    firsts = np.cumsum(batch.sizes) - batch.sizes
    keep = torch.from_numpy((firsts[:, None] + np.arange(smallest)).reshape(-1))
    equal = Batch(batch.x[keep], batch.y[keep], np.full(len(ids), smallest))
    truth = trained_rows(task, working_copy(task, torch.float32).eval(), theta, ids, equal, step)
    block = StepBlock(task, theta, step, theta.new_zeros(len(ids), task.d))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            devices = devices_of(task, ids, equal, step, torch.float32)
            walk_together(block, working_copy(task, torch.float32).eval(), devices)
    except Exception as error:  # an operation without a batching rule may raise anything
        log.info("no stacking of clients: %s", str(error).partition("\n")[0])
        return False
    off, size = torch.linalg.vector_norm(block.rows - truth, dim=1), torch.linalg.vector_norm(truth, dim=1)
    return not bool((off > PROBE_TOLERANCE * size + 1e-9).any())


# --- the rule --------------------------------------------------------------------------------------------------------


def operations(task: Task, batch: Batch) -> float:
    """Return the floating-point operations of one example's forward pass."""
    inputs = task.prepare(batch.x[:1])
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        outputs_of(working_copy(task, torch.float32).eval(), inputs)
    return float(counter.get_total_flops())


def pieces(devices: Sequence[Device], stacking: Callable[[Device, int], bool]) -> list[list[Device]]:
    """Divide the work: stacks of clients of equal size where that is faster, else one client each."""
    found: list[list[Device]] = []
    for device in devices:
        last = found[-1] if found else []
        if last and len(last[0].y) == len(device.y) and stacking(device, len(last)):
            last.append(device)
        else:
            found.append([device])
    return found


# --- threads ---------------------------------------------------------------------------------------------------------


@contextmanager
def _single_threaded_pool(threads: int) -> Iterator[ThreadPoolExecutor]:
    """Provide threads that compute on one core each, without changing torch's setting elsewhere."""
    before = torch.get_num_threads()
    with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        try:
            yield pool
        finally:
            pool.shutdown()
            torch.set_num_threads(before)  # also the initial setting of later threads


def share_out(work: Callable[[nn.Module, T], None], todo: Sequence[T], modules: Sequence[nn.Module]) -> None:
    """Process all of `todo`, in as many threads as there are modules to work with."""
    if len(modules) == 1 or len(todo) == 1:
        for piece in todo:
            work(modules[0], piece)
        return
    free: queue.SimpleQueue[nn.Module] = queue.SimpleQueue()
    for module in modules:
        free.put(module)

    def take(piece: T) -> None:
        module = free.get()
        try:
            work(module, piece)
        finally:
            free.put(module)

    with _single_threaded_pool(len(modules)) as pool:
        list(pool.map(take, todo))


# --- a block ---------------------------------------------------------------------------------------------------------


def devices_of(task: Task, ids: IntArray, batch: Batch, step: LocalStep, dtype: torch.dtype) -> list[Device]:
    """Return a block's clients with their prepared examples and all their steps."""
    inputs = in_dtype(task.prepare(batch.x), dtype)
    sizes = batch.sizes.tolist()
    each = zip(ids.tolist(), sizes, torch.split(inputs, sizes), torch.split(batch.y, sizes), strict=True)
    return [Device(row, x, y, turns(step, device, size)) for row, (device, size, x, y) in enumerate(each)]


def first_batch(batch: Batch, devices: Sequence[Device]) -> Batch:
    """Return the examples of each client's first step: all of them, or its first batch."""
    if all(device.turns[0].examples is None for device in devices):
        return batch
    firsts = np.cumsum(batch.sizes) - batch.sizes
    chosen = [
        first + (np.arange(len(device.y)) if device.turns[0].examples is None else device.turns[0].examples)
        for first, device in zip(firsts, devices, strict=True)
    ]
    index = torch.from_numpy(np.concatenate(chosen))
    return Batch(batch.x[index], batch.y[index], np.array([len(part) for part in chosen]))


def go_on(
    block: StepBlock, devices: Sequence[Device], modules: Sequence[nn.Module], stacking: Callable[[Device, int], bool]
) -> None:
    """Take all remaining steps of the devices; `block.rows` holds the result of the earlier ones."""

    def work(module: nn.Module, piece: list[Device]) -> None:
        if len(piece) > 1:
            walk_together(block, module, piece)
        else:
            walk(block, module, piece[0])

    left = [device for device in devices if device.turns]
    if left:
        share_out(work, pieces(left, stacking), modules)
