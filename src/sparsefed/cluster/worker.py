"""What a worker computes: blocks of a part, from the request alone. Knows nothing of Ray.

A worker loads data and model once. Every answer is a pure function of the request and the model, so that another
worker may give it instead, and gives the same bits. Rows that later requests of the same round ask for are kept; a
worker that does not have them (it took over from a lost one) computes them again.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from sparsefed.cluster.greeting import Greeting, bits, greet, refusal
from sparsefed.cluster.requests import BlockAnswer, PartRequest, Piece, WorkerOrder
from sparsefed.config.build import build_devices, whole_engine
from sparsefed.config.load import parse
from sparsefed.core.engine import Cohort, Engine
from sparsefed.core.errors import ConfigError, SparseFedError
from sparsefed.core.federation import Federation
from sparsefed.core.malloc import keep_freed_memory
from sparsefed.core.task import Task
from sparsefed.core.types import Block, FloatArray
from sparsefed.defenses.pipeline import LARGEST_NORM, clip_factors
from sparsefed.kernels.blocks import ScaledBlock
from sparsefed.kernels.sliced import OfSlice


class Devices(NamedTuple):
    """The devices' side of a simulation: their data, and how updates are computed."""

    federation: Federation
    task: Task
    engine: Callable[[Task], Engine]


class NotGreetedError(Exception):
    """A worker that was restarted is asked before it has greeted: it knows nothing yet."""


class Worker:
    """A process that computes parts of cohorts."""

    def __init__(self) -> None:
        self._call, self._theta = "", torch.empty(0)
        self._kept: dict[int, list[Tensor]] = {}  # rows of this call's parts, block by block
        self._greeting: Greeting | None = None
        self._order = ""

    def greet(self, order: WorkerOrder, theta: FloatArray) -> Greeting:
        """Load data and model, compute the probe, and return what this worker computes with.

        Raises:
            ConfigError: Its bits would not be the driver's, or it cannot start.
        """
        if self._greeting is None or self._order != order.name:
            self._greeting, self._order, self._call = None, order.name, ""
            torch.set_num_threads(order.threads)
            keep_freed_memory()
            try:
                devices = order.devices or _built(order.table or {})
            except SparseFedError as error:
                raise ConfigError(f"the worker on {socket.gethostname()} cannot start: {error}") from None
            self._federation, self._engine = devices.federation, devices.engine(devices.task)
            probe = probed(self._engine, self._federation, order, theta)
            greeting = greet(self._federation, order.threads, probe)
            sentence = None if order.expected is None else refusal(order.expected, greeting)
            if sentence is not None:
                raise ConfigError(sentence)
            self._greeting = greeting
        return self._greeting

    def answer(self, request: PartRequest, theta: FloatArray) -> list[BlockAnswer]:
        """Return norms, and sums or rows, of every block of a part."""
        self._begin(request, theta)
        kept: list[Tensor] = []
        answers = []
        began = time.perf_counter()
        for block in self._blocks(request):
            norms = block.norms()
            total = clipped_sum(block, norms, request).numpy() if request.answers == "sums" else None
            rows = block.rows() if request.rows or request.answers != "sums" else None
            if request.answers == "slices" and rows is not None:
                kept.append(rows)
            sent = rows.numpy() if rows is not None and (request.rows or request.answers == "rows") else None
            spent, began = time.perf_counter() - began, time.perf_counter()
            answers.append(BlockAnswer(block.senders, norms.numpy(), total, sent, spent))
            del block, rows  # free before the next is computed
        if kept:
            self._kept[request.number] = kept
        return answers

    def weighted_sum(self, request: PartRequest, theta: FloatArray, number: int, weights: Any) -> FloatArray:
        """Return a sum with other weights than those foreseen, of one block."""
        self._begin(request, theta)
        block = next(block for i, block in enumerate(self._blocks(request)) if i == number)
        return np.asarray(block.weighted_sum(torch.tensor(weights)).numpy())

    def rows(self, request: PartRequest, theta: FloatArray, number: int) -> FloatArray:
        """Return the rows of one block."""
        return np.asarray(self._rows(request, theta)[number].numpy())

    def columns(self, request: PartRequest, theta: FloatArray, piece: Piece) -> FloatArray:
        """Return the kept rows of one block in a slice of columns, each times its factor."""
        rows = self._rows(request, theta)[piece.block][:, piece.low : piece.high]
        return np.asarray(scaled_piece(rows, piece).numpy())

    def of_slice(self, function: OfSlice, *pieces: FloatArray) -> Any:
        """Return a function of a slice, whose rows come in pieces from all workers."""
        rows = torch.cat([torch.from_numpy(np.array(piece)) for piece in pieces])
        return function(rows).numpy()

    def _rows(self, request: PartRequest, theta: FloatArray) -> list[Tensor]:
        self._begin(request, theta)
        if request.number not in self._kept:
            self._kept[request.number] = [block.rows() for block in self._blocks(request)]
        return self._kept[request.number]

    def _begin(self, request: PartRequest, theta: FloatArray) -> None:
        if self._greeting is None:
            raise NotGreetedError  # it was restarted, perhaps elsewhere
        if request.call != self._call:
            self._call, self._kept = request.call, {}
            self._theta = torch.from_numpy(np.array(theta))

    def _blocks(self, request: PartRequest) -> Iterator[Block]:
        return blocks_of(self._engine, self._federation, request, self._theta)


def _built(table: Mapping[str, Any]) -> Devices:
    config = parse(table)
    side = build_devices(config)
    return Devices(side.federation, side.task, partial(whole_engine, config))


def blocks_of(engine: Engine, federation: Federation, request: PartRequest, theta: Tensor) -> Iterator[Block]:
    """Compute the blocks of a part, as a round in one process does."""
    gather = partial(federation.training, round=request.round)
    return engine(theta, Cohort(request.ids, federation.sizes(request.ids), gather), request.step)


def clipped_sum(block: Block, norms: Tensor, request: PartRequest) -> Tensor:
    """Return the sum that a rule's mean will ask for, by the same operations."""
    kept, weights = foreseen(norms, block.senders, request)
    return ScaledBlock(block, kept, clip_factors(norms[kept], request.budget), norms[kept]).weighted_sum(weights)


def foreseen(norms: Tensor, senders: Any, request: PartRequest) -> tuple[Tensor, Tensor]:
    """Return which updates of a block will be kept, and their weights in a mean."""
    kept = norms <= LARGEST_NORM
    if request.weights is None:
        return kept, norms.new_ones(int(kept.sum()))
    by_device = dict(zip(request.ids.tolist(), request.weights.tolist(), strict=True))
    each = torch.tensor([by_device[device] for device in senders.tolist()], dtype=torch.float64)
    return kept, each[kept]


def scaled_piece(rows: Tensor, piece: Piece) -> Tensor:
    """Return the kept rows of a slice, each times its factor, as `ScaledBlock.rows` does."""
    kept, factors = torch.from_numpy(np.array(piece.kept)), torch.from_numpy(np.array(piece.factors))
    rows = rows if bool(kept.all()) else rows[kept]
    if bool((factors == 1).all()):
        return rows.contiguous()
    return rows * factors.to(torch.float32)[:, None]


def probed(engine: Engine, federation: Federation, order: WorkerOrder, theta: FloatArray) -> str:
    """Return a digest of the norms and sums of a few devices, after the engine has seen what the driver's saw."""
    model = torch.from_numpy(np.array(theta))
    if order.root is not None:
        own = Cohort(np.zeros(1, np.int64), order.root.sizes, lambda ids: order.root)  # noqa: ARG005
        list(engine(model, own, order.probe.step))
    found: list[Any] = []
    for block in blocks_of(engine, federation, order.probe, model):
        found += [block.norms().numpy(), block.weighted_sum(torch.ones(block.size, dtype=torch.float64)).numpy()]
    return bits(found)
