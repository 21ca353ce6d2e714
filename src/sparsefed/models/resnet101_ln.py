"""ResNet101 with LayerNorm in place of BatchNorm: the paper's model for FEMNIST (its appendix, "FEMNIST Parameters").

The paper says no more than that. What has the 43 124 350 parameters of the authors' public code (CommEfficient, for 1
channel of 28x28 and 62 classes) is the ImageNet network of He et al. 2016 (7x7 convolution of stride 2, 3x3 max-pool of
stride 2, bottlenecks 3-4-23-3 with the stride in their 3x3 convolution, mean over the positions, linear layer with
bias) where every normalisation runs over a whole image [C, H, W] and has a scale and a shift *of its own for every
entry*, not for every channel. So the count depends on the size of the images: 28x28 become 14x14 (convolution), 7x7
(pooling and the first stage), 4x4, 2x2, 1x1.

*Departures.* Other sizes and channels are taken too: the authors' shapes are written out for 28x28 and 1 channel.
"""

from __future__ import annotations

from typing import Annotated

from torch import Tensor, nn

from sparsefed.models.info import model

BLOCKS = (3, 4, 23, 3)
EXPANSION = 4  # output channels of a bottleneck, over those of its 3x3 convolution

Image = tuple[int, int, int]  # [C, H, W]


def _after(image: Image, channels: int, stride: int) -> Image:
    """Return the shape after a convolution or pooling whose padding keeps the size at stride 1."""
    return channels, -(-image[1] // stride), -(-image[2] // stride)


def _conv(image: Image, channels: int, kernel: int, stride: int = 1) -> tuple[nn.Sequential, Image]:
    """Return a convolution without bias followed by LayerNorm over its whole output, and the output's shape."""
    out = _after(image, channels, stride)
    conv = nn.Conv2d(image[0], channels, kernel, stride, padding=kernel // 2, bias=False)
    nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
    return nn.Sequential(conv, nn.LayerNorm(out)), out


class _Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions beside a shortcut, which is projected if the shape changes."""

    def __init__(self, image: Image, width: int, stride: int) -> None:
        super().__init__()
        self.reduce, narrow = _conv(image, width, 1)
        self.mix, mixed = _conv(narrow, width, 3, stride)
        self.expand, self.out = _conv(mixed, EXPANSION * width, 1)
        self.shortcut = nn.Identity() if self.out == image else _conv(image, EXPANSION * width, 1, stride)[0]
        # In place: a normalisation needs its input for the backward pass, never its output.
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        branch = self.expand(self.relu(self.mix(self.relu(self.reduce(x)))))
        out: Tensor = self.relu(branch.add_(self.shortcut(x)))
        return out


@model((1, 28, 28), 62, "FEMNIST")
def resnet101_ln(
    shape: Image, classes: int, *, width: Annotated[int, "channels of the first convolution"] = 64
) -> nn.Module:
    """Build ResNet101 with LayerNorm over [C, H, W] in place of BatchNorm: the paper's model for FEMNIST."""
    stem, image = _conv(shape, width, 7, 2)
    image = _after(image, width, 2)
    layers: list[nn.Module] = [stem, nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, padding=1)]
    for stage, blocks in enumerate(BLOCKS):
        for block in range(blocks):
            bottleneck = _Bottleneck(image, width * 2**stage, stride=2 if stage and not block else 1)
            layers.append(bottleneck)
            image = bottleneck.out
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(image[0], classes))
