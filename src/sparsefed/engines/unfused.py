"""One local step of models that one batched pass does not know: `vmap` over clients, or one client after the other.

Both give each client's gradient at the common weights. `vmap` needs a batching rule for every operation; a probe
compares it with the loop first. Where it works it is faster as long as a client's pass is too small to keep a core busy
(`several_steps.STACK_LIMIT`); the choice depends on sizes alone, never on timing. Either way the clients are shared out
to as many threads as torch may use, in pieces that do not depend on their number.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from sparsefed.core.engine import MEMORY_BUDGET, Cohort, Engine, LocalStep, few, split
from sparsefed.core.task import Task, draws, load_flat, working_copy
from sparsefed.core.types import Batch, Block
from sparsefed.engines.loop import client_rows, loop
from sparsefed.engines.several_steps import PROBE_TOLERANCE, STACK_LIMIT, operations, share_out
from sparsefed.engines.transfer import batch_on, batches_on
from sparsefed.kernels.blocks import RowsBlock

log = logging.getLogger(__name__)

PLAIN = LocalStep(1.0, 0.0)
TOGETHER = 100  # clients in one call of `vmap`: their weights are common, so more of them fit than in a stack
Limit = Callable[[Tensor, Cohort], float]  # the number of a client's examples up to which clients are batched
Piece = tuple[int, Batch]  # the first client's row, and clients of equal size


def unfused(
    task: Task, dtype: torch.dtype = torch.float32, budget: int = MEMORY_BUDGET, limit: Limit | None = None
) -> Engine:
    """Compute one local step by `vmap` or client by client, whichever the rule expects to be faster."""
    if draws(task.template):
        return loop(task, dtype, budget)  # random layers share one generator across threads
    threads = torch.get_num_threads() if task.device.type == "cpu" else 1
    modules = [working_copy(task, dtype).train() for _ in range(threads)]
    limit = limit or _probed_once(task)

    def compute(theta: Tensor, cohort: Cohort, step: LocalStep) -> Iterator[Block]:
        most = limit(theta, cohort)
        for module in modules:
            load_flat(task, module, theta)
        for ids, batch in batches_on(cohort.gather, split(cohort, 4.0 * task.d, 0.0, budget), task.device):
            rows = theta.new_empty(len(ids), task.d)

            def work(module: nn.Module, piece: Piece, rows: Tensor = rows) -> None:
                first, part = piece
                gradients(task, module, theta, part, out=rows[first : first + len(part.sizes)])

            with _without_fallback_warnings():
                share_out(work, pieces(batch, most), modules)
            yield RowsBlock(rows.add_(theta, alpha=step.weight_decay).mul_(step.scale), ids)
            del batch, rows, work

    return compute


@contextmanager
def _without_fallback_warnings() -> Iterator[None]:
    """Silence `vmap` where an operation has no batching rule: looping over that one still beats a loop over all."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="There is a performance drop", category=UserWarning)
        yield


def unless_small(otherwise: Engine, task: Task, dtype: torch.dtype, budget: int) -> Engine:
    """Compute cohorts whose clients are small enough for `vmap` by it, and all others by another engine.

    For models with layers that the batched pass differentiates client by client, such as transposed convolutions.
    """
    if draws(task.template):
        return otherwise
    limit = _probed_once(task)
    together = unfused(task, dtype, budget, limit)

    def compute(theta: Tensor, cohort: Cohort, step: LocalStep) -> Iterator[Block]:
        return (together if cohort.sizes.max() <= limit(theta, cohort) else otherwise)(theta, cohort, step)

    return compute


def pieces(batch: Batch, limit: float) -> list[Piece]:
    """Cut a batch into pieces: up to TOGETHER adjacent clients of one size of at most `limit`, else one client each.

    >>> sizes = np.array([2, 2, 3, 9])
    >>> [(first, part.sizes.tolist()) for first, part in pieces(Batch(torch.zeros(16), torch.zeros(16), sizes), 5)]
    [(0, [2, 2]), (2, [3]), (3, [9])]
    """
    counts: list[int] = []
    for place, size in enumerate(batch.sizes.tolist()):
        joins = place > 0 and size == batch.sizes[place - 1] and size <= limit and counts[-1] < TOGETHER
        counts[-1:] = [counts[-1] + 1] if joins else [*counts[-1:], 1]
    firsts, stops = np.cumsum([0, *counts[:-1]]), np.cumsum([0, *batch.sizes])
    parts = [(int(first), int(first) + count) for first, count in zip(firsts, counts, strict=True)]
    return [
        (low, Batch(batch.x[stops[low] : stops[high]], batch.y[stops[low] : stops[high]], batch.sizes[low:high]))
        for low, high in parts
    ]


def gradients(task: Task, module: nn.Module, theta: Tensor, batch: Batch, out: Tensor | None = None) -> Tensor:
    """Return the gradients of clients of equal size [m, d], at the weights that `module` already holds; in `out`."""
    out = theta.new_empty(len(batch.sizes), task.d) if out is None else out
    if len(batch.sizes) == 1:
        return out.copy_(client_rows(task, module, theta, batch, PLAIN))
    named = dict(module.named_parameters())
    weights = {slot.name: named[slot.name].detach() for slot in task.slots}
    inputs = task.prepare(batch.x)
    inputs = inputs.to(weights[task.slots[0].name].dtype) if inputs.is_floating_point() else inputs
    each = (len(batch.sizes), int(batch.sizes[0]))

    def loss(weights: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return task.losses(functional_call(module, weights, (x,)), y).mean()

    stacks = (inputs.reshape(*each, *inputs.shape[1:]), batch.y.reshape(*each, *batch.y.shape[1:]))
    found = vmap(grad(loss), in_dims=(None, 0, 0))(weights, *stacks)
    return torch.cat([found[slot.name].flatten(1).float() for slot in task.slots], 1, out=out)


def _probed_once(task: Task) -> Limit:
    """Return a function that probes the model with the first cohort it is given, and remembers the answer."""
    known: list[float] = []

    def limit(theta: Tensor, cohort: Cohort) -> float:
        if not known:
            known.append(_batched_up_to(task, theta, batch_on(few(cohort), task.device)))
        return known[0]

    return limit


def _batched_up_to(task: Task, theta: Tensor, batch: Batch) -> float:
    """Return the number of a client's examples up to which `vmap` is faster; 0 if it cannot, or goes step by step."""
    if any(isinstance(layer, nn.RNNBase) for layer in task.template.modules()) or not _agrees(task, theta, batch):
        return 0.0
    each = operations(task, batch)
    limit = float("inf") if each == 0 else STACK_LIMIT / each
    log.info("clients of up to %g examples are computed together, by vmap", limit)
    return limit


def _agrees(task: Task, theta: Tensor, batch: Batch) -> bool:
    """Return whether `vmap` gives the loop's rows on a few examples; a client alone stands twice."""
    module = working_copy(task, torch.float32).train()
    load_flat(task, module, theta)
    smallest = int(batch.sizes.min())
    firsts = np.resize(np.cumsum(batch.sizes) - batch.sizes, max(len(batch.sizes), 2))
    keep = torch.from_numpy((firsts[:, None] + np.arange(smallest)).reshape(-1))
    equal = Batch(batch.x[keep], batch.y[keep], np.full(len(firsts), smallest))
    truth = client_rows(task, module, theta, equal, PLAIN)
    try:
        with _without_fallback_warnings():
            rows = gradients(task, module, theta, equal)
    except Exception as error:  # an operation without a batching rule may raise anything
        log.info("no vmap over clients: %s", str(error).partition("\n")[0])
        return False
    off, size = torch.linalg.vector_norm(rows - truth, dim=1), torch.linalg.vector_norm(truth, dim=1)
    return not bool((off > PROBE_TOLERANCE * size + 1e-12).any())
