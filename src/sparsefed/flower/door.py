"""The door: what a client's reply must be before a rule sees it.

`admit` reads a reply from the outside in (who sent it, how many records, which keys, how many bytes, the header, the
numbers) and stops at the first thing that is wrong; it never raises. Sizes are checked before anything is parsed, so a
reply costs no more than the bytes that have arrived. It knows messages only by their attributes, not the library that
carries them.
"""

from __future__ import annotations

import io
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sparsefed.core.errors import ConfigError, printable, quoted
from sparsefed.defenses.pipeline import LARGEST_NORM
from sparsefed.kernels.rows import row_norms
from sparsefed.models.layout import ModelLayout

MOST_RECORDS = 8  # array, metric and config records in a reply
MOST_METRICS = 100  # numbers in its metric records
HEADER_BYTES = 1024  # beyond the numbers of an array; NumPy writes 128
COUNT = "num-examples"
STYPE = "numpy.ndarray"

REASONS: Mapping[str, str] = {
    "late": "no reply came before the deadline of the round",
    "unsent": "the request could not be handed to the SuperLink",
    "error": "the client reported an error in place of a reply",
    "unreadable": "the reply could not be decoded",
    "identity": "the reply names another sender, or answers another request, than the one it was collected for",
    "stranger": "the sender was not asked in this round",
    "duplicate": "the sender had already replied in this round",
    "round": "the reply is of another round",
    "records": "the reply has more or fewer records than one of arrays, or too many",
    "keys": "the arrays have other names than the model's",
    "dtype": "an array has another type than the model's",
    "shape": "an array has another shape than the model's",
    "size": "an array has more bytes than the model's",
    "body": "the bytes of an array are not what its header promises",
    "count": "the number of examples is missing or impossible",
    "not finite": "the update holds NaN or infinity",
    "too long": "the norm of the update is absurd, beyond 1e30",
    "report": "the sealed report is damaged, replayed, or made for another round or sender",
    "proof": "the report does not prove that the norm is within the bound",
}


class Refusal(NamedTuple):
    """The reason why a reply was refused, one of `REASONS`, and what exactly was wrong."""

    reason: str
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.reason}: {self.detail or REASONS.get(self.reason, '')}"


class Admitted(NamedTuple):
    """A reply that passed the door: the update as a vector, its norm, and the number of examples it counts for."""

    row: Tensor  # float32 [d]
    norm: float
    examples: float = 1.0


class Request(NamedTuple):
    """What was asked of a node: the reply must come from it, answer this message, and be of this round."""

    node: int
    round: int
    message_id: str = ""  # "" where the transport did not name one


@dataclass(frozen=True)
class ExpectedArray:
    """One array that a reply must hold, and its place in the flat vector."""

    dtype: str
    shape: tuple[int, ...]
    start: int | None  # None: not trained, and not read from a reply

    @property
    def numbers(self) -> int:
        return math.prod(self.shape)

    @property
    def most_bytes(self) -> int:
        return self.numbers * np.dtype(self.dtype).itemsize + HEADER_BYTES


@dataclass(frozen=True)
class ReplyFormat:
    """The arrays that a reply must hold, by name."""

    parts: Mapping[str, ExpectedArray]
    d: int
    cap: float | None = None  # the most examples that a reply may count for; None: all count the same

    @classmethod
    def of(cls, arrays: Mapping[str, npt.NDArray[Any]], layout: ModelLayout, cap: float | None = None) -> ReplyFormat:
        """Return the format of replies to a model that is sent as these arrays."""
        if cap is not None and not (math.isfinite(cap) and cap > 0):
            raise ConfigError(
                f"weight_cap is {cap}, but must be a number of examples above 0, or None for equal weights"
            )
        starts = {slot.name: slot.start for slot in layout.slots}
        parts = {name: ExpectedArray(str(a.dtype), tuple(a.shape), starts.get(name)) for name, a in arrays.items()}
        return cls(parts, layout.d, cap)


class _RefusedError(Exception):
    """The end of a reading: the reply is refused."""

    def __init__(self, reason: str, detail: str) -> None:
        self.refusal = Refusal(reason, printable(detail, 200))


def admit(message: Any, expected: ReplyFormat, request: Request, model: Tensor | None = None) -> Admitted | Refusal:
    """Return the update in a reply, or the reason why it is refused; never raise, whatever the reply holds.

    Args:
        message: the reply, with `metadata`, `has_error()` and `content` as Flower's messages have them.
        expected: the arrays that a reply must hold.
        request: whom the reply must come from, and what it must answer.
        model: the model [d] that was sent, if clients reply with models; the update is the difference to it.
    """
    try:
        return _admitted(message, expected, request, model)
    except _RefusedError as refused:
        return refused.refusal
    except Exception as error:
        return Refusal("unreadable", printable(f"{type(error).__name__}: {error}", 200))


def admit_arrays(arrays: Mapping[str, Any], expected: ReplyFormat) -> Admitted | Refusal:
    """Return the update in arrays that another transport has decoded already, or the reason why it is refused."""
    try:
        _check_keys(arrays, expected)
        row = np.empty(expected.d, np.float32)
        for name, part in expected.parts.items():
            array = arrays[name]
            if not isinstance(array, np.ndarray) or str(array.dtype) != part.dtype:
                kind = getattr(array, "dtype", type(array).__name__)
                raise _RefusedError("dtype", f"{quoted(name)} is {quoted(str(kind))}, not {part.dtype}")
            if array.shape != part.shape:
                raise _RefusedError("shape", f"{quoted(name)} has shape {list(array.shape)}, not {list(part.shape)}")
            if part.start is not None:
                row[part.start : part.start + part.numbers] = array.ravel()
        return Admitted(torch.from_numpy(row), _usable_norm(torch.from_numpy(row)))
    except _RefusedError as refused:
        return refused.refusal
    except Exception as error:
        return Refusal("unreadable", printable(f"{type(error).__name__}: {error}", 200))


def admit_report(message: Any, request: Request, most: int) -> bytes | Refusal:
    """Return the sealed report in a reply, or the reason why it is refused; never raise, whatever the reply holds.

    Args:
        message: the reply, as for `admit`.
        request: whom the reply must come from, and what it must answer.
        most: the bytes of a report.
    """
    try:
        _check_origin(message, request)
        arrays = _the_arrays(message.content)
        if len(arrays) != 1:
            raise _RefusedError("keys", f"{len(arrays)} arrays, where a report is one")
        ((name, array),) = arrays.items()
        if len(array.data) > most + HEADER_BYTES:
            raise _RefusedError("size", f"the report has {len(array.data):,} bytes, of at most {most:,}")
        return _numbers(name, array.data, ExpectedArray("uint8", tuple(array.shape), None)).tobytes()
    except _RefusedError as refused:
        return refused.refusal
    except Exception as error:
        return Refusal("unreadable", printable(f"{type(error).__name__}: {error}", 200))


def _admitted(message: Any, expected: ReplyFormat, request: Request, model: Tensor | None) -> Admitted:
    _check_origin(message, request)
    content = message.content
    arrays = _the_arrays(content)
    if (stated := _metric(content, "server-round")) is not None and stated != request.round:
        raise _RefusedError("round", f"the reply is of round {quoted(stated)}, but this is round {request.round}")
    _check_keys(arrays, expected)
    for name, part in expected.parts.items():
        _check_header(name, arrays[name], part)
    examples = 1.0 if expected.cap is None else _examples(content, expected.cap)
    row = _row(arrays, expected)
    if model is not None:
        torch.sub(model, row, out=row)
    return Admitted(row, _usable_norm(row), examples)


def _check_origin(message: Any, request: Request) -> None:
    if message.has_error():
        error = message.error
        raise _RefusedError("error", f"code {error.code}: {error.reason}")
    metadata = message.metadata
    if metadata.src_node_id != request.node:
        raise _RefusedError(
            "identity", f"the reply of node {request.node} names node {metadata.src_node_id} as its sender"
        )
    if request.message_id and metadata.reply_to_message_id != request.message_id:
        raise _RefusedError(
            "identity", f"the reply answers message {quoted(metadata.reply_to_message_id)}, not this one"
        )
    if metadata.group_id not in ("", str(request.round)):
        raise _RefusedError(
            "round", f"the reply is of round {quoted(metadata.group_id)}, but this is round {request.round}"
        )


def _the_arrays(content: Any) -> Any:
    if len(content) > MOST_RECORDS:
        raise _RefusedError("records", f"{len(content)} records, of at most {MOST_RECORDS}")
    records = content.array_records
    if len(records) != 1:
        raise _RefusedError("records", f"{len(records)} records of arrays, where one is expected")
    return next(iter(records.values()))


def _check_keys(arrays: Any, expected: ReplyFormat) -> None:
    if len(arrays) != len(expected.parts):
        raise _RefusedError("keys", f"{len(arrays)} arrays, where the model has {len(expected.parts)}")
    for name in expected.parts:
        if name not in arrays:
            raise _RefusedError("keys", f"array {quoted(name)} is missing")


def _check_header(name: str, array: Any, part: ExpectedArray) -> None:
    """Check an array by what it says about itself, before its bytes are read."""
    if array.stype != STYPE or array.dtype != part.dtype:
        raise _RefusedError("dtype", f"{quoted(name)} is {quoted(array.stype)} {quoted(array.dtype)}, not {part.dtype}")
    if tuple(array.shape) != part.shape:
        raise _RefusedError("shape", f"{quoted(name)} has shape {quoted(list(array.shape))}, not {list(part.shape)}")
    if len(array.data) > part.most_bytes:
        raise _RefusedError("size", f"{quoted(name)} has {len(array.data):,} bytes, of at most {part.most_bytes:,}")


def _examples(content: Any, cap: float) -> float:
    """Return the number of examples that a reply counts for: what it says, but no more than the cap."""
    claimed = _metric(content, COUNT)
    if isinstance(claimed, bool) or not isinstance(claimed, (int, float)) or not 0 < claimed < math.inf:
        raise _RefusedError("count", f"{COUNT} is {quoted(claimed)}, but must be a number above 0")
    return float(min(claimed, cap))


def _metric(content: Any, name: str) -> Any:
    """Return a number among the metrics of a reply; None if there is none."""
    records = content.metric_records.values()
    if sum(map(len, records)) > MOST_METRICS:
        raise _RefusedError("records", f"more than {MOST_METRICS} metrics")
    return next((record[name] for record in records if name in record), None)


def _row(arrays: Any, expected: ReplyFormat) -> Tensor:
    row = np.empty(expected.d, np.float32)
    with np.errstate(over="ignore", invalid="ignore"):  # beyond float32 is infinite, and refused as that
        for name, part in expected.parts.items():
            if part.start is not None:
                row[part.start : part.start + part.numbers] = _numbers(name, arrays[name].data, part)
    return torch.from_numpy(row)


def _numbers(name: str, data: bytes, part: ExpectedArray) -> npt.NDArray[Any]:
    """Return the numbers of a NumPy file in memory, in the order of the model's; a view of its bytes, not a copy."""
    head = io.BytesIO(data[:HEADER_BYTES])
    try:
        if np.lib.format.read_magic(head) != (1, 0):
            raise ValueError("an unknown version")
        shape, fortran, dtype = np.lib.format.read_array_header_1_0(head, max_header_size=HEADER_BYTES)
    except Exception as error:
        raise _RefusedError("body", f"{quoted(name)} is no NumPy array ({error})") from error
    if (shape, dtype) != (part.shape, np.dtype(part.dtype)) or len(data) - head.tell() != part.numbers * dtype.itemsize:
        raise _RefusedError("body", f"{quoted(name)} holds {dtype} {list(shape)} in {len(data):,} bytes")
    flat = np.frombuffer(data, dtype, part.numbers, head.tell())
    return flat.reshape(shape, order="F").ravel() if fortran else flat


def _usable_norm(row: Tensor) -> float:
    norm = float(row_norms(row[None])[0])
    if not math.isfinite(norm):
        raise _RefusedError("not finite", f"{int((~torch.isfinite(row)).sum()):,} of {len(row):,} numbers")
    if norm > LARGEST_NORM:
        raise _RefusedError("too long", f"norm {norm:.3g}")
    return norm
