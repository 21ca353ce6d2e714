"""The basic types of the project, with their shapes; no behaviour.

A round of federated learning has four stages: cohort -> updates -> one direction -> new model. Everything
is a flat float32 vector of d parameters. An *update* is always `theta_before - theta_after`, so the server subtracts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
from torch import Tensor

from sparsefed.core.inputs import Scale

UInt8Array = npt.NDArray[np.uint8]
IntArray = npt.NDArray[np.int64]
IndexArray = npt.NDArray[np.int32]
FloatArray = npt.NDArray[np.float32]

IGNORED = -100  # the label of a position with nothing to predict: it counts in no loss and no accuracy

State = Mapping[str, Tensor]  # named tensors: a checkpoint is a copy of it


@dataclass(frozen=True)
class Arrays:
    """A data set: images stay uint8 and are normalised one block at a time; text is token numbers.

    Anything else (features of any shape and dtype) enters the model as float32 or integers, normalised by `scales`.
    Arrays may be memory-mapped files; a model of several inputs has a tuple or dict of arrays for its examples.
    """

    name: str
    x_train: Any  # uint8 [N, H, W, C]; text: [N, T]; features: [N, ...], or a tuple or dict of such arrays
    y_train: Any  # int64 [N]; text: [N, T], the token that follows, IGNORED where none does; others: `core.target`
    x_test: Any  # [M, H, W, C]
    y_test: Any  # [M]
    classes: tuple[str, ...]  # text: the vocabulary
    mean: tuple[float, ...]  # of x / 255, per channel; () if examples are not images
    std: tuple[float, ...]
    users: IntArray | None = None  # [N], the author of each training example, if known
    scales: tuple[Scale | None, ...] = ()  # of features, one for each input; () if they are taken as they are
    target: str = ""  # a kind of `core.target.TARGETS`; "": classes, tokens if an example has several, values if floats

    @property
    def is_image(self) -> bool:
        """Whether examples are images, which are normalised before they enter the model."""
        return bool(self.mean)

    @property
    def is_text(self) -> bool:
        """Whether examples are sequences of tokens, with a target for each token."""
        return self.target_kind == "tokens"

    @property
    def target_kind(self) -> str:
        """The kind of the targets, one of `core.target.TARGETS`."""
        if self.target:
            return self.target
        if self.y_train.dtype.kind == "f":
            return "values"
        return "tokens" if self.y_train.ndim == 2 else "classes"


@dataclass(frozen=True, eq=False)
class Partition:
    """The assignment of examples to devices, for a population of any size; both arrays are read-only."""

    offsets: IntArray  # [devices + 1], from 0, strictly increasing
    examples: IndexArray  # [total], rows of the data set

    @property
    def devices(self) -> int:
        return len(self.offsets) - 1


class Batch(NamedTuple):
    """The examples of some devices, device after device."""

    x: Tensor  # [M, ...] raw: uint8 images [M, H, W, C], or any input of `Task.prepare`
    y: Tensor  # int64 [M] (or [M, T] where an example has several targets)
    sizes: IntArray  # [devices], how many of the M belong to each


class Block(Protocol):
    """Some clients' updates, available as norms, as weighted sums, or as rows.

    A rule uses no more than it needs, so that an engine can compute norms and weighted sums without writing the rows.
    """

    @property
    def size(self) -> int: ...  # m, the number of clients

    @property
    def senders(self) -> IntArray: ...  # [m] pseudonyms: a device keeps its own in every round

    def norms(self) -> Tensor: ...  # float64 [m]; not finite where the update is not

    def weighted_sum(self, weights: Tensor) -> Tensor: ...  # float64 [m] -> float32 [d]; a weight of 0 skips its row

    def rows(self) -> Tensor: ...  # float32 [m, d]


class Context(NamedTuple):
    """The facts of a round that a defense may know: public ones only, never honesty or data.

    All but the first two are for the few rules that declare a need for them.
    """

    round: int
    lr: float  # lambda(t)
    seed: int = 0  # for rules that draw
    theta: Tensor | None = None  # float32 [d], the model that every device of the round downloads
    layers: tuple[int, ...] = ()  # how many coordinates each parameter tensor has, in order; () if unknown
    root: Tensor | None = None  # float32 [d], the update that the server computed on its own data


class Step(NamedTuple):
    """The result of a defense: its new state, and the vector that the server subtracts from the model."""

    state: State
    delta: Tensor  # float32 [d]
    stats: Mapping[str, float]
    accepted: frozenset[int] | None = None  # senders, of a rule that selects among them


@dataclass(frozen=True)
class Defense:
    """One aggregation rule with its server state, as a pair of pure functions."""

    init: Callable[[int], State]  # d -> state
    step: Callable[[State, Iterable[Block], Context], Step]
    budget: Callable[[State, Context], float]  # the l2 norm the server enforces on an update; inf if none
    check: Callable[[int], None] = lambda n: None  # noqa: ARG005 - raises if the rule is not defined for n updates


@dataclass(frozen=True)
class RunRecord:
    """The contents of a run folder."""

    name: str
    config: Mapping[str, Any]
    manifest: Mapping[str, Any]
    rows: tuple[Mapping[str, Any], ...]  # metrics.jsonl, one per round
    folder: Path | None = None
