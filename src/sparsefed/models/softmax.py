"""One softmax layer: the model whose certificate is exact."""

from __future__ import annotations

import math
from typing import Annotated

from torch import nn


def softmax(
    shape: tuple[int, int, int],
    classes: int,
    *,
    zero: Annotated[bool, "all weights start at 0, as certified accuracy wants"] = False,
) -> nn.Module:
    """Build multinomial logistic regression on the pixels."""
    layer = nn.Linear(math.prod(shape), classes)
    if zero:
        nn.init.zeros_(layer.weight)
        nn.init.zeros_(layer.bias)
    return nn.Sequential(nn.Flatten(), layer)
