"""What attacks share: projections, and what may be asked of a `Knowledge`."""

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
