"""Cohorts of generated devices, and what two engines make of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sparsefed.core.engine import Cohort, LocalStep
from sparsefed.core.task import Task
from sparsefed.core.types import Batch
from sparsefed.engines import fused, loop

PLAIN = LocalStep(1.0, 0.0)
TOLERANCE = 1e-5  # relative to a client's norm, float32


def seeded(build: Callable[[], nn.Module], seed: int = 0) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build()


def cohort_of(x: Tensor, y: Tensor, sizes: list[int]) -> Cohort:
    stops = np.cumsum(sizes)

    def gather(ids: Any) -> Batch:
        rows = torch.from_numpy(np.concatenate([np.arange(stops[i] - sizes[i], stops[i]) for i in ids]))
        return Batch(x[rows], y[rows], np.array(sizes)[ids])

    return Cohort(np.arange(len(sizes)), np.array(sizes), gather)


def by_client(engine: Any, theta: Tensor, cohort: Cohort, step: LocalStep) -> tuple[Tensor, Tensor]:
    blocks = list(engine(theta, cohort, step))
    return torch.cat([b.rows() for b in blocks]), torch.cat([b.norms() for b in blocks])


def assert_same(task: Task, cohort: Cohort, step: LocalStep = PLAIN, ghost: bool | None = None) -> None:
    """Rows, norms and a weighted sum of the fused path against the loop's rows."""
    theta = task.initial()
    truth, _ = by_client(loop(task), theta, cohort, step)
    (block,) = fused(task)(theta, cohort, step)
    assert type(block).__name__ == "FusedBlock"
    size = torch.linalg.vector_norm(truth, dim=1, dtype=torch.float64)
    assert torch.all(torch.linalg.vector_norm(block.rows() - truth, dim=1) <= TOLERANCE * size + 1e-7)
    torch.testing.assert_close(block.norms(), size, rtol=TOLERANCE, atol=1e-6)
    weights = torch.linspace(0.5, 2.0, len(truth), dtype=torch.float64)
    total = weights.float() @ truth
    scale = float(torch.linalg.vector_norm(weights.float()[:, None] * truth))
    assert float(torch.linalg.vector_norm(block.weighted_sum(weights) - total)) <= TOLERANCE * scale + 1e-7
    if ghost is not None:
        kinds = {type(piece).__name__ for piece in block._pieces}  # type: ignore[attr-defined]
        assert ("Ghost" in kinds) == ghost
