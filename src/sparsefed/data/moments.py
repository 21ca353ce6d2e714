"""The mean and standard deviation of each channel, exactly, from how often each of the 256 levels occurs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from sparsefed.core.types import UInt8Array

BLOCK = 4096  # images counted at a time: np.bincount makes 8 bytes of each byte


def moments(x: UInt8Array) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and standard deviation of x / 255 by channel; a constant channel gets the standard deviation 1.

    >>> moments(np.array([[[[0, 7]]], [[[255, 7]]]], np.uint8))[1]
    (0.5, 1.0)
    """
    counts = np.zeros((x.shape[-1], 256))
    for start in range(0, len(x), BLOCK):
        for channel in range(x.shape[-1]):
            counts[channel] += np.bincount(x[start : start + BLOCK, ..., channel].ravel(), minlength=256)
    share = counts / counts.sum(1, keepdims=True)
    levels = np.arange(256) / 255
    mean = share @ levels
    variance = np.array([row @ (levels - m) ** 2 for row, m in zip(share, mean, strict=True)])
    return tuple(mean.tolist()), tuple(np.where(variance > 1e-12, np.sqrt(variance), 1.0).tolist())
