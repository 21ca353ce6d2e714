"""Conversion of a user's examples to the arrays that the engines take, with every mistake reported in one sentence.

Knows arrays alone; where they come from is in `own`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from sparsefed.core.errors import DataError
from sparsefed.core.rng import rng
from sparsefed.data.features import check_normalise, each_input, features, inputs_of, mean_and_std, several, wanted_of
from sparsefed.data.moments import moments
from sparsefed.data.targets import numbered, targets

if TYPE_CHECKING:
    from sparsefed.core.types import Arrays, IntArray, UInt8Array

Size = tuple[int, int]  # height, width


@dataclass(frozen=True)
class Examples:
    """Examples as given: inputs, labels, and the users they belong to."""

    x: Any  # images [N, H, W], [N, H, W, C] or [N, C, H, W]; a table [N, columns]; a tuple or dict of arrays
    y: Any  # [N] numbers or names; or what `Reading.target` says
    users: Any = None  # [N] numbers or names


@dataclass(frozen=True)
class Reading:
    """The user's choices of how examples are read."""

    test_share: float = 0.2
    normalise: Any = None  # None: images by the training data, anything else not at all
    images: bool | None = None  # None: arrays of 3 or 4 dimensions are images
    target: str | None = None  # None: classes


USUAL_READING = Reading()


def check_options(name: str, reading: Reading, size: Size | None) -> None:
    test_share = reading.test_share
    check_normalise(name, reading.normalise)
    if isinstance(test_share, bool) or not isinstance(test_share, int | float) or not 0 <= test_share <= 1:
        raise DataError(f"{name}: test_share is {test_share!r}; give a number between 0 and 1")
    whole = isinstance(size, tuple | list) and len(size) == 2 and all(isinstance(n, int) and n > 0 for n in size)
    if size is not None and not whole:
        raise DataError(f"{name}: size is {size!r}; give (height, width), both at least 1")


def arrays(
    name: str,
    train: Examples,
    test: Examples | None,
    classes: Sequence[str] | None = None,
    reading: Reading = USUAL_READING,
) -> Arrays:
    """Check everything and convert it to the arrays that the engines take."""
    from sparsefed.core.types import Arrays

    x, y = _inputs(name, train.x, reading), targets(name, reading.target, train.y)
    count = _examples(name, x)
    single = reading.target in (None, "classes", "binary")
    _same_length(name, "labels", y, count, single)
    users = None if train.users is None else _numbered(name, train.users)
    if users is not None:
        _same_length(name, "users", users, count)
    if test is None:
        _refuse_mapped(name, train.x)
        x, y, users, x_test, y_test = _cut(name, x, y, users, reading.test_share)
    else:
        x_test, y_test = _inputs(name, test.x, reading), targets(name, reading.target, test.y)
        _same_length(name, "test labels", y_test, _examples(name, x_test), single)
    x_test = _alike(name, x, x_test)
    if y.shape[1:] != y_test.shape[1:]:
        raise DataError(f"{name}: training targets are {list(y.shape[1:])}, test targets {list(y_test.shape[1:])}")
    y, y_test, known = numbered(name, reading.target, y, y_test, classes)
    mean, std, scales = _normalisation(name, x, reading)
    return Arrays(name, x, y, x_test, y_test, known, mean, std, users, scales, reading.target or "")


def _inputs(name: str, given: Any, reading: Reading) -> Any:
    """Return images as uint8 [N, H, W, C], features [N, ...] as floats or whole numbers, several inputs as several."""
    if not several(given) and reading.images is not False:
        x = given if isinstance(given, np.memmap) else np.asarray(given)
        if reading.images or x.ndim > 2:
            return _images(name, x)
    ways = iter(wanted_of(reading.normalise, given))
    return each_input(given, lambda what, part: features(name, what, part, next(ways) not in (None, "none")))


def _examples(name: str, x: Any) -> int:
    counts = {len(part) for part in inputs_of(x)}
    if len(counts) > 1:
        raise DataError(f"{name}: the inputs have {sorted(counts)} examples; give each the same number")
    return counts.pop()


def _alike(name: str, x: Any, x_test: Any) -> Any:
    """Return the test examples with their inputs in the order of the training examples; refuse other shapes."""
    if isinstance(x, dict) and isinstance(x_test, dict):
        if x.keys() != x_test.keys():
            raise DataError(f"{name}: training inputs are called {', '.join(x)}, test inputs {', '.join(x_test)}")
        x_test = {key: x_test[key] for key in x}
    train, test = ([list(part.shape[1:]) for part in inputs_of(each)] for each in (x, x_test))
    if train != test or type(x) is not type(x_test):
        several_inputs = several(x) or several(x_test)
        train, test = (train, test) if several_inputs else (train[0], test[0])
        raise DataError(f"{name}: training examples are {train}, test examples {test}")
    return x_test


def _refuse_mapped(name: str, given: Any) -> None:
    """Refuse to cut a test set out of a mapped file, since what remains would have to be copied into memory."""
    if any(isinstance(part, np.memmap) for part in inputs_of(given)):
        raise DataError(f"{name}: a memory-mapped array needs a test set; give test=(x, y), for instance its last rows")


def _normalisation(name: str, x: Any, reading: Reading) -> tuple[Any, Any, Any]:
    """Return mean and std of images, and the scales of features."""
    from sparsefed.core.inputs import Scale

    wanted = reading.normalise
    if not several(x) and x.ndim == 4 and x.dtype == np.uint8 and reading.images is not False:
        channels = x.shape[-1]
        given = (
            None
            if wanted in (None, "train")
            else mean_and_std(name, x, wanted) or ((0.0,) * channels, (1.0,) * channels)
        )
        return *(given or moments(x)), ()
    ways = wanted_of(wanted, x)
    found = [mean_and_std(name, part, way) for part, way in zip(inputs_of(x), ways, strict=True)]
    return (), (), tuple(each and Scale(*each) for each in found) if any(found) else ()


def _images(name: str, x: Any) -> UInt8Array:
    """Return images as uint8 [N, H, W, C], copied only where necessary."""
    if x.ndim == 3:
        x = x[..., None]
    if x.ndim != 4 or 0 in x.shape:
        raise DataError(
            f"{name}: images must be [N, H, W], [N, H, W, C] or [N, C, H, W], at least one of them, but the shape is "
            f"{list(x.shape)}; a table is [N, columns], and images=False takes arrays of any shape"
        )
    if x.shape[-1] > 4 and x.shape[1] <= 4:
        x = x.transpose(0, 2, 3, 1)
    if x.shape[-1] > 4:
        raise DataError(f"{name}: images must have 1 to 4 channels, last or first, but the shape is {list(x.shape)}")
    if x.dtype.kind == "f":
        if len(wrong := np.argwhere(~((x >= 0) & (x <= 1)))):
            raise DataError(
                f"{name}: image {wrong[0][0]} has the value {x[tuple(wrong[0])]}, but floats must lie from 0 to 1; "
                "give uint8, divide by the largest level, or take them as they are with images=False"
            )
        x = np.rint(x * 255).astype(np.uint8)
    if x.dtype != np.uint8:
        raise DataError(
            f"{name}: images must be uint8, or floats from 0 to 1, but they are {x.dtype}; images=False "
            "takes them as they are"
        )
    if isinstance(x, np.memmap):
        return np.asarray(x)
    x = np.ascontiguousarray(x)
    image: UInt8Array = x if x.flags.writeable else x.copy()  # torch warns about read-only arrays
    return image


def _same_length(name: str, what: str, array: Any, n: int, flat: bool = True) -> None:
    if array.shape[:1] != (n,) or (flat and array.ndim > 1):
        raise DataError(
            f"{name}: there are {n} examples, but the {what} have the shape {list(array.shape)}; give one each"
        )


def _numbered(name: str, given: Any) -> IntArray:
    """Number the users 0, 1, ... in sorted order."""
    users = np.asarray(given)
    if users.ndim == 1:
        values = given.tolist() if hasattr(given, "tolist") else list(given)
        kind = str if values and isinstance(values[0], str) else int | float
        odd = next((i for i, user in enumerate(values) if not isinstance(user, kind) or user != user), None)
        if odd is not None and not users.dtype.kind == "S":
            raise DataError(f"{name}: row {odd} has the user {values[odd]!r:.40}; give all numbers or all names")
        users = np.array(values)
    return np.unique(users, return_inverse=True)[1].reshape(users.shape).astype(np.int64)


def _cut(name: str, x: Any, y: Any, users: IntArray | None, share: float) -> tuple[Any, Any, Any, Any, Any]:
    """Split off a random share of the examples to test with."""
    n = round(share * len(y))
    if not 0 < n < len(y):
        raise DataError(f"{name}: test_share {share} of {len(y)} examples leaves no test or no training set; give test")
    tests = np.zeros(len(y), bool)
    tests[rng(0, "own test set").choice(len(y), n, replace=False)] = True
    train, test = each_input(x, lambda _, part: part[~tests]), each_input(x, lambda _, part: part[tests])
    return train, y[~tests], None if users is None else users[~tests], test, y[tests]
