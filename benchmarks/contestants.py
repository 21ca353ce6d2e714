"""Who runs against whom: the plain batch step that nothing can beat, ours, and the loop over clients."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from sparsefed.core.engine import Cohort, Engine, LocalStep
from sparsefed.core.task import Task, working_copy
from sparsefed.core.types import Context
from sparsefed.defenses import build

LR, CLIP_NORM, WEIGHT_DECAY = 0.01, 1.0, 5e-6  # weight decay is not 0, so that all of our path is timed
LOCAL_LR = 0.01  # of each step where devices take several
_STEP, _CONTEXT = LocalStep(1.0, WEIGHT_DECAY), Context(round=1, lr=LR)


class Round(NamedTuple):
    """What every contestant is given."""

    task: Task
    theta: Tensor
    cohort: Cohort


def plain_step(given: Round, dtype: torch.dtype) -> Callable[[], object]:
    """The cohort's examples as one ordinary batch: gather, normalise, forward, backward, SGD; channels last."""
    task, cohort = given.task, given.cohort
    module = working_copy(task, dtype).train()
    optimizer = torch.optim.SGD(module.parameters(), lr=LR, weight_decay=WEIGHT_DECAY)

    def step() -> None:
        batch = cohort.gather(cohort.ids)
        optimizer.zero_grad()
        outputs = module(task.prepare(batch.x).to(dtype))
        task.losses(outputs, batch.y).mean().backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def clip_and_mean(given: Round, engine: Engine) -> Callable[[], Tensor]:
    """What SparseFed asks of a cohort: every client's norm, then the mean of the clipped updates, then the step."""
    defense = build("clipping", clip_norm=CLIP_NORM, rho=0.0)
    state = defense.init(given.task.d)

    def step() -> Tensor:
        return given.theta - defense.step(state, engine(given.theta, given.cohort, _STEP), _CONTEXT).delta

    return step


def all_rows(given: Round, engine: Engine) -> Callable[[], list[Tensor]]:
    """Every client's update written out, as Krum needs them."""

    def step() -> list[Tensor]:
        return [block.rows() for block in engine(given.theta, given.cohort, _STEP)]

    return step
