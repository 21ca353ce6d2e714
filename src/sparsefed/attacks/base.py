"""What an attacker may know, and what an attack is.

The threat model is a type: an attack is given one frozen `Knowledge` and nothing else, so that what it uses can be read
off its code. Who is compromised and when they act is the federation's business; what the server then does with the
update is the defense's.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from sparsefed.errors import ConfigError
from sparsefed.rng import rng


@dataclass(frozen=True)
class Knowledge:
    """What the attackers of a round know: the public model, their own data, and the norm that the server enforces."""

    round: int
    theta: Tensor  # float32 [d], the model that every device of the round downloads
    budget: float  # the l2 norm to which the server clips an update; inf if it does not
    gradient: Callable[[Tensor, Tensor, Tensor], Tensor]  # (theta, x, y) -> gradient of the mean loss [d]
    seed: int


class Attack(Protocol):
    """Crafts the update that every attacker of a round sends: `theta_before - theta_after`, like any other."""

    def __call__(self, knowledge: Knowledge) -> Tensor: ...


@dataclass(frozen=True)
class AuxiliarySet:
    """Points whose labels the attackers want changed (Bhagoji et al. 2019): test points with wrong labels."""

    x: Tensor  # raw examples [s, ...]
    y: Tensor  # int64 [s], the labels wanted
    positions: Tensor  # int64 [s], where they stand in the test set: test accuracy leaves them out


def auxiliary_set(x: Tensor, y: Tensor, s: int, classes: int, seed: int) -> AuxiliarySet:
    """s test points drawn without replacement, each with one of its wrong labels, all equally likely."""
    if not 1 <= s < len(y):
        raise ConfigError(
            f"auxiliary = {s} points cannot be drawn from {len(y)} test points with some left to test on; "
            f"use 1 to {len(y) - 1}"
        )
    generator = rng(seed, "auxiliary set")
    positions = torch.from_numpy(np.sort(generator.choice(len(y), s, replace=False)))
    shift = torch.from_numpy(generator.integers(1, classes, s))
    return AuxiliarySet(x[positions], (y[positions] + shift) % classes, positions)


def project(vector: Tensor, radius: float) -> Tensor:
    """The nearest point of the l2 ball."""
    norm = float(torch.linalg.vector_norm(vector, dtype=torch.float64))
    return vector * (radius / norm) if norm > radius else vector


def rescale(vector: Tensor, radius: float) -> Tensor:
    """The same direction at exactly this norm; as it is where there is no radius or no direction."""
    norm = float(torch.linalg.vector_norm(vector, dtype=torch.float64))
    return vector * (radius / norm) if math.isfinite(radius) and norm > 0 else vector
