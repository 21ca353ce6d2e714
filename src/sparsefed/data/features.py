"""Features of any shape and dtype: checked, converted without needless copies, and normalised as the user chooses.

Floats become float32 (float64 where they are normalised, which is done in float64 and rounded once), whole numbers
int64. A memory-mapped file stays in its file. One input is an array; several are a tuple or dict of arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from sparsefed.core.errors import DataError, unknown

BLOCK = 1 << 22  # values that are checked or counted at a time, so that a mapped file need not fit in memory
MAPPED = ("u1", "i4", "i8", "f2", "f4", "f8")  # what a mapped file may hold: the types that torch can index
WAYS = ("none", "train")


def several(x: Any) -> bool:
    """Return whether x stands for several inputs of a model."""
    return isinstance(x, tuple | Mapping)


def inputs_of(x: Any) -> list[Any]:
    """Return the inputs that x stands for, one or several."""
    return list(x.values()) if isinstance(x, Mapping) else list(x) if isinstance(x, tuple) else [x]


def each_input(x: Any, change: Callable[[str, Any], Any]) -> Any:
    """Return x with every input changed by a function of what to call it and the array."""
    if isinstance(x, Mapping):
        return {str(key): change(f"input '{key}'", part) for key, part in x.items()}
    return tuple(change(f"input {i}", part) for i, part in enumerate(x)) if several(x) else change("the table", x)


def features(name: str, what: str, given: Any, normalised: bool) -> Any:
    """Return one input as an array that engines can take; raise DataError for values that are no finite numbers."""
    x, mapped = np.asarray(given), isinstance(given, np.memmap)
    x = x[:, None] if x.ndim == 1 else x
    if x.ndim == 0 or 0 in x.shape:
        raise DataError(f"{name}: {what} has the shape {list(x.shape)}; give at least one row and one column")
    if x.dtype.kind not in "iubf":
        raise DataError(f"{name}: {_no_numbers(what, x)}; encode names as numbers first")
    if x.dtype.kind == "f":
        _check_floats(name, what, x, normalised)
    if mapped:
        if x.dtype.newbyteorder("=").str[1:] not in MAPPED or not x.dtype.isnative:
            raise DataError(f"{name}: {what} is a mapped file of {x.dtype}; write it as one of {', '.join(MAPPED)}")
        return x
    if x.dtype.kind == "f":
        return np.ascontiguousarray(x, np.float64 if normalised and x.dtype.itemsize > 4 else np.float32)
    return np.ascontiguousarray(x, np.uint8 if x.dtype == np.uint8 and x.ndim > 2 else np.int64)


def _no_numbers(what: str, x: Any) -> str:
    if x.dtype.kind == "O":
        for place, value in np.ndenumerate(x):
            if isinstance(value, bool) or not isinstance(value, int | float):
                where = f"row {place[0]}" + (f", column {place[1]}" if x.ndim == 2 and x.shape[1] > 1 else "")
                return f"{where} of {what} is {value!r:.40}, but must be a number"
    return f"{what} holds {x.dtype}, but must hold numbers"


def _check_floats(name: str, what: str, x: Any, normalised: bool) -> None:
    rows = max(1, BLOCK // max(1, x[0].size))
    for low in range(0, len(x), rows):
        block = x[low : low + rows]
        bad = np.argwhere(~np.isfinite(block))
        if len(bad):
            place = tuple(bad[0].tolist())
            where = f"row {low + place[0]}" + (f", column {place[1]}" if x.ndim == 2 else "")
            raise DataError(f"{name}: {where} of {what} is {block[place]}; fill or drop such values")
        if not normalised and len(huge := np.argwhere(np.abs(block) > np.finfo(np.float32).max)):
            raise DataError(
                f"{name}: row {low + huge[0][0]} of {what} has a value beyond 3e38, more than training can hold; "
                'scale it, or set normalise="train"'
            )


# --- normalisation ---------------------------------------------------------------------------------------------------


def check_normalise(name: str, wanted: Any) -> None:
    """Raise DataError unless the choice is None, "none", "train", (mean, std), or a dict of these by input."""
    if isinstance(wanted, str) and wanted not in WAYS:
        raise DataError(f"{name}: " + unknown("normalise", wanted, WAYS) + ", or give (mean, std)")
    if isinstance(wanted, Mapping):
        for each in wanted.values():
            check_normalise(name, each)
    elif not (wanted is None or isinstance(wanted, str) or (isinstance(wanted, tuple | list) and len(wanted) == 2)):
        raise DataError(f"{name}: normalise is {wanted!r:.40}; give one of {', '.join(WAYS)}, or (mean, std)")


def wanted_of(wanted: Any, x: Any) -> list[Any]:
    """Return the choice of normalisation for each input; "train" alone leaves whole numbers (tokens) as they are."""
    if isinstance(wanted, Mapping) and (strange := wanted.keys() - set(x if isinstance(x, Mapping) else ())):
        known = list(x) if isinstance(x, Mapping) else ["mean and std, as there is one input or they have no names"]
        raise DataError(unknown("input to normalise", str(min(strange, key=str)), map(str, known)))
    if not several(x):
        return [wanted]
    if isinstance(wanted, Mapping):
        return [wanted.get(key) for key in x]
    return [wanted if np.asarray(part).dtype.kind == "f" else None for part in inputs_of(x)]


def mean_and_std(name: str, x: Any, wanted: Any) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
    """Return mean and standard deviation along the last axis: the training data's, the given ones, or None."""
    if wanted is None or wanted == "none":
        return None
    width = x.shape[-1]
    mean, std = _measured(x) if isinstance(wanted, str) else (np.asarray(part, np.float64) for part in wanted)
    for what, part in (("mean", mean), ("std", std)):
        if (
            part.shape not in ((), (1,), (width,))
            or not np.isfinite(part).all()
            or (what == "std" and (part <= 0).any())
        ):
            raise DataError(
                f"{name}: the {what} given to normalise with has the shape {list(part.shape)}; give one finite number, "
                f"or {width} of them, one a column{', all above 0' if what == 'std' else ''}"
            )
    full = (np.broadcast_to(part, (width,)) for part in (mean, std))
    mean, std = (tuple(part.tolist()) for part in full)
    return mean, std


def _measured(x: Any) -> tuple[Any, Any]:
    """Return both moments in float64, a block at a time; a constant column gets the standard deviation 1."""
    rows = max(1, BLOCK // max(1, x[0].size))
    blocks = [slice(low, low + rows) for low in range(0, len(x), rows)]
    axes, count = tuple(range(x.ndim - 1)), x.size // x.shape[-1]
    mean = sum(x[block].sum(axes, dtype=np.float64) for block in blocks) / count
    squares: Sequence[Any] = [((x[block].astype(np.float64) - mean) ** 2).sum(axes) for block in blocks]
    std = np.sqrt(sum(squares) / count)
    return mean, np.where(std > 1e-12 * np.abs(mean), std, 1.0)
