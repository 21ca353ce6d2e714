"""The fused engine: the one-step updates of a whole cohort in one batched pass.

Every device starts from the same weights, so the forward pass and the backward pass over activations are those of
ordinary training on all their examples together; only the weight gradients are per client (`layers.py`). Rules that
need norms and weighted sums alone never pay for the rows.

Knows nothing of rounds, defenses or attackers.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from sparsefed.core.engine import MEMORY_BUDGET, Cohort, Engine, LocalStep, few, one_step, split
from sparsefed.core.errors import ConfigError
from sparsefed.core.task import Task, draws, load_flat, seeded_layers, working_copy
from sparsefed.core.types import Batch, Block
from sparsefed.engines.batched_pass import Prepared, fused_block, plain_parameters, prepare, ranks, unknown_layers
from sparsefed.engines.loop import client_rows, loop
from sparsefed.engines.transfer import batch_on, batches_on

log = logging.getLogger(__name__)

PROBE_TOLERANCE = 1e-3  # of a parameter's gradient: a layer used in a way the table does not describe is off by more


def fused(
    task: Task, dtype: torch.dtype = torch.float32, budget: int = MEMORY_BUDGET, otherwise: Engine | None = None
) -> Engine:
    """Compute updates by one batched pass per block of clients; models that this does not support go to `otherwise`.

    Args:
        task: the model and its loss.
        dtype: in which to compute.
        budget: bytes that one block of clients may take.
        otherwise: the engine for other models; by default the loop.
    """
    slow = otherwise or loop(task, dtype, budget)
    if unknown := unknown_layers(task):
        log.warning("computing client by client: no fused gradient for %s", ", ".join(unknown))
        return slow
    tried: dict[tuple[int, int], tuple[Prepared, float] | None] = {}  # with bytes per example; None: not supported

    def compute(theta: Tensor, cohort: Cohort, step: LocalStep) -> Iterator[Block]:
        if not one_step(step.plan, cohort.sizes):
            raise ConfigError(
                "one batched pass computes one local step, not several; use the engine by_client or stacked"
            )
        company = min(len(cohort.sizes), 3), min(int(cohort.sizes.max()), 2)  # examples that see each other show in it
        if company not in tried:
            tried[company] = _tried(task, theta, cohort, dtype)
        if (ready := tried[company]) is None:
            yield from slow(theta, cohort, step)
            return
        copy, cost = ready
        load_flat(task, copy.module, theta)
        width = torch.finfo(dtype).bits // 8
        with seeded_layers(copy.module, step.seed):
            blocks = split(cohort, float(width * task.d), cost, budget)
            for ids, batch in batches_on(cohort.gather, blocks, task.device):
                block = fused_block(task, copy, theta, ids, batch, step)
                del batch  # its memory must be free while the block is used, and the block's while the next is computed
                yield block
                del block

    return compute


def _tried(task: Task, theta: Tensor, cohort: Cohort, dtype: torch.dtype) -> tuple[Prepared, float] | None:
    """Return a copy of the model with which one pass gives the loop's updates, and the bytes per example, or None.

    A layer used in a way that hooks cannot see (its weight used outside `forward`, an input overwritten) shows up here,
    and so does one that sees its examples along another axis, or all alike: these are computed apart.
    """
    batch = batch_on(few(cohort), task.device)
    slow = working_copy(task, torch.float32).train(not draws(task.template))
    load_flat(task, slow, theta)
    truth = client_rows(task, slow, theta, batch, LocalStep(1.0, 0.0))
    ways = (
        [(False, rank) for rank in (ranks(task) if len(batch.y) > 1 else [])]
        if plain_parameters(task)
        else [(False, 0)]
    )
    for apart, rank in (*ways, (True, 0)):
        cost = _probe(task, prepare(task, torch.float32, apart, rank), theta, batch, truth)
        if cost is not None:
            copy = prepare(task, dtype, apart, rank)
            copy.module.train()
            return copy, cost * torch.finfo(dtype).bits / 32
    log.warning("computing client by client: the model uses a layer's parameters outside that layer")
    return None


def _probe(task: Task, ready: Prepared, theta: Tensor, batch: Batch, truth: Tensor) -> float | None:
    """Return the bytes per example in float32, or None if one batched pass does not give the loop's rows."""
    load_flat(task, ready.module.train(not draws(task.template)), theta)
    saved: dict[int, int] = {}
    weights = {parameter.data_ptr() for parameter in ready.module.parameters()}  # saved too, but not for each example

    def pack(tensor: Tensor) -> Tensor:
        if tensor.data_ptr() not in weights:
            saved[tensor.data_ptr()] = tensor.nbytes
        return tensor

    try:
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor), _strict():
            ids = np.arange(len(batch.sizes))
            rows = fused_block(task, ready, theta, ids, batch, LocalStep(1.0, 0.0)).rows()
    except Exception as error:  # layers called in a way that the table does not know may raise anything
        log.info("no batched pass%s: %s", " of examples apart" * ready.apart, str(error).partition("\n")[0])
        return None
    size = torch.linalg.vector_norm(truth, dim=1)
    for slot in task.slots:  # one by one: a layer's short gradient would drown in the whole
        mine, part = rows[:, slot.start : slot.stop], truth[:, slot.start : slot.stop]
        if bool(((mine - part).norm(dim=1) > PROBE_TOLERANCE * part.norm(dim=1) + 1e-5 * size + 1e-12).any()):
            return None
    own = sum(parameter.numel() for parameter, _ in ready.plain.values())
    return 3.0 * sum(saved.values()) / len(batch.y) + 8.0 * own  # saved tensors, their gradients, the layers' inputs


@contextmanager
def _strict() -> Iterator[None]:
    """Turn warnings into errors (`vmap` warns where it is slow) and let no layer take its path for inference."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)
