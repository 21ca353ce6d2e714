"""The updates of many small federations at once: devices of different groups, each at its own group's weights.

Groups that train a model each (`theory.votes`) never share weights, so `fused` has nothing to fuse. Where a device's
step is too small to keep a core busy, the devices of many groups are computed in one pass over stacked weights
(`torch.func.vmap`: a linear layer becomes one batched product). Where it is not, each group is computed by the ordinary
engine. The rule is that of `several_steps`, a limit on a step's arithmetic, so that the same config gives the same
bits. Only devices of equal size share a stack: nothing is padded, so that what one group owns changes nothing in
another one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from sparsefed.core.engine import Cohort, LocalPlan, LocalStep, few
from sparsefed.core.task import Task, draws, working_copy
from sparsefed.engines.several_steps import (
    STACK_LIMIT,
    Device,
    StepBlock,
    chosen_examples,
    descend,
    devices_of,
    operations,
    share_out,
    stackable,
)

STACK_BYTES = 2**25  # of weights and inputs in one stack: larger ones leave the cache


class GroupWork(NamedTuple):
    """The devices of one group in a round: its model, its cohort and how they train."""

    theta: Tensor  # [d]
    cohort: Cohort
    step: LocalStep


class _Member(NamedTuple):
    """A device of a group in a stack."""

    group: int
    device: Device


def worth_stacking(task: Task, theta: Tensor, cohort: Cohort, plan: LocalPlan) -> bool:
    """Return whether devices like these are computed faster in stacks than one group at a time, and as well."""
    if draws(task.template):
        return False
    batch = few(cohort)
    largest = int(cohort.sizes.max())
    examples = largest if plan.batch is None else min(plan.batch, largest)
    return operations(task, batch) * examples <= STACK_LIMIT and stackable(task, theta, batch)


class GroupStacks:
    """The engine for stacks of groups: one working copy of the module for each thread."""

    def __init__(self, task: Task, dtype: torch.dtype) -> None:
        self._task, self._dtype = task, dtype
        self._modules = [working_copy(task, dtype).train() for _ in range(torch.get_num_threads())]

    def rows(self, groups: Sequence[GroupWork]) -> list[Tensor]:
        """Return the updates of each group's cohort [m, d], in the order of its ids."""
        out = [torch.empty(len(each.cohort.ids), self._task.d) for each in groups]
        members: dict[tuple[int, float, float], list[_Member]] = {}
        for number, each in enumerate(groups):
            batch = each.cohort.gather(each.cohort.ids)
            for device in devices_of(self._task, each.cohort.ids, batch, each.step, self._dtype):
                key = (len(device.y), each.step.scale, each.step.weight_decay)
                members.setdefault(key, []).append(_Member(number, device))

        def work(module: nn.Module, stack: list[_Member]) -> None:
            rows = self._stacked(module, groups, stack)
            for row, (number, device) in zip(rows, stack, strict=True):
                out[number][device.row] = row

        share_out(work, [stack for each in members.values() for stack in self._stacks(each)], self._modules)
        return out

    def _stacks(self, members: list[_Member]) -> list[list[_Member]]:
        each = 4 * (3 * self._task.d + 2 * members[0].device.x.numel())
        size = max(1, STACK_BYTES // each)
        return [members[low : low + size] for low in range(0, len(members), size)]

    def _stacked(self, module: nn.Module, groups: Sequence[GroupWork], stack: Sequence[_Member]) -> Tensor:
        """Return the updates [m, d] of devices of equal size, each from its own group's model."""
        task, step = self._task, groups[stack[0].group].step
        theta = torch.stack([groups[member.group].theta for member in stack])
        start = StepBlock(task, theta, step, theta).parts(theta)
        x = torch.stack([member.device.x for member in stack])
        y = torch.stack([member.device.y for member in stack])
        names = [slot.name for slot in task.slots]

        def loss(weights: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
            return task.losses(functional_call(module, weights, (x,)), y).mean()

        def gradients(local: list[Tensor], x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
            weights = [mine.to(self._dtype).detach().requires_grad_() for mine in local]
            total = vmap(loss)(dict(zip(names, weights, strict=True)), x, y).sum()
            return torch.autograd.grad(total, weights, materialize_grads=True)

        turns = stack[0].device.turns
        if len(turns) == 1:
            inputs = (
                (x, y) if turns[0].examples is None else chosen_examples(x, y, [each.device.turns[0] for each in stack])
            )
            flat = torch.cat([part.float().flatten(1) for part in gradients(start, *inputs)], 1)
            return flat.add_(theta, alpha=step.weight_decay).mul_(turns[0].rate)
        local = [part.clone() for part in start]
        for turn, (chosen, rate) in enumerate(turns):
            inputs = (x, y) if chosen is None else chosen_examples(x, y, [each.device.turns[turn] for each in stack])
            descend(local, [part.float() for part in gradients(local, *inputs)], start, rate, step)
        return theta - torch.cat([part.flatten(1) for part in local], 1)
