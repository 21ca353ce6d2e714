"""The IDX format of MNIST and its relatives: a magic number, the shape, the bytes.

0x00 0x00 0x08 n | n big-endian 32-bit lengths | unsigned bytes, last index fastest
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from sparsefed.errors import DataError

if TYPE_CHECKING:
    from sparsefed.types import UInt8Array

UNSIGNED_BYTE = 0x08


def parse(content: UInt8Array, shape: tuple[int, ...], name: str) -> UInt8Array:
    """The array inside, which must have the given shape; a view, so nothing is copied.

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
