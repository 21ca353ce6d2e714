"""ResNet9 as the paper trains it (its appendix, after David Page's CIFAR recipe).

3x3 convolutions without bias, no normalisation at all, logits times 0.125. Width 64 has 6 568 640 parameters with 3
channels and 10 classes.

*Departures.* The last pooling takes the whole map. The authors' model for Fashion-MNIST pools only 2x2 of its last map
of 3x3, by which logits differ by a fifth: `last_pool = 2`. They also leave Fashion-MNIST as it is, where data sets are
normalised here.
"""

from __future__ import annotations

from typing import Annotated

from torch import Tensor, nn

from sparsefed.core.errors import ConfigError
from sparsefed.models.info import model


def _conv(channels_in: int, channels_out: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(channels_in, channels_out, 3, padding=1, bias=False), nn.ReLU())


class _Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = _conv(channels, channels)
        self.second = _conv(channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.second(self.first(x))
        return out


class _Scale(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor


@model((3, 32, 32), 10, "CIFAR-10")
def resnet9(
    shape: tuple[int, int, int],
    classes: int,
    *,
    width: int = 64,
    last_pool: Annotated[int | None, "side of the last pooling; None: the whole map"] = None,
) -> nn.Module:
    """Build ResNet9 with width - 2 width (+ residual) - 4 width - 8 width (+ residual) channels, pooled thrice."""
    w = width
    if last_pool is not None and any(side // 8 // last_pool != 1 for side in shape[1:]):
        raise ConfigError(f"a last pooling of {last_pool} must leave one number of maps of {shape[1] // 8} pixels")
    return nn.Sequential(
        _conv(shape[0], w),
        _conv(w, 2 * w),
        nn.MaxPool2d(2),
        _Residual(2 * w),
        _conv(2 * w, 4 * w),
        nn.MaxPool2d(2),
        _conv(4 * w, 8 * w),
        nn.MaxPool2d(2),
        _Residual(8 * w),
        nn.AdaptiveMaxPool2d(1) if last_pool is None else nn.MaxPool2d(last_pool),
        nn.Flatten(),
        nn.Linear(8 * w, classes, bias=False),
        _Scale(0.125),
    )
