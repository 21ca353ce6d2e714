"""Images of one's own: files in a folder a class, and columns of pictures, as bytes [N, H, W, C]."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sparsefed.core.errors import DataError
from sparsefed.data import limits
from sparsefed.data.own_arrays import Size
from sparsefed.data.record import DamagedError

if TYPE_CHECKING:
    from sparsefed.core.types import UInt8Array

IMAGES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff")


def image_files(root: Path) -> list[Path]:
    """Return the images of every class, sorted, so that the order is the same on every machine."""
    found = sorted(path for path in root.glob("*/*") if path.suffix.lower() in IMAGES and path.is_file())
    odd = next((path.parent for path in found if not path.parent.name.isprintable()), None)
    if odd is not None:
        raise DataError(f"the folder {odd} has a name with control characters or not in UTF-8; rename it")
    if not found:
        raise DataError(f"{root} holds no images; give a folder with a folder of images ({', '.join(IMAGES)}) a class")
    return found


def hashed(path: Path) -> float:
    """Return a number in [0, 1) that depends on the path alone."""
    return int.from_bytes(hashlib.sha256(os.fsencode(path.as_posix())).digest()[:8], "big") / 2**64


def opened_images(paths: list[Path], size: Size | None, grey: bool) -> UInt8Array:
    """Read image files, scaled to `size`."""
    return _stacked(len(paths), (_opened(path, size, grey) for path in paths), map(str, paths), sum(map(_bytes, paths)))


def column_images(rows: Any, image: str, size: Size | None, grey: bool) -> Any:
    """Return a column of a Hugging Face data set that holds pictures, or arrays."""
    if hasattr(rows[0][image], "convert"):
        names = (f"image {i}" for i in range(len(rows)))
        return _stacked(len(rows), (pixels_of(row[image], size, grey) for row in rows), names)
    return np.stack([_levels(row[image]) for row in rows])


def _bytes(path: Path) -> int:
    return path.stat().st_size


def _stacked(n: int, images: Any, names: Any, packed: int | None = None) -> UInt8Array:
    """Stack images into [n, H, W, C] one at a time, so that nothing is held twice; `packed` are their bytes on disk."""
    out: UInt8Array | None = None
    for i, (image, name) in enumerate(zip(images, names, strict=False)):
        if out is None:
            if packed is not None:
                limits.check(n * image.size, packed, f"{n} images like {name}")
            out = np.empty((n, *image.shape), np.uint8)
        if image.shape != out.shape[1:]:
            raise DataError(
                f"{name} is {list(image.shape)}, the others {list(out.shape[1:])}; give a size to scale them to"
            )
        out[i] = image
    assert out is not None
    return out


def _opened(path: Path, size: Size | None, grey: bool) -> UInt8Array:
    from PIL import Image, UnidentifiedImageError

    try:
        with limits.guarded(UnidentifiedImageError), Image.open(path) as image:
            limits.check(image.width * image.height * len(image.getbands()), _bytes(path), "it")
            return pixels_of(image, size, grey)
    except UnidentifiedImageError:
        raise DataError(f"{path} is no image; delete it or replace it") from None
    except DamagedError as error:
        raise DataError(f"{path} cannot be read as an image: it {error}; replace it") from error


def pixels_of(image: Any, size: Size | None, grey: bool) -> UInt8Array:
    """Return one Pillow image as bytes [H, W, C]."""
    image = image.convert("L" if grey else "RGB")
    if size is not None:
        image = image.resize((size[1], size[0]))
    pixels: UInt8Array = np.asarray(image)
    return pixels[..., None] if grey else pixels


def _levels(given: Any) -> Any:
    """Return whole numbers from 0 to 255 as bytes, and anything else as it is."""
    levels = np.asarray(given)
    fits = levels.dtype.kind in "iu" and levels.size > 0 and levels.min() >= 0 and levels.max() <= 255
    return levels.astype(np.uint8) if fits else levels
