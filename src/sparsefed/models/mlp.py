"""A multilayer perceptron: the smallest model that is not convex."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Annotated

from torch import nn

from sparsefed.core.errors import ConfigError


def mlp(
    shape: tuple[int, ...],
    classes: int,
    *,
    hidden: Annotated[tuple[int, ...], "units of each hidden layer, e.g. [200, 200]"] = (200, 200),
) -> nn.Module:
    """Build fully connected layers with ReLU between them; the default is the 2NN of McMahan et al. 2017."""
    if any(width < 1 for width in hidden):
        raise ConfigError(f"model mlp: hidden is {list(hidden)}; every layer needs at least 1 unit")
    widths = (math.prod(shape), *hidden)
    layers: list[nn.Module] = [nn.Flatten()]
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], classes))
