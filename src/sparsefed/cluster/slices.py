"""Rows of a round that stay with the workers that computed them: slices of columns are exchanged, never all rows.

For each slice every worker hands over its rows' columns, and one of them, each in turn, applies a rule's function to
the slice. A slice of 65 536 columns of 100 updates is 26 MB.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sparsefed.cluster.requests import Piece
from sparsefed.cluster.team import PendingAnswer, Team, WorkerLostError
from sparsefed.kernels.blocks import ScaledBlock
from sparsefed.kernels.sliced import SLICE, OfSlice, SlicedRows

STORE = 2**28  # bytes of slices that may be on their way at a time


class RemoteRows(SlicedRows):
    """The kept and clipped rows of a round's blocks, on the workers; the attackers' are here."""

    def __init__(self, call: Any, blocks: Sequence[ScaledBlock], team: Team) -> None:
        self._call, self._blocks, self._team = call, list(blocks), team
        self._rows = [None if _remote(block) else block.rows() for block in blocks]
        self.shape = (sum(block.size for block in blocks), call.d)

    def __getitem__(self, kept: Tensor) -> RemoteRows:
        sizes = [block.size for block in self._blocks]
        masked = [_masked(block, mask) for block, mask in zip(self._blocks, torch.split(kept, sizes), strict=True)]
        return RemoteRows(self._call, masked, self._team)

    def slices(self, function: OfSlice) -> Iterator[Tensor]:
        """Yield a function of each slice, in the order of the columns, computed by the workers."""
        spans = [(low, min(low + SLICE, self.shape[1])) for low in range(0, self.shape[1], SLICE)]
        ahead = max(1, min(2 * len(self._team), STORE // (4 * SLICE * max(1, len(self)))))
        asked: dict[int, PendingAnswer] = {}
        for due in range(len(spans)):
            for number in range(due, min(due + ahead, len(spans))):
                if number not in asked:
                    asked[number] = self._ask(function, number, *spans[number])
            yield self._answer(asked.pop(due), function, due, *spans[due])

    def _answer(self, task: PendingAnswer, function: OfSlice, number: int, low: int, high: int) -> Tensor:
        while True:
            try:
                return torch.from_numpy(np.array(self._team.answer(task)))
            except WorkerLostError:
                self._team.look()
                task = self._ask(function, number, low, high)

    def _ask(self, function: OfSlice, number: int, low: int, high: int) -> PendingAnswer:
        pieces = [self._piece(i, low, high) for i in range(len(self._blocks))]
        ready = self._team.ready or [self._team.someone()]
        return self._team.ask(ready[number % len(ready)], "of_slice", function, *pieces)

    def _piece(self, i: int, low: int, high: int) -> Any:
        """Return a block's columns: an array if its rows are here, else a reference to the worker's answer."""
        block, rows = self._blocks[i], self._rows[i]
        if rows is not None:
            return np.ascontiguousarray(rows[:, low:high].numpy())
        source = _remote(block)
        piece = Piece(source.number, low, high, block.kept.numpy(), block.factors.numpy())
        source.worker = self._team.someone(source.worker)
        return self._team.begun(source.worker, "columns", source.request, self._call.theta, piece)


def _remote(block: ScaledBlock) -> Any:
    return getattr(block.base, "remote", None)


def _masked(block: ScaledBlock, mask: Tensor) -> ScaledBlock:
    """Return a block with only some of its kept rows."""
    kept = block.kept.clone()
    kept[block.kept] = mask
    return ScaledBlock(block.base, kept, block.factors[mask], block.kept_norms[mask])
