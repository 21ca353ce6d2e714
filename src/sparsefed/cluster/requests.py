"""What is asked of a worker, and what it answers: arrays and numbers, no behaviour."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from sparsefed.core.engine import LocalStep
from sparsefed.core.types import FloatArray, IntArray

Answers = Literal["sums", "rows", "slices"]  # what a rule reads of honest updates, besides norms

Doubles = npt.NDArray[np.float64]


class PartRequest(NamedTuple):
    """A part of a round's cohort, and what is wanted of its updates; the model goes beside it."""

    call: str  # of the engine: the same call has the same model
    number: int  # of the part
    ids: IntArray
    round: int
    step: LocalStep
    answers: Answers
    rows: bool  # whether the rows are sent too
    budget: float
    weights: Doubles | None  # of these devices, in the order of `ids`; None: all alike


class BlockAnswer(NamedTuple):
    """The answer about one block of a part: norms, and the clipped sum or the rows."""

    senders: IntArray  # [m]
    norms: Doubles  # [m]
    total: FloatArray | None  # [d], of the updates clipped to the budget; None: not wanted
    rows: FloatArray | None  # [m, d]; None: not sent
    seconds: float  # that the worker computed


class Piece(NamedTuple):
    """A block's rows in a slice of columns: which of them are kept, and their factors."""

    block: int  # of the part
    low: int
    high: int
    kept: npt.NDArray[np.bool_]
    factors: Doubles  # of the kept ones


class WorkerOrder(NamedTuple):
    """What a worker is made from: a config that it builds itself, or devices that were built for it."""

    name: str  # unique: a worker that has greeted for another run greets again
    table: dict[str, Any] | None
    devices: Any  # `worker.Devices`, if the config holds objects of the driver's process
    threads: int
    probe: PartRequest
    expected: Any  # the driver's `Greeting`; None: whatever it is
    root: Any  # the server's own examples, if it has some: what an engine sees first
