"""A device's own optimizer: momentum or Adam over the steps of one round, from 0 in every round.

    momentum:  m <- beta m + d                                 step m
    Adam:      m <- b1 m + (1 - b1) d,  v <- b2 v + (1 - b2) d^2
               step (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps)          (Kingma and Ba 2015, Algorithm 1)

`d` is the direction of plain gradient descent, weight decay included: not AdamW. Momentum is not damped, as in
torch.optim. A device keeps nothing from one round to the next: the next time it starts from another model.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from sparsefed.core.engine import LocalPlan

FIRST, SECOND, EPS = 0.9, 0.999, 1e-8  # Adam's b1, b2 and eps, as the paper has them


class Moments:
    """The moments of one device, or of several at once, during the steps of a round."""

    def __init__(self) -> None:
        self._first: list[Tensor] = []
        self._second: list[Tensor] = []
        self._taken = 0

    @torch.no_grad()
    def step(self, plan: LocalPlan, directions: Sequence[Tensor]) -> list[Tensor]:
        """Return the steps to subtract, times the rate, and remember these directions; plain descent has no memory."""
        directions = list(directions)
        if not plan.adam and not plan.momentum:
            return directions
        self._taken += 1
        keep, add = (FIRST, 1 - FIRST) if plan.adam else (plan.momentum, 1.0)
        self._first = _moved(self._first, directions, keep, add)
        if not plan.adam:
            return self._first
        self._second = _moved(self._second, torch._foreach_mul(directions, directions), SECOND, 1 - SECOND)
        wanted = zip(self._first, self._second, strict=True)
        first, second = 1 - FIRST**self._taken, 1 - SECOND**self._taken
        return [m / first / ((v / second).sqrt() + EPS) for m, v in wanted]


def _moved(moments: list[Tensor], values: Sequence[Tensor], keep: float, add: float) -> list[Tensor]:
    """Return keep * moment + add * value, for each; before the first step the moments are 0."""
    if not moments:
        return [value * add for value in values]
    return [moment * keep + value * add for moment, value in zip(moments, values, strict=True)]
