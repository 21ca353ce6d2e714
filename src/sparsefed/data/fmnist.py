"""Fashion-MNIST (Xiao, Rasul and Vollgraf 2017): 28x28 grey images of clothes, 60 000 to train and 10 000 to test.

The checksums are of the decompressed files. Debian gzips them anew, without name and time in the header; with the
authors' header put back, all four have the MD5 sums of the authors' README, so the content is theirs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from sparsefed.data import idx
from sparsefed.data.debian import debian_package
from sparsefed.data.mirror import mirror
from sparsefed.data.record import Content, DataFile, DataSet

if TYPE_CHECKING:
    from sparsefed.types import Arrays, IntArray, UInt8Array

CLASSES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)


def read(content: Content) -> Arrays:
    """The four IDX files as arrays."""
    from sparsefed.types import Arrays

    def images(name: str, n: int) -> UInt8Array:
        return idx.parse(content(name), (n, 28, 28), name)[..., None]

    def labels(name: str, n: int) -> IntArray:
        return idx.parse(content(name), (n,), name).astype(np.int64)

    return Arrays(
        name="fmnist",
        x_train=images("train-images-idx3-ubyte", 60_000),
        y_train=labels("train-labels-idx1-ubyte", 60_000),
        x_test=images("t10k-images-idx3-ubyte", 10_000),
        y_test=labels("t10k-labels-idx1-ubyte", 10_000),
        classes=CLASSES,
        mean=(0.2860,),
        std=(0.3530,),
    )


DATASET = DataSet(
    name="fmnist",
    description="Fashion-MNIST: clothes, 28x28 grey, 10 classes, 60 000 + 10 000 images",
    read=read,
    files=(
        DataFile(
            "train-images-idx3-ubyte", 47_040_016, "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888"
        ),
        DataFile("train-labels-idx1-ubyte", 60_008, "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9"),
        DataFile(
            "t10k-images-idx3-ubyte", 7_840_016, "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b"
        ),
        DataFile("t10k-labels-idx1-ubyte", 10_008, "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34"),
    ),
    folders=("fashion-mnist", "FashionMNIST/raw"),  # Debian's name, torchvision's
    sources=(
        debian_package("dataset-fashion-mnist"),
        mirror("https://fashion-mnist.s3.eu-central-1.amazonaws.com"),
        mirror("https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion"),
    ),
)
