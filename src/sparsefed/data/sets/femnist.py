"""FEMNIST (Caldas et al. 2018, LEAF): 28x28 grey digits and letters, 62 classes, by the 3500 people who wrote them.

Read from what LEAF's own script writes, for which there is no checksum: it draws its split from a seed. The paper
(appendix, FEMNIST Parameters) runs `./preprocess.sh -s niid --sf 1.0 -k 0 -t sample` and cuts each user into 9 to 10
devices, 35 000 in all: `partition = "by_user_evenly"`, `devices = 35000`.

LEAF states pixels as grey levels divided by 255, white paper 1.0; they become levels again, exactly.
"""

from __future__ import annotations

import string
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from sparsefed.core.errors import DataError
from sparsefed.data.formats import leaf
from sparsefed.data.moments import moments
from sparsefed.data.record import Content, DamagedError, DataFile, DataSet

if TYPE_CHECKING:
    from sparsefed.core.types import Arrays, IntArray, UInt8Array

TRAIN, TEST = "train/*.json", "test/*.json"
CLASSES = tuple(string.digits + string.ascii_uppercase + string.ascii_lowercase)  # as LEAF numbers them
SIDE = 28


class _Part(NamedTuple):
    user: str
    x: UInt8Array  # [n, 28, 28, 1]
    y: IntArray  # [n]


class _Split(NamedTuple):
    x: UInt8Array
    y: IntArray
    users: tuple[str, ...]
    counts: IntArray  # one count per user


def read(content: Content) -> Arrays:
    """Read LEAF's training and test files as arrays; users are numbered in the order of the files."""
    from sparsefed.core.types import Arrays

    train, test = _split(content, TRAIN), _split(content, TEST)
    mean, std = moments(train.x)
    number = {user: i for i, user in enumerate(dict.fromkeys(train.users))}
    return Arrays(
        name="femnist",
        x_train=train.x,
        y_train=train.y,
        x_test=test.x,
        y_test=test.y,
        classes=CLASSES,
        mean=mean,
        std=std,
        users=np.repeat(np.array([number[user] for user in train.users], np.int64), train.counts),
    )


def _split(content: Content, name: str) -> _Split:
    """Read all files of a split, each turned into bytes before the next: as text they take many times the memory."""
    parts = [part for part in leaf.each_user(content, name, _images) if len(part.y)]
    if not parts:
        raise DataError(f"femnist: none of the files {name} holds an image; {DATASET.by_hand}.")
    counts = np.array([len(part.y) for part in parts])
    x, y = np.concatenate([part.x for part in parts]), np.concatenate([part.y for part in parts])
    return _Split(x, y, tuple(part.user for part in parts), counts)


def _images(owned: leaf.Owned) -> _Part:
    user = f"the user {owned.user}"
    try:
        x, y = np.array(owned.x, np.float32).reshape(len(owned.x), -1), np.array(owned.y)
    except (ValueError, TypeError, OverflowError):
        raise DamagedError(f"is damaged: {user} has images that are no lists of numbers of one length") from None
    if len(y) == 0:
        return _Part(owned.user, np.empty((0, SIDE, SIDE, 1), np.uint8), np.empty(0, np.int64))
    if x.shape[1] != SIDE * SIDE or not ((x >= 0) & (x <= 1)).all():
        raise DamagedError(f"is no FEMNIST: {user} has images that are not {SIDE * SIDE} levels 0 to 1")
    if y.dtype.kind not in "iu" or y.ndim != 1 or y.min() < 0 or y.max() >= len(CLASSES):
        raise DamagedError(f"is no FEMNIST: {user} has labels that are not 0 to {len(CLASSES) - 1}")
    return _Part(owned.user, np.rint(x * 255).astype(np.uint8).reshape(-1, SIDE, SIDE, 1), y.astype(np.int64))


DATASET = DataSet(
    name="femnist",
    description="FEMNIST: handwritten digits and letters by writer, 28x28 grey, 62 classes, LEAF's JSON files",
    read=read,
    files=(DataFile(TRAIN), DataFile(TEST)),
    folders=("femnist", "leaf/data/femnist/data", "data/femnist/data"),
    loose=False,
    by_hand=(
        "Make it with LEAF's script (github.com/TalwalkarLab/leaf, in data/femnist: `./preprocess.sh -s niid --sf 1.0 "
        "-k 0 -t sample`) and put its folders train and test into a folder named femnist"
    ),
)
