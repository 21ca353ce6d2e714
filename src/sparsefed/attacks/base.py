"""What an attacker may know, and what an attack is.

The threat model is a type: an attack is given one frozen `Knowledge` and nothing else, so that what it uses can be read
off its code. It says beforehand what it must know beyond the public facts (`needs`), and a run whose attackers are not
granted that does not start. Who is compromised and when they act is the federation's business; what the server then
does with the updates is the defense's.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeVar, get_args

import torch
from torch import Tensor

from sparsefed.errors import ConfigError
from sparsefed.types import Batch, State

# What attackers may be granted beyond the public facts of a round (the model, the schedule, the norm that the server
# enforces) and the points they chose themselves:
#   own data         what the compromised devices of the round hold
#   defense          the server's rule with its parameters: they can try out what it would make of any updates
#   honest updates   what the honest devices of this round send
#   server state     momentum, memory: what the server remembers
Need = Literal["own data", "defense", "honest updates", "server state"]
NEEDS: tuple[Need, ...] = get_args(Need)
T = TypeVar("T")
Gradient = Callable[[Tensor], Tensor]  # theta -> [d]


@dataclass(frozen=True)
class Knowledge:
    """What the attackers of a round know: public facts first, then what they were granted, None where they were not."""

    round: int
    theta: Tensor  # float32 [d], the model that every device of the round downloads
    budget: float  # the l2 norm to which the server clips an update; inf if it does not
    gradient: Callable[[Tensor, Tensor, Tensor], Tensor]  # (theta, x, y) -> gradient of the mean loss [d]
    seed: int
    attackers: int = 1  # compromised devices that take part in this round
    scale: float = 1.0  # what an honest device multiplies its gradient by: 1, or in FedAvg mode its rates added up
    cohort: int = 1  # devices that take part, the attackers with them
    own: Batch | None = None  # "own data": device after device
    honest: Tensor | None = None  # "honest updates": float32 [m, d]
    serve: Callable[[Tensor], Tensor] | None = None  # "defense": all updates [n, d] -> what the server would subtract
    server: State | None = None  # "server state"; without it, `serve` starts from a server that remembers nothing
    # Where devices take several local steps: what each attacker would send after honest training on these examples,
    # device after device [a, d]; None where that is `scale` times one gradient.
    train: Callable[[Batch], Tensor] | None = None


Craft = Callable[[Knowledge], Tensor]  # -> [d], which all attackers of the round send, or [attackers, d], one each


@dataclass(frozen=True)
class Attack:
    """Crafts what the attackers of a round send: `theta_before - theta_after`, like any other update."""

    craft: Craft
    needs: frozenset[Need] = frozenset()

    def __call__(self, knowledge: Knowledge) -> Tensor:
        return self.craft(knowledge)


def granted(value: T | None, need: Need) -> T:
    """What the attackers were granted; an attack that forgot to say it needs it fails here, not in silence."""
    if value is None:
        raise ConfigError(f"the attack uses '{need}', which its attackers were not granted")
    return value


def project(vector: Tensor, radius: float) -> Tensor:
    """The nearest point of the l2 ball."""
    norm = float(torch.linalg.vector_norm(vector, dtype=torch.float64))
    return vector * (radius / norm) if norm > radius else vector


def projected(rows: Tensor, budget: float) -> Tensor:
    """Each row cut to the norm that the server enforces; no copy where nothing is cut."""
    given = list(rows)
    cut = [project(row, budget) for row in given]
    return rows if all(a is b for a, b in zip(given, cut, strict=True)) else torch.stack(cut)


def rescale(vector: Tensor, radius: float) -> Tensor:
    """The same direction at exactly this norm; as it is where there is no radius or no direction."""
    norm = float(torch.linalg.vector_norm(vector, dtype=torch.float64))
    return vector * (radius / norm) if math.isfinite(radius) and norm > 0 else vector


def descend(theta: Tensor, gradient: Gradient, epochs: int, step: float, radius: float) -> Tensor:
    """Projected gradient descent within a ball around theta: the way from where it ends back to theta."""
    moved = theta.new_zeros(theta.shape)
    for _ in range(epochs):
        moved = project(moved + step * gradient(theta - moved), radius)
    return moved
