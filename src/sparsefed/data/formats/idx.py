"""The IDX format of MNIST and its relatives, and the four files of that format in which they come.

0x00 0x00 0x08 n | n big-endian 32-bit lengths | unsigned bytes, last index fastest
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from sparsefed.core.errors import DataError
from sparsefed.data.record import Content

if TYPE_CHECKING:
    from sparsefed.core.types import Arrays, IntArray, UInt8Array

UNSIGNED_BYTE = 0x08


def parse(content: UInt8Array, shape: tuple[int, ...], name: str) -> UInt8Array:
    """Return the array inside, which must have the given shape; a view, so nothing is copied.

    >>> parse(np.array([0, 0, 8, 1, 0, 0, 0, 2, 7, 9], dtype=np.uint8), (2,), "labels")
    array([7, 9], dtype=uint8)
    """
    start = 4 + 4 * len(shape)
    magic = content[:4].tolist()
    if magic != [0, 0, UNSIGNED_BYTE, len(shape)]:
        raise DataError(f"{name} is no IDX file of unsigned bytes in {len(shape)} dimensions: it starts with {magic}")
    stated = tuple(content[4:start].view(">u4").tolist()) if content.size >= start else ()
    if stated != shape:
        raise DataError(f"{name} says that its shape is {list(stated)}; it should be {list(shape)}")
    if content.size - start != np.prod(shape):
        raise DataError(f"{name} holds {content.size - start} bytes; its shape {list(shape)} needs {np.prod(shape)}")
    return content[start:].reshape(shape)


def four_files(
    name: str, classes: tuple[str, ...], mean: tuple[float, ...], std: tuple[float, ...]
) -> Callable[[Content], Arrays]:
    """Return a reader of 60 000 + 10 000 grey images of 28x28 and their labels, in files named like MNIST's."""

    def read(content: Content) -> Arrays:
        from sparsefed.core.types import Arrays

        def images(file: str, n: int) -> UInt8Array:
            return parse(content(file), (n, 28, 28), file)[..., None]

        def labels(file: str, n: int) -> IntArray:
            return parse(content(file), (n,), file).astype(np.int64)

        return Arrays(
            name=name,
            x_train=images("train-images-idx3-ubyte", 60_000),
            y_train=labels("train-labels-idx1-ubyte", 60_000),
            x_test=images("t10k-images-idx3-ubyte", 10_000),
            y_test=labels("t10k-labels-idx1-ubyte", 10_000),
            classes=classes,
            mean=mean,
            std=std,
        )

    return read
