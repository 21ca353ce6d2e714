"""The updates of many small federations at once: devices of different groups, each at its own group's weights.

Groups that train a model each (`theory.votes`) never share weights, so `fused` has nothing to fuse. Where a device's
step is too small to keep a core busy, the devices of many groups are computed in one pass over stacked weights
(`torch.func.vmap`: a linear layer becomes one batched product). Where it is not, each group is computed by the ordinary
engine. The rule is that of `several_steps`, a limit on a step's arithmetic, so that the same config gives the same
bits. Only devices of equal size share a stack: nothing is padded, so that what one group owns changes nothing in
another one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from sparsefed.core.engine import Cohort, LocalPlan, LocalStep, few, turns
from sparsefed.core.task import Task, draws, working_copy
from sparsefed.engines.moments import Moments
from sparsefed.engines.several_steps import (
    STACK_LIMIT,
    StepBlock,
    chosen_examples,
    descend,
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


class _Stack(NamedTuple):
    """Devices of equal size with their prepared examples, to be computed in one pass."""

    places: tuple[tuple[int, int], ...]  # of each device: its group and its row in that group's cohort
    x: Tensor  # [m, examples, ...]
    y: Tensor  # [m, examples]


def worth_stacking(task: Task, theta: Tensor, cohort: Cohort, plan: LocalPlan) -> bool:
    """Return whether devices like these are computed faster in stacks than one group at a time, and as well."""
    if draws(task.template):
        return False
    batch = few(cohort)
    largest = int(cohort.sizes.max())
    examples = largest if plan.batch is None else min(plan.batch, largest)
    return operations(task, batch) * examples <= STACK_LIMIT and stackable(task, theta, batch)


def _inputs(x: Tensor, plan: LocalPlan) -> int:
    """Return how many numbers one step of a device with these examples reads."""
    return x.numel() if plan.batch is None else x[: plan.batch].numel()


class GroupStacks:
    """The engine for stacks of groups: one working copy of the module for each thread."""

    def __init__(self, task: Task, dtype: torch.dtype) -> None:
        self._task, self._dtype = task, dtype
        self._modules = [working_copy(task, dtype).train() for _ in range(torch.get_num_threads())]
        self._ids: list[bytes] = []
        self._stacks: list[_Stack] = []

    def rows(self, groups: Sequence[GroupWork], same_examples: bool = False) -> list[Tensor]:
        """Return the updates of each group's cohort [m, d], in the order of its ids.

        Args:
            groups: The groups, with their models and cohorts.
            same_examples: Whether the same ids mean the same examples as in the call before, which then are kept.
        """
        ids = [each.cohort.ids.tobytes() for each in groups]
        if not (same_examples and ids == self._ids):
            self._ids, self._stacks = ids, [*self._stacked(groups)]
        out = [torch.empty(len(each.cohort.ids), self._task.d) for each in groups]

        def work(module: nn.Module, stack: _Stack) -> None:
            for row, (group, place) in zip(self._updates(module, groups, stack), stack.places, strict=True):
                out[group][place] = row

        share_out(work, self._stacks, self._modules)
        return out

    def _stacked(self, groups: Sequence[GroupWork]) -> Iterator[_Stack]:
        """Yield stacks of devices of equal size, whose groups train with the same numbers."""
        alike: dict[tuple[int, float, float], list[tuple[tuple[int, int], Tensor, Tensor]]] = {}
        for number, each in enumerate(groups):
            batch = each.cohort.gather(each.cohort.ids)
            inputs, sizes = self._task.prepare(batch.x), batch.sizes.tolist()
            inputs = inputs.to(self._dtype) if inputs.is_floating_point() else inputs
            parts = zip(torch.split(inputs, sizes), torch.split(batch.y, sizes), strict=True)
            for place, (x, y) in enumerate(parts):
                key = (len(y), each.step.scale, each.step.weight_decay)
                alike.setdefault(key, []).append(((number, place), x, y))
        for devices in alike.values():
            size = max(1, STACK_BYTES // (4 * (3 * self._task.d + 2 * _inputs(devices[0][1], groups[0].step.plan))))
            for low in range(0, len(devices), size):
                some = devices[low : low + size]
                x, y = torch.stack([x for _, x, _ in some]), torch.stack([y for _, _, y in some])
                yield _Stack(tuple(place for place, _, _ in some), x, y)

    def _updates(self, module: nn.Module, groups: Sequence[GroupWork], stack: _Stack) -> Tensor:
        """Return the updates [m, d] of a stack, each from its own group's model."""
        theta = torch.stack([groups[group].theta for group, _ in stack.places])
        step, examples = groups[stack.places[0][0]].step, stack.y.shape[1]
        work = [(groups[group], place) for group, place in stack.places]
        every = [turns(each.step, int(each.cohort.ids[place]), examples) for each, place in work]
        start = StepBlock(self._task, theta, step, theta).parts(theta)
        local, moments = start if len(every[0]) == 1 else [part.clone() for part in start], Moments()
        for turn, (chosen, rate) in enumerate(every[0]):
            x, y = stack.x, stack.y
            if chosen is not None:
                x, y = chosen_examples(x, y, [own[turn] for own in every])
            gradients = self._gradients(module, local, x, y)
            if len(every[0]) == 1:
                flat = torch.cat([part.float().flatten(1) for part in gradients], 1)
                return flat.add_(theta, alpha=step.weight_decay).mul_(rate)
            descend(local, [part.float() for part in gradients], start, rate, step, moments)
        return theta - torch.cat([part.flatten(1) for part in local], 1)

    def _gradients(self, module: nn.Module, local: list[Tensor], x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        """Return the gradient of each device's mean loss at its own weights, parameter by parameter."""
        names = [slot.name for slot in self._task.slots]

        def loss(weights: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
            return self._task.losses(functional_call(module, weights, (x,)), y).mean()

        weights = [mine.to(self._dtype).detach().requires_grad_() for mine in local]
        total = vmap(loss)(dict(zip(names, weights, strict=True)), x, y).sum()
        return torch.autograd.grad(total, weights, materialize_grads=True)
