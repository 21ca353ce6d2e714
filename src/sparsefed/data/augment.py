"""Augmentation: a device trains on its images slightly moved, differently each round.

An augmentation takes the raw images of a block and one 64-bit *key* for each, and gives images of the same shape. A key
depends on the seed, the round, the device and the place of the example within the device (`example_keys`), and an
image on its own key alone. So what a device trains on is the same however a cohort is cut into blocks, whoever else is
in it, and after a resume.

Only what honest devices train on is augmented. Test data, the server's root examples and what attackers choose or
hold (`Knowledge.own`) are not: how to treat their images is up to the attack. A device that takes several
local epochs sees one augmentation a round.

To add one, write a function and a line in AUGMENTATIONS; or name it in the config as `"my_module:my_function"`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sparsefed.core.errors import ConfigError
from sparsefed.core.federation import KEY_STEP, Augmentation, example_keys, none
from sparsefed.core.rng import Words, mixed
from sparsefed.core.types import IntArray
from sparsefed.kernels.compilation import warm_up

_TOP, _LEFT, _MIRROR, _ANGLE = range(4)  # the draws from a key, in this order


def cifar(x: Tensor, keys: Words) -> Tensor:
    """Random crop after reflecting 4 pixels around the image, and a mirror image with probability 1/2.

    The authors' code does this with CIFAR-10 and CIFAR-100.
    """
    return moved(x, keys, crop=4, mirror=True)


def femnist(x: Tensor, keys: Words) -> Tensor:
    """Random crop after reflecting 2 pixels around the image, and a turn by up to 5 degrees; never mirrored.

    *Departures.* The paper says crops and flips; its authors' code does not flip letters, and neither do we. That code
    fills with white what we reflect (the same, where the edge of an image is paper), and also stretches; we do not.
    """
    return moved(x, keys, crop=2, degrees=5.0)


__all__ = ["AUGMENTATIONS", "Augmentation", "cifar", "example_keys", "femnist", "moved", "none"]

AUGMENTATIONS: Mapping[str, Augmentation] = {"none": none, "cifar": cifar, "femnist": femnist}


def moved(x: Tensor, keys: Words, crop: int = 0, degrees: float = 0.0, mirror: bool = False) -> Tensor:
    """Return each image seen through a window of its own size onto the plane that its reflections tile.

    The window is shifted by -crop..crop pixels each way, turned about its centre by -degrees..degrees, and mirrored
    with probability 1/2, all uniform and independent. Reflections leave the edge pixel single, as in `np.pad(mode=
    "reflect")`, so without a turn this is a random crop of the padded image. A turn samples once, bilinearly.
    """
    from sparsefed.data.image_kernels import PIXEL, rehearse, shift_images, turn_images

    if x.dtype != torch.uint8 or x.dim() != 4:
        raise ConfigError(
            f"only images can be augmented, uint8 [M, H, W, C], but the examples are {x.dtype} {list(x.shape)}; "
            'use augment = "none" for them'
        )
    warm_up(rehearse)
    images = np.ascontiguousarray(x.numpy())
    out = np.empty_like(images)
    height, width = images.shape[1:3]
    # The corners move furthest: along a chord of the circle they lie on. One more pixel for the rounding.
    reach = math.ceil(math.hypot(height, width) * math.sin(math.radians(min(degrees, 180)) / 2)) + 1 if degrees else 0
    rows, columns = (reflected(np.arange(-crop - reach, side + crop + reach + 1), side) for side in (height, width))
    top, left = (reach + _whole(keys, part, 2 * crop + 1) for part in (_TOP, _LEFT))
    mirrored = _whole(keys, _MIRROR, 2) if mirror else np.zeros(len(keys), np.int64)
    if degrees == 0:
        shift_images(images, top, left, mirrored, rows, columns, out)
    else:
        angles = np.deg2rad(degrees) * (2 * _share(keys, _ANGLE) - 1)
        cosines, sines = (np.rint(turn(angles) * 2**PIXEL).astype(np.int64) for turn in (np.cos, np.sin))
        turn_images(images, top, left, mirrored, cosines, sines, rows, columns, out)
    return torch.from_numpy(out)


def reflected(places: IntArray, side: int) -> IntArray:
    """Return which pixel of a row of `side` lies at these places, the row extended by its reflections without end.

    >>> reflected(np.arange(-3, 6), 3)
    array([1, 2, 1, 0, 1, 2, 1, 0, 1])
    """
    if side == 1:
        return np.zeros_like(places)
    folded: IntArray = places % (2 * side - 2)
    return np.minimum(folded, 2 * side - 2 - folded)


def _words(keys: Words, part: int) -> Words:
    return mixed(keys + KEY_STEP * np.full(1, part + 1, np.uint64))


def _whole(keys: Words, part: int, below: int) -> IntArray:
    """Draw a whole number from 0 to below - 1 for each key, uniform up to below / 2^32."""
    return ((_words(keys, part) >> np.uint64(32)) * np.uint64(below) >> np.uint64(32)).astype(np.int64)


def _share(keys: Words, part: int) -> npt.NDArray[np.floating[Any]]:
    """Draw a number in [0, 1) for each key, uniform."""
    return (_words(keys, part) >> np.uint64(11)) * 2.0**-53
