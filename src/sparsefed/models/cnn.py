"""A small convolutional network: about 100 000 parameters for 28x28 images of one channel."""

from __future__ import annotations

from torch import nn


def cnn(shape: tuple[int, int, int], classes: int, *, width: int = 16, hidden: int = 52) -> nn.Module:
    """Build a CNN: two 5x5 convolutions with max-pooling, one hidden layer.

    Pooling comes before the ReLU: outputs and gradients are the same to the bit, from a quarter of the numbers.
    """
    channels, height, breadth = shape
    return nn.Sequential(
        nn.Conv2d(channels, width, 5, padding=2),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(width, 2 * width, 5, padding=2),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(2 * width * (height // 4) * (breadth // 4), hidden),
        nn.ReLU(),
        nn.Linear(hidden, classes),
    )
