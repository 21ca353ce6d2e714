"""Images as lossless WebP strips in an .npz: about half the size of deflated photographs.

`webp` holds the bytes of all strips, each a column of images of one width; `offsets[i]:offsets[i + 1]` is strip i. They
are read one after the other and decoded by threads (Pillow releases the GIL meanwhile), straight into the caller's
array.
"""

from __future__ import annotations

import io
import os
import zipfile
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np

from sparsefed.data.formats import npz
from sparsefed.data.record import DamagedError

if TYPE_CHECKING:
    from sparsefed.core.types import UInt8Array


def decode(archive: zipfile.ZipFile, out: UInt8Array) -> None:
    """Fill `out` [N, H, W, 3] with the decoded strips, each of which is a part of it."""
    sizes = _sizes(archive)
    flat = out.reshape(-1, *out.shape[2:])  # [N * H, W, 3]: a column of images, as the strips are
    threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with ThreadPoolExecutor(threads) as pool, archive.open("webp.npy") as member:
        npz.header(member)
        at, running = 0, deque[Future[None]]()
        for size in sizes:
            raw = member.read(size)
            height = _height(raw, flat.shape[1])
            if at + height > len(flat):
                raise DamagedError(f"holds more than {len(out)} images")
            running.append(pool.submit(_into, raw, flat[at : at + height]))
            at += height
            if len(running) > 2 * threads:  # so that few strips wait in memory
                running.popleft().result()
        for each in running:
            each.result()
    if at != len(flat):
        raise DamagedError(f"holds {at // out.shape[1]} images; it should have {len(out)}")


def _sizes(archive: zipfile.ZipFile) -> list[int]:
    """Return the bytes of each strip."""
    offsets = npz.array(archive, "offsets", "iu").astype(np.int64)
    sizes = np.diff(offsets) if offsets.ndim == 1 else np.zeros(1)
    if (sizes <= 0).any():
        raise DamagedError("is damaged: its strips do not follow each other")
    return [int(size) for size in sizes]


def _height(raw: bytes, width: int) -> int:
    """Return the height of a strip, from its header alone."""
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(io.BytesIO(raw), formats=["WEBP"]) as image:
            if image.width != width or image.mode != "RGB":
                raise DamagedError(f"holds a strip that is {image.width} wide and {image.mode}, not {width} and RGB")
            return image.height
    except UnidentifiedImageError:
        raise DamagedError("holds a strip that is no WebP image") from None
    except OSError as error:
        raise DamagedError(f"holds a strip that cannot be read ({error})") from error


def _into(raw: bytes, out: UInt8Array) -> None:
    from PIL import Image

    try:
        with Image.open(io.BytesIO(raw), formats=["WEBP"]) as image:
            out[:] = np.asarray(image)
    except (OSError, ValueError) as error:
        raise DamagedError(f"holds a strip that cannot be decoded ({error})") from error
