"""Functions that attacks share: projections, and access to what a `Knowledge` grants."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

from sparsefed.core.errors import ConfigError
from sparsefed.core.threat import Need

T = TypeVar("T")
Gradient = Callable[[Tensor], Tensor]  # theta -> [d]


def granted(value: T | None, need: Need) -> T:
    """Return knowledge that was granted; raise if it was not, so that an undeclared need does not go unnoticed."""
    if value is None:
        raise ConfigError(f"the attack uses '{need}', which its attackers were not granted")
    return value


def project(vector: Tensor, radius: float) -> Tensor:
    """Return the nearest point of the l2 ball of this radius."""
    norm = float(torch.linalg.vector_norm(vector, dtype=torch.float64))
    return vector * (radius / norm) if norm > radius else vector


def projected(rows: Tensor, budget: float) -> Tensor:
    """Clip each row to the norm that the server enforces; return the rows themselves where nothing is clipped."""
    given = list(rows)
    cut = [project(row, budget) for row in given]
    return rows if all(a is b for a, b in zip(given, cut, strict=True)) else torch.stack(cut)


def rescale(vector: Tensor, radius: float) -> Tensor:
    """Rescale a vector to exactly this norm; return it unchanged where the radius is infinite or the vector 0."""
    norm = float(torch.linalg.vector_norm(vector, dtype=torch.float64))
    return vector * (radius / norm) if math.isfinite(radius) and norm > 0 else vector


def descend(theta: Tensor, gradient: Gradient, epochs: int, step: float, radius: float) -> Tensor:
    """Run projected gradient descent within a ball around theta; return theta minus the point where it ends."""
    moved = theta.new_zeros(theta.shape)
    for _ in range(epochs):
        moved = project(moved + step * gradient(theta - moved), radius)
    return moved
