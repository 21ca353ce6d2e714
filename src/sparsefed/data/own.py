"""Your own data as a `DataSet`, which a config names as `data.name = "my_module:DATA"`.

Nothing is read or checked before the data set is loaded, so that a mistake gives one sentence, not a failed import.
Images are uint8; floats from 0 to 1 are rounded to the 256 levels. A table [N, columns], or with `images=False` an
array of any shape, is taken as it is: floats as float32, whole numbers (tokens, categories) as whole numbers; a tuple
or dict of arrays stands for several inputs of a model. `normalise` scales them. Where there is no test set, a share of
the examples becomes one, by a draw that is the same every time.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sparsefed.core.errors import DataError, printable, unknown
from sparsefed.core.rng import rng
from sparsefed.data import frames, limits
from sparsefed.data.features import check_normalise, each_input, features, inputs_of, mean_and_std, several, wanted_of
from sparsefed.data.moments import moments
from sparsefed.data.record import DamagedError, DataSet
from sparsefed.data.targets import numbered, targets

if TYPE_CHECKING:
    from sparsefed.core.types import Arrays, IntArray, UInt8Array

Size = tuple[int, int]  # height, width
IMAGES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff")


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


def from_arrays(
    x: Any,
    y: Any,
    users: Any = None,
    test: tuple[Any, Any] | None = None,
    classes: Sequence[str] | None = None,
    test_share: float = 0.2,
    name: str = "own data",
    *,
    normalise: Any = None,
    images: bool | None = None,
    target: str | None = None,
) -> DataSet:
    """Make a data set from arrays, tensors or lists: examples, labels and the users they belong to.

    Args:
        x: Images, a table [N, columns], any array [N, ...] with `images=False`, or a tuple or dict of arrays for a
            model of several inputs. Memory-mapped arrays stay in their files.
        y: The label of each example, a number or a name; or what `target` says.
        users: The owner of each example, a number or a name, for the partition by_user.
        test: (examples, labels) to test with; without it a `test_share` of the examples.
        classes: The names of the classes, in order; by default those that occur.
        test_share: The share of the examples to test with if there is no `test`.
        name: What reports call the data.
        normalise: "none"; "train", by mean and standard deviation of the training data along the last axis; or
            (mean, std). A dict chooses by input. By default images are normalised by the training data, nothing else.
        images: Whether arrays of 3 or 4 dimensions are images; False: they are features, taken as they are.
        target: What y is: "classes" (the default); "binary", yes or no; "labels", several of these for each example
            [N, L]; "values", numbers to predict [N] or [N, K]; "tokens", one for each token [N, T].

    >>> DATA = from_arrays(np.zeros((10, 8, 8), np.uint8), ["cat", "dog"] * 5, users=[1, 2, 3, 4, 5] * 2)
    >>> DATA.read(None).classes
    ('cat', 'dog')
    """
    from sparsefed.core.inputs import on_host

    examples, own_test = Examples(*on_host((x, y, users))), None if test is None else Examples(*on_host(tuple(test)))
    reading = Reading(test_share, normalise, images, target)
    return _dataset(name, lambda: (examples, own_test, classes), reading)


def from_folder(
    folder: str | Path,
    size: Size | None = None,
    grey: bool = False,
    user: Callable[[Path], Any] | None = None,
    test_share: float = 0.2,
    name: str = "",
) -> DataSet:
    """Make a data set from the images in `folder/class/`, or in `folder/train/class/` and `folder/test/class/`.

    `size` (height, width) scales them; without it all must be alike. `user` maps an image's path to its user. Without
    train and test, the hash of an image's path inside the folder decides whether it tests: adding images moves none.
    """
    root = Path(folder)

    def examples() -> tuple[Examples, Examples | None, Sequence[str] | None]:
        if not root.is_dir():
            raise DataError(f"there is no folder {root}; give one that holds a folder of images for each class")
        if (root / "train").is_dir() and (root / "test").is_dir():
            train, test = _paths(root / "train"), _paths(root / "test")
        else:
            every = _paths(root)
            test = [path for path in every if _hashed(path.relative_to(root)) < test_share]
            train = [path for path in every if _hashed(path.relative_to(root)) >= test_share]
        return _pictures(train, size, grey, user), _pictures(test, size, grey, None), None

    return _dataset(name or root.name, examples, Reading(test_share), size)


def from_frame(
    frame: Any,
    label: frames.Columns,
    columns: frames.Columns | None = None,
    user: str | None = None,
    test: Any = None,
    classes: Sequence[str] | None = None,
    test_share: float = 0.2,
    name: str = "own data",
    *,
    normalise: Any = None,
    target: str | None = None,
) -> DataSet:
    """Make a data set from a pandas or polars frame.

    Args:
        frame: The training rows, or all rows if there is no `test`.
        label: The column of labels or values; several columns for several of them.
        columns: The columns of features, all numbers; by default every column but label and user.
        user: The column that names each row's owner.
        test: Another frame to test with; without it a `test_share` of the rows.
        classes: The names of the classes, in order; by default those that occur.
        test_share: The share of the rows to test with if there is no `test`.
        name: What reports call the data.
        normalise: As in `from_arrays`.
        target: As in `from_arrays`.
    """

    def examples() -> tuple[Examples, Examples | None, Sequence[str] | None]:
        chosen = frames.chosen_columns(frame, columns, label, user)
        tested = None
        if test is not None:
            frames.chosen_columns(test, chosen, label, None)
            tested = Examples(frames.table(test, chosen), frames.column(test, label))
        return (
            Examples(frames.table(frame, chosen), frames.column(frame, label), frames.column(frame, user)),
            tested,
            classes,
        )

    return _dataset(name, examples, Reading(test_share, normalise, False, target))


def from_dataset(
    dataset: Any,
    test: Any = None,
    users: Any = None,
    classes: Sequence[str] | None = None,
    size: Size | None = None,
    grey: bool = False,
    test_share: float = 0.2,
    name: str = "own data",
    *,
    normalise: Any = None,
    images: bool | None = None,
    target: str | None = None,
) -> DataSet:
    """Make a data set from a `torch.utils.data.Dataset` whose items are (input, target), or (inputs..., target).

    An input that is a dict of tensors gives the model named inputs. Every item is read once, into memory. The other
    arguments are those of `from_arrays` and, for items that are Pillow images, `from_folder`.
    """

    def examples() -> tuple[Examples, Examples | None, Sequence[str] | None]:
        read = [
            None if each is None else frames.items(each, lambda image: _pixels(image, size, grey))
            for each in (dataset, test)
        ]
        train, tested = (None if each is None else Examples(*each) for each in read)
        assert train is not None
        return Examples(train.x, train.y, users), tested, classes or getattr(dataset, "classes", None)

    return _dataset(name, examples, Reading(test_share, normalise, images, target), size)


def from_huggingface(
    train: Any,
    test: Any = None,
    image: str = "image",
    label: str = "label",
    user: str | None = None,
    size: Size | None = None,
    grey: bool = False,
    test_share: float = 0.2,
    name: str = "own data",
    *,
    columns: frames.Columns | None = None,
    normalise: Any = None,
    target: str | None = None,
) -> DataSet:
    """Make a data set from a `datasets.Dataset`, or from a dict with "train" and perhaps "test"; columns are named.

    `columns` names columns of numbers, or one column of lists of numbers (tokens), instead of an image.
    """

    def examples() -> tuple[Examples, Examples | None, Sequence[str] | None]:
        first, second = train, test
        if isinstance(train, Mapping):
            if "train" not in train:
                raise DataError(unknown("split", "train", map(str, train)) + "; pass one as the first argument")
            first, second = train["train"], test if test is not None else train.get("test")

        def read(rows: Any, who: str | None) -> Examples:
            if columns is None:
                return _columns(rows, image, label, who, size, grey)
            chosen = frames.chosen_columns(rows, columns, label, who)
            return Examples(frames.table(rows, chosen), frames.column(rows, label), frames.column(rows, who))

        return read(first, user), None if second is None else read(second, None), _label_names(first, label)

    return _dataset(name, examples, Reading(test_share, normalise, None if columns is None else False, target), size)


# --- from examples to arrays -----------------------------------------------------------------------------------------


def _dataset(
    name: str,
    examples: Callable[[], tuple[Examples, Examples | None, Sequence[str] | None]],
    reading: Reading,
    size: Size | None = None,
) -> DataSet:
    def read(_: Any) -> Arrays:
        try:
            with limits.guarded():
                _check_options(name, reading, size)
                train, test, classes = examples()
                return arrays(name, train, test, classes, reading)
        except DamagedError as error:
            raise DataError(f"{printable(name)} {error}") from error
        except DataError as error:  # labels and paths in it are the user's
            raise DataError(printable(error)) from error

    return DataSet(name=name, description=f"{name}, brought by the user", read=read, carried_by="the user's own code")


def _check_options(name: str, reading: Reading, size: Size | None) -> None:
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


# --- folders and Hugging Face ----------------------------------------------------------------------------------------


def _paths(root: Path) -> list[Path]:
    """Return the images of every class, sorted, so that the order is the same on every machine."""
    found = sorted(path for path in root.glob("*/*") if path.suffix.lower() in IMAGES and path.is_file())
    odd = next((path.parent for path in found if not path.parent.name.isprintable()), None)
    if odd is not None:
        raise DataError(f"the folder {odd} has a name with control characters or not in UTF-8; rename it")
    if not found:
        raise DataError(f"{root} holds no images; give a folder with a folder of images ({', '.join(IMAGES)}) a class")
    return found


def _hashed(path: Path) -> float:
    """Return a number in [0, 1) that depends on the path alone."""
    return int.from_bytes(hashlib.sha256(os.fsencode(path.as_posix())).digest()[:8], "big") / 2**64


def _pictures(paths: list[Path], size: Size | None, grey: bool, user: Callable[[Path], Any] | None) -> Examples:
    if not paths:
        raise DataError(
            "the hash of the paths left no training or no test image; change test_share, or make train/, test/"
        )
    x = _stacked(len(paths), (_opened(path, size, grey) for path in paths), map(str, paths), sum(map(_bytes, paths)))
    return Examples(x, [path.parent.name for path in paths], None if user is None else [user(path) for path in paths])


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
            return _pixels(image, size, grey)
    except UnidentifiedImageError:
        raise DataError(f"{path} is no image; delete it or replace it") from None
    except DamagedError as error:
        raise DataError(f"{path} cannot be read as an image: it {error}; replace it") from error


def _pixels(image: Any, size: Size | None, grey: bool) -> UInt8Array:
    """Return one Pillow image as bytes [H, W, C]."""
    image = image.convert("L" if grey else "RGB")
    if size is not None:
        image = image.resize((size[1], size[0]))
    pixels: UInt8Array = np.asarray(image)
    return pixels[..., None] if grey else pixels


def _columns(rows: Any, image: str, label: str, user: str | None, size: Size | None, grey: bool) -> Examples:
    for column in (image, label, *([user] if user else [])):
        if column not in rows.column_names:
            raise DataError(unknown("column", column, rows.column_names))
    if len(rows) == 0:
        raise DataError("the data set has no rows")
    first = rows[0][image]
    if hasattr(first, "convert"):
        x = _stacked(
            len(rows), (_pixels(row[image], size, grey) for row in rows), (f"image {i}" for i in range(len(rows)))
        )
    else:  # a column of arrays
        x = np.stack([_levels(row[image]) for row in rows])
    return Examples(x, list(rows[label]), None if user is None else list(rows[user]))


def _levels(given: Any) -> Any:
    """Return whole numbers from 0 to 255 as bytes, and anything else as it is."""
    levels = np.asarray(given)
    fits = levels.dtype.kind in "iu" and levels.size > 0 and levels.min() >= 0 and levels.max() <= 255
    return levels.astype(np.uint8) if fits else levels


def _label_names(rows: Any, label: str) -> Sequence[str] | None:
    """Return the names of the classes, where the data set has them."""
    names: Sequence[str] | None = getattr(getattr(rows, "features", {}).get(label), "names", None)
    return names
