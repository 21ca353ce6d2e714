"""Targets as given, as checked arrays: classes and yes or no by number or name, several labels, values, tokens.

`core.target` says what they mean to a model. An error names the row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from sparsefed.core.errors import DataError, unknown

if TYPE_CHECKING:
    from sparsefed.core.types import IntArray

KINDS = ("classes", "binary", "labels", "values", "tokens")
MOST_CLASSES = 10**6
IGNORED = -100  # as in core.types, which loads torch


def targets(name: str, kind: str | None, given: Any) -> Any:
    """Return targets as an array of numbers or names [N, ...]; None stands for classes."""
    if kind is not None and kind not in KINDS:
        raise DataError(f"{name}: " + unknown("target", str(kind), KINDS))
    y = np.asarray(given)
    if kind == "values":
        return _values(name, y)
    if kind not in ("labels", "tokens"):
        return _named(name, y)
    if y.ndim != 2 or y.dtype.kind not in "iubf" or (y.dtype.kind == "f" and (y % 1 != 0).any()):
        raise DataError(
            f"{name}: targets of the kind {kind} are whole numbers of the shape [N, {kind}], but these are {y.dtype} "
            f"{list(y.shape)}"
        )
    _check_range(name, y, 2 if kind == "labels" else MOST_CLASSES)
    whole: IntArray = y.astype(np.int64)
    return whole


def numbered(name: str, kind: str | None, y: Any, y_test: Any, given: Sequence[str] | None) -> tuple[Any, Any, Any]:
    """Return targets and test targets as numbers, and the names of the classes or labels; values have none."""
    if kind == "values":
        return y, y_test, ()
    if kind == "labels":
        classes = tuple(given or map(str, range(y.shape[1])))
        if len(classes) != y.shape[1]:
            raise DataError(f"{name}: there are {y.shape[1]} labels, but {len(classes)} names for them")
    elif kind == "tokens":
        classes = tuple(given or map(str, range(int(max(y.max(), y_test.max())) + 1)))
        for each in (y, y_test):
            _check_range(name, each, len(classes))
    else:
        classes = _classes(name, y, y_test) if given is None else tuple(given)
    if not all(isinstance(each, str) for each in classes) or len(set(classes)) < len(classes):
        raise DataError(f"{name}: classes must be different names, but they are {classes}")
    if kind in ("labels", "tokens"):
        return y, y_test, classes
    if kind == "binary":
        classes = ("0", "1") if classes == ("0",) else classes
        if len(classes) != 2:
            raise DataError(f'{name}: there are {len(classes)} classes, but target="binary" means two; leave it out')
    return _indices(name, y, classes), _indices(name, y_test, classes), classes


def _values(name: str, y: Any) -> Any:
    if y.dtype.kind not in "iubf" or y.ndim not in (1, 2) or 0 in y.shape:
        raise DataError(f"{name}: values to predict are numbers [N] or [N, K], but are {y.dtype} {list(y.shape)}")
    values = np.ascontiguousarray(y, np.float32)
    bad = np.argwhere(~np.isfinite(values))
    if len(bad):
        raise DataError(f"{name}: the target of row {bad[0][0]} is {y[tuple(bad[0])]}; fill or drop such rows")
    return values


def _check_range(name: str, y: Any, below: int) -> None:
    wrong = np.argwhere(((y < 0) & (y != IGNORED)) | (y >= below))
    if len(wrong):
        row, column = wrong[0].tolist()
        raise DataError(
            f"{name}: target {column} of row {row} is {y[row, column]}; use 0 to {below - 1}, or {IGNORED} for unknown"
        )


def _named(name: str, labels: Any) -> Any:
    """Return labels as whole numbers or names [N]."""
    if labels.dtype.kind == "O" and labels.ndim == 1:
        stray = next((row for row, label in enumerate(labels.tolist()) if not isinstance(label, int | str)), None)
        if stray is not None:
            raise DataError(
                f"{name}: row {stray} has the label {labels[stray]!r:.40}; give whole numbers from 0 or names"
            )
        labels = np.array(labels.tolist())
    if labels.dtype.kind == "S":
        labels = np.char.decode(labels, "utf-8")
    if labels.dtype.kind not in "iubU":
        raise DataError(
            f"{name}: labels must be whole numbers from 0 or names, but they are {labels.dtype}; numbers to "
            'predict are target="values"'
        )
    if labels.dtype.kind == "U" and not all(label.isprintable() for label in labels.ravel().tolist()):
        raise DataError(f"{name}: labels must be printable names; rename those with control characters")
    return labels


def _classes(name: str, labels: Any, more: Any) -> tuple[str, ...]:
    if labels.dtype.kind != more.dtype.kind and "U" in labels.dtype.kind + more.dtype.kind:
        raise DataError(f"{name}: training labels are {labels.dtype}, test labels {more.dtype}; give the same kind")
    if labels.dtype.kind != "U":
        largest = int(max(labels.max(), more.max()))
        if largest >= MOST_CLASSES:
            raise DataError(f"{name}: there is a label {largest}; number the classes from 0, or give their names")
        return tuple(str(i) for i in range(largest + 1))
    return tuple(sorted({str(label) for label in np.concatenate([labels, more]).tolist()}))


def _indices(name: str, labels: Any, classes: tuple[str, ...]) -> IntArray:
    if labels.dtype.kind == "U":
        place = {label: i for i, label in enumerate(classes)}
        stray = sorted(set(labels.tolist()) - place.keys())
        if stray:
            raise DataError(f"{name}: " + unknown("label", str(stray[0]), classes))
        return np.array([place[label] for label in labels.tolist()], np.int64)
    wrong = np.flatnonzero((labels < 0) | (labels >= len(classes)))
    if len(wrong):
        raise DataError(
            f"{name}: row {wrong[0]} has the label {labels[wrong[0]]}; labels must be whole numbers from 0 to "
            f"{len(classes) - 1}, one for each of the classes"
        )
    whole: IntArray = labels.astype(np.int64)
    return whole
