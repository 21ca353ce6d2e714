"""Min-Max and Min-Sum: as far from the mean as the honest updates are from each other (Shejwalkar and Houmansadr
2021, Manipulating the Byzantine, section V-C, for attackers who do not know the server's rule).

    u = mean - gamma * p,   p = mean / |mean| ("unit"),  std ("std")  or  sign(mean) ("sign")
    Min-Max   largest gamma with  max_i |u - u_i|   <=  max_ij |u_i - u_j|
    Min-Sum   largest gamma with  sum_i |u - u_i|^2 <=  max_i sum_j |u_i - u_j|^2

gamma by the paper's Algorithm 1: halving steps, up where the condition holds, down where not.

*Departures.* The search starts at a gamma of the size of the updates' own spread, and stops at a hundred-thousandth
of that, where the paper starts and stops at fixed numbers: so nothing depends on the units of an update. For Min-Sum
the authors' code bounds by the smallest of the sums over j; the paper, and this, by the largest. std divides by the
number of updates. The honest updates are seen as the server sees them: clipped; and what is sent is within the budget.
The direction is the paper's to choose by trying; "sign" hurt most on the small federation of the tests.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Annotated, Literal, NamedTuple, get_args

import torch
from torch import Tensor

from sparsefed.attacks.attack import HONEST, attack
from sparsefed.attacks.base import project
from sparsefed.attacks.goals import Goal
from sparsefed.attacks.honest import centred_gram, received, standard_deviations
from sparsefed.core.errors import ConfigError, unknown
from sparsefed.core.threat import Attack, Knowledge

PAPER = "Shejwalkar and Houmansadr 2021, Manipulating the Byzantine: Optimizing Model Poisoning Attacks and Defenses"

Direction = Literal["unit", "std", "sign"]
Away = Annotated[Direction, "away from the mean: straight back, along the standard deviations, or along its signs"]

TOLERANCE = 1e-5  # relative to where the search starts


@attack(paper=PAPER, needs=HONEST, place=1)
def min_max(goal: Goal | None, *, direction: Away = "sign") -> Attack:  # noqa: ARG001
    """Min-Max: an update no farther from any honest update than two of these are from each other."""
    return _distant("min_max", direction, _largest_distance)


@attack(paper=PAPER, needs=HONEST, place=8)
def min_sum(goal: Goal | None, *, direction: Away = "sign") -> Attack:  # noqa: ARG001
    """Min-Sum: an update in sum no farther from the honest updates than the loneliest of these is from the others."""
    return _distant("min_sum", direction, _largest_sum)


class Spread(NamedTuple):
    """The quantities that both conditions need of the updates: |u_i - u|^2 = c_i + 2 gamma b_i + gamma^2 a."""

    a: float  # |p|^2
    b: Tensor  # float64 [m], <u_i - mean, p>
    c: Tensor  # float64 [m], |u_i - mean|^2
    pairs: Tensor  # float64 [m, m], |u_i - u_j|^2

    def squares(self, gamma: float) -> Tensor:
        return self.c + 2 * gamma * self.b + gamma**2 * self.a


Limit = Callable[[Spread], tuple[Callable[[Tensor], float], float]]  # the bounded quantity, and its bound


def _largest_distance(spread: Spread) -> tuple[Callable[[Tensor], float], float]:
    return lambda squares: float(squares.max()), float(spread.pairs.max())


def _largest_sum(spread: Spread) -> tuple[Callable[[Tensor], float], float]:
    # A mean in place of the sum on both sides: the bound is then of the size of one squared distance.
    return lambda squares: float(squares.mean()), float(spread.pairs.mean(1).max())


def _distant(name: str, direction: Direction, limit: Limit) -> Attack:
    if direction not in get_args(Direction):
        raise ConfigError(f"{name}: {unknown('direction', direction, get_args(Direction))}")

    def craft(knowledge: Knowledge) -> Tensor:
        rows = received(knowledge)
        mean, p = rows.mean(0), _perturbation(rows, direction)
        spread = _spread(rows, p)
        if spread.a == 0:
            return project(mean, knowledge.budget)
        measure, bound = limit(spread)
        # Twice this gamma breaks either bound, and the search reaches anything below twice its start.
        start = math.sqrt(bound / spread.a)
        gamma = largest(lambda gamma: measure(spread.squares(gamma)) <= bound, start)
        return project(mean - gamma * p, knowledge.budget)

    return Attack(craft, frozenset({"honest updates"}))


def _perturbation(rows: Tensor, direction: Direction) -> Tensor:
    if direction == "std":
        return standard_deviations(rows)
    mean = rows.mean(0)
    if direction == "sign":
        return torch.sign(mean)
    norm = float(torch.linalg.vector_norm(mean, dtype=torch.float64))
    return mean / norm if norm > 0 else mean


def largest(accepted: Callable[[float], bool], start: float) -> float:
    """Return the largest accepted gamma below 2 * start, to 1e-5 of start; 0 is taken as accepted.

    >>> round(largest(lambda gamma: gamma <= 1.2345, 1.0), 3)
    1.234
    """
    gamma, step, best = start, start, 0.0
    while abs(gamma - best) > TOLERANCE * start:
        step /= 2
        if accepted(gamma):
            best, gamma = gamma, gamma + step
        else:
            gamma -= step
    return best


def _spread(rows: Tensor, p: Tensor) -> Spread:
    m = len(rows)
    gram = centred_gram(rows, p[None])
    c = gram.diagonal()[:m]
    pairs = (c[:, None] + c[None, :] - 2 * gram[:m, :m]).clamp(min=0)
    return Spread(float(gram[m, m]), gram[:m, m], c, pairs)
