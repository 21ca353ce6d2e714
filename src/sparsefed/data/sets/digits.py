"""The 1797 handwritten digits, 8x8, that scikit-learn ships (UCI, Alpaydin and Kaynak 1998): always available.

The grey levels 0..16 become round(x * 255 / 16). The first 1500 images train, the last 297 test: a fixed split without
any chance in it, in which each class has 146 to 153 training and 27 to 33 test images.
"""

from __future__ import annotations

import hashlib
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from sparsefed.core.errors import DataError
from sparsefed.data.record import Content, DataSet

if TYPE_CHECKING:
    from sparsefed.core.types import Arrays

TRAIN = 1500
# SHA-256 of the images' bytes, then the labels as bytes.
SHA256 = "a19cb3d96bba7deace8ee5a513a6eb7bad0403d528f00bf4d351b6a7a55baa91"


def read(_: Content) -> Arrays:
    """Read the images from scikit-learn's folder and compare their checksum."""
    from sparsefed.core.types import Arrays

    table = np.loadtxt(_path(), delimiter=",", dtype=np.int64)  # unzips by the name's ending
    raw, target = table[:, :-1], table[:, -1]
    x = np.rint(raw * 255 / 16).astype(np.uint8).reshape(-1, 8, 8, 1)
    y = target.astype(np.int64)
    if hashlib.sha256(x.tobytes() + y.astype(np.uint8).tobytes()).hexdigest() != SHA256:
        raise DataError("the digits in this scikit-learn are not the known 1797 images; install another version of it")
    scaled = x[:TRAIN] / 255
    return Arrays(
        name="digits",
        x_train=x[:TRAIN],
        y_train=y[:TRAIN],
        x_test=x[TRAIN:],
        y_test=y[TRAIN:],
        classes=tuple("0123456789"),
        mean=(float(scaled.mean()),),
        std=(float(scaled.std()),),
    )


def _path() -> Path:
    """Return where scikit-learn keeps the file; it need not be imported, which would take more than a second."""
    package = find_spec("sklearn")
    folder = Path(package.origin).parent if package is not None and package.origin is not None else Path()
    path = folder / "datasets" / "data" / "digits.csv.gz"
    if not path.is_file():
        raise DataError("the data set digits comes with scikit-learn, which is not here; `pip install scikit-learn`")
    return path


DATASET = DataSet(
    name="digits",
    description="handwritten digits, 8x8 grey, 10 classes, 1500 + 297 images",
    read=read,
    carried_by="scikit-learn",
)
