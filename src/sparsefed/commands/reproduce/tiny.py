"""Small generated data sets for scale `smoke`: always available, learnable in a few rounds, equal every time.

An image is its class's pattern and noise; a text is a walk on a ring of words in which the next one is nearly always
the same. Results on them mean nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from sparsefed.core.rng import rng
from sparsefed.data.own_arrays import Examples, arrays
from sparsefed.data.record import Content, DataSet
from sparsefed.data.sets.text_sets import text_set

if TYPE_CHECKING:
    from sparsefed.core.types import Arrays
    from sparsefed.data.formats.tokens import Texts

CLASSES, USERS, SIDE = 10, 40, 8
TRAIN, TEST = 800, 200  # as many of each class, and of each user
RING = "the best language is perl and not a snake or gem of pasta from rome"
WORDS = RING.split()


def images(channels: int) -> DataSet:
    """Return a set of 8 x 8 images with 10 classes and 40 users."""

    def read(_: Content) -> Arrays:
        draw = rng(0, "tiny images", channels)
        patterns = draw.uniform(0.2, 0.8, (CLASSES, SIDE, SIDE, channels))
        y = np.arange(TRAIN + TEST) % CLASSES
        x = np.clip(patterns[y] + draw.normal(0, 0.15, (len(y), SIDE, SIDE, channels)), 0, 1)
        users = np.arange(TRAIN) // CLASSES % USERS
        train, test = Examples(x[:TRAIN], y[:TRAIN], users), Examples(x[TRAIN:], y[TRAIN:])
        return arrays("tiny images", train, test)

    return DataSet(
        name="tiny images", description="generated 8x8 images, 10 classes", read=read, carried_by="sparsefed"
    )


def _texts(users: int, each: int, purpose: str) -> Texts:
    draw, n = rng(0, purpose), len(WORDS)
    return {f"{user:02}": [_walk(int(draw.integers(n)), draw.random(30)) for _ in range(each)] for user in range(users)}


def _walk(start: int, chances: npt.NDArray[np.float64]) -> list[str]:
    steps = np.where(chances < 0.9, 1, 2)
    return [WORDS[i] for i in (start + np.cumsum(steps)) % len(WORDS)]


IMAGES = images(1)
COLOUR = images(3)
TEXT = text_set(
    "tiny text",
    lambda _: (_texts(USERS, 4, "tiny text"), _texts(USERS, 1, "tiny text to test")),
    len(WORDS) + 4,
    10,
    description="generated text, next word, 40 users",
    carried_by="sparsefed",
)
