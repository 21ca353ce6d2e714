"""Your own data as a `DataSet`, which a config names as `data.name = "my_module:DATA"`.

Nothing is read or checked before the data set is loaded, so that a mistake gives one sentence, not a failed import.
Images are uint8; floats from 0 to 1 are rounded to the 256 levels. A table [N, columns], or with `images=False` an
array of any shape, is taken as it is: floats as float32, whole numbers (tokens, categories) as whole numbers; a tuple
or dict of arrays stands for several inputs of a model. `normalise` scales them. Where there is no test set, a share of
the examples becomes one, by a draw that is the same every time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparsefed.core.errors import DataError, printable, unknown
from sparsefed.data import frames, limits
from sparsefed.data.own_arrays import Examples, Reading, Size, arrays, check_options
from sparsefed.data.own_images import column_images, hashed, image_files, opened_images, pixels_of
from sparsefed.data.record import DamagedError, DataSet

if TYPE_CHECKING:
    from sparsefed.core.types import Arrays


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

    >>> import numpy as np
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
            train, test = image_files(root / "train"), image_files(root / "test")
        else:
            every = image_files(root)
            test = [path for path in every if hashed(path.relative_to(root)) < test_share]
            train = [path for path in every if hashed(path.relative_to(root)) >= test_share]
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
            None if each is None else frames.items(each, lambda image: pixels_of(image, size, grey))
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


def _dataset(
    name: str,
    examples: Callable[[], tuple[Examples, Examples | None, Sequence[str] | None]],
    reading: Reading,
    size: Size | None = None,
) -> DataSet:
    def read(_: Any) -> Arrays:
        try:
            with limits.guarded():
                check_options(name, reading, size)
                train, test, classes = examples()
                return arrays(name, train, test, classes, reading)
        except DamagedError as error:
            raise DataError(f"{printable(name)} {error}") from error
        except DataError as error:  # labels and paths in it are the user's
            raise DataError(printable(error)) from error

    return DataSet(name=name, description=f"{name}, brought by the user", read=read, carried_by="the user's own code")


def _pictures(paths: list[Path], size: Size | None, grey: bool, user: Callable[[Path], Any] | None) -> Examples:
    if not paths:
        raise DataError(
            "the hash of the paths left no training or no test image; change test_share, or make train/, test/"
        )
    labels = [path.parent.name for path in paths]
    users = None if user is None else [user(path) for path in paths]
    return Examples(opened_images(paths, size, grey), labels, users)


def _columns(rows: Any, image: str, label: str, user: str | None, size: Size | None, grey: bool) -> Examples:
    for column in (image, label, *([user] if user else [])):
        if column not in rows.column_names:
            raise DataError(unknown("column", column, rows.column_names))
    if len(rows) == 0:
        raise DataError("the data set has no rows")
    x = column_images(rows, image, size, grey)
    return Examples(x, list(rows[label]), None if user is None else list(rows[user]))


def _label_names(rows: Any, label: str) -> Sequence[str] | None:
    """Return the names of the classes, where the data set has them."""
    names: Sequence[str] | None = getattr(getattr(rows, "features", {}).get(label), "names", None)
    return names
