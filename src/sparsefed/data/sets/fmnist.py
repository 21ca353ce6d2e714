"""Fashion-MNIST (Xiao, Rasul and Vollgraf 2017): 28x28 grey images of clothes, 60 000 to train and 10 000 to test.

The checksums are of the decompressed files. Debian gzips them anew, without name and time in the header; with the
authors' header put back, all four have the MD5 sums of the authors' README, so the content is theirs.
"""

from __future__ import annotations

from sparsefed.data.formats import idx
from sparsefed.data.record import DataFile, DataSet
from sparsefed.data.sources.debian import debian_package
from sparsefed.data.sources.mirror import mirror

CLASSES = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")


DATASET = DataSet(
    name="fmnist",
    description="Fashion-MNIST: clothes, 28x28 grey, 10 classes, 60 000 + 10 000 images",
    read=idx.four_files("fmnist", CLASSES, (0.2860,), (0.3530,)),
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
