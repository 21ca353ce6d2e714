"""MNIST by its writers: its 70 000 digits with the people of NIST who wrote them (Yadav and Bottou 2019, QMNIST).

539 writers have 19 to 131 training images each; the 297 writers of the test images are other people. The natural
partition of handwriting, where FEMNIST cannot be had: digits only, and fewer writers.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import numpy as np

from sparsefed.data.formats import npz
from sparsefed.data.record import Content, DataFile, DataSet
from sparsefed.data.sets.mnist import CLASSES, MEAN, STD

if TYPE_CHECKING:
    from sparsefed.core.types import Arrays

SIDE = 28
FILE = DataFile("mnist_by_writer.npz", 11_553_448, "a487035ca0a8ae6f41c2f37c5b7b4607944df9c3d16a023ef7d2957306685db6")


def read(content: Content) -> Arrays:
    """Read the verified archive as arrays; its writers are the users."""
    from sparsefed.core.types import Arrays

    with npz.opened(io.BytesIO(content(FILE.name).tobytes())) as archive:
        y = npz.array(archive, "labels", "iu")
        x = npz.array(archive, "images", "u", (len(y), SIDE, SIDE))
        writer, test = npz.array(archive, "writer", "iu", y.shape), npz.array(archive, "is_test", "b", y.shape)
    return Arrays(
        name="mnist_by_writer",
        x_train=x[~test][..., None],
        y_train=y[~test].astype(np.int64),
        x_test=x[test][..., None],
        y_test=y[test].astype(np.int64),
        classes=CLASSES,
        mean=MEAN,
        std=STD,
        users=writer[~test].astype(np.int64),
    )


DATASET = DataSet(
    name="mnist_by_writer",
    description="MNIST by its 539 writers: digits, 28x28 grey, 10 classes, 60 000 + 10 000 images",
    read=read,
    files=(FILE,),
    by_hand=(
        "It is not published anywhere: bring mnist_by_writer.npz from someone who has it (images, labels, writer and "
        "is_test of all 70 000, made of MNIST and of QMNIST's labels)"
    ),
)
