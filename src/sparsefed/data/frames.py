"""Tables with named columns (pandas, polars, Hugging Face) and torch data sets as arrays; errors name the row."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from sparsefed.core.errors import DataError, unknown

Columns = str | Sequence[str]


def chosen_columns(frame: Any, columns: Columns | None, label: Columns, user: str | None) -> list[str]:
    """Return the names of the feature columns, by default all others; raise DataError for one that is not there."""
    known = [str(name) for name in getattr(frame, "column_names", None) or frame.columns]
    aside = {*_listed(label), user}
    chosen = [name for name in known if name not in aside] if columns is None else _listed(columns)
    for name in (*chosen, *_listed(label), *([user] if user else [])):
        if name not in known:
            raise DataError(unknown("column", name, known))
    if not chosen:
        raise DataError(f"there is no column of features beside {', '.join(_listed(label))}; give columns")
    if shared := [name for name in chosen if name in aside]:
        raise DataError(f"column {shared[0]} is both a feature and the label or user; leave it out of columns")
    return chosen


def table(frame: Any, columns: Sequence[str]) -> Any:
    """Return columns of numbers as one array [N, columns], float64; a column of lists gives [N, length] by itself."""
    if len(columns) == 1 and np.ndim(_first(frame, columns[0])) > 0:
        return _stacked(columns[0], frame[columns[0]])
    return np.stack([_numbers(frame, name) for name in columns], axis=1)


def column(frame: Any, name: Columns | None) -> Any:
    """Return one column as an array of numbers or names, several as one array [N, columns]; None for None."""
    if name is None:
        return None
    if not isinstance(name, str):
        return np.stack([column(frame, each) for each in name], axis=1)
    values = _array(frame[name])
    missing = next((i for i, value in enumerate(values.tolist()) if value is None or value != value), None)
    if missing is not None:
        raise DataError(f"row {missing} of column {name} is empty; fill or drop it")
    return np.array(values.tolist()) if values.dtype.kind == "O" else values


def _numbers(frame: Any, name: str) -> Any:
    values = _array(frame[name])
    if values.dtype.kind not in "iubf":
        for row, value in enumerate(values.tolist()):
            if value is None:
                raise DataError(f"row {row} of column {name} is empty; fill or drop such values")
            if isinstance(value, str | bytes) or not isinstance(value, int | float):
                raise DataError(
                    f"row {row} of column {name} is {value!r:.40}, not a number; encode the column as numbers, or "
                    "leave it out of columns"
                )
    numbers = values.astype(np.float64)
    bad = np.flatnonzero(~np.isfinite(numbers))
    if len(bad):
        raise DataError(f"row {bad[0]} of column {name} is {numbers[bad[0]]}; fill or drop such values")
    return numbers


def _array(values: Any) -> Any:
    return values.to_numpy() if hasattr(values, "to_numpy") else np.asarray(list(values))


def _first(frame: Any, name: str) -> Any:
    return next(iter(frame[name]), None)


def _stacked(name: str, values: Iterable[Any]) -> Any:
    rows = [np.asarray(value) for value in values]
    odd = next((i for i, row in enumerate(rows) if row.shape != rows[0].shape), None)
    if odd is not None:
        raise DataError(
            f"row {odd} of {name} has the shape {list(rows[odd].shape)}, the first {list(rows[0].shape)}; pad or cut "
            "them to one shape"
        )
    return np.stack(rows)


def _listed(names: Columns) -> list[str]:
    return [names] if isinstance(names, str) else [str(name) for name in names]


# --- torch -----------------------------------------------------------------------------------------------------------


def items(dataset: Any, pixels: Callable[[Any], Any]) -> tuple[Any, Any]:
    """Return the examples and targets of a torch data set: items are (input, target), or (inputs..., target).

    An input that is a dict gives named inputs; `pixels` makes an array of a Pillow image.
    """
    if hasattr(dataset, "tensors"):
        rows: list[tuple[Any, ...]] = []
        columns: list[Any] = [tensor.detach().cpu().numpy() for tensor in dataset.tensors]
    else:
        rows = [tuple(item) if isinstance(item, tuple | list) else (item,) for item in _iterated(dataset)]
        short = next((i for i, row in enumerate(rows) if len(row) != len(rows[0]) or len(row) < 2), None)
        if short is not None or not rows:
            raise DataError(f"item {short or 0} of the data set is not (input, target), or unlike the others")
        columns = [_joined(f"part {i} of the items", [row[i] for row in rows], pixels) for i in range(len(rows[0]))]
    *inputs, targets = columns
    return (inputs[0] if len(inputs) == 1 else tuple(inputs)), targets


def _iterated(dataset: Any) -> Iterable[Any]:
    if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        return dataset  # type: ignore[no-any-return]
    return (dataset[i] for i in range(len(dataset)))


def _joined(what: str, values: list[Any], pixels: Callable[[Any], Any]) -> Any:
    if isinstance(values[0], dict):
        return {key: _joined(f"'{key}'", [value[key] for value in values], pixels) for key in values[0]}
    return _stacked(what, (pixels(value) if hasattr(value, "convert") else value for value in values))
