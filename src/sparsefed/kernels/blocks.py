"""Blocks over rows that exist in memory: norms and weighted sums are computed from the rows themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sparsefed.core.types import Block, IntArray
from sparsefed.kernels.rows import row_norms
from sparsefed.kernels.sliced import SlicedRows


@dataclass(frozen=True)
class RowsBlock:
    """A `Block` over a tensor of updates, one per row; senders without names are numbered."""

    tensor: Tensor  # [m, d]
    named: IntArray | None = None  # [m]

    @property
    def size(self) -> int:
        return int(self.tensor.shape[0])

    @property
    def senders(self) -> IntArray:
        return np.arange(self.size) if self.named is None else self.named

    def norms(self) -> Tensor:
        """Return ||row||_2, summed in float64, so that small rows do not drown and large ones do not overflow."""
        return row_norms(self.tensor)

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """Return sum_i weights_i row_i over the rows whose weight is not 0 (0 times NaN would be NaN)."""
        taken = weights != 0
        if bool(taken.all()):
            return weights.to(torch.float32) @ self.rows()
        return weights[taken].to(torch.float32) @ self.rows()[taken]

    def rows(self) -> Tensor:
        return self.tensor.to(torch.float32)


@dataclass(frozen=True)
class ScaledBlock:
    """A view of the kept rows of another block, each times its factor; rows are written only on demand."""

    base: Block
    kept: Tensor  # bool [m of the base]
    factors: Tensor  # float64 [kept rows]
    kept_norms: Tensor  # float64 [kept rows], before scaling: computed once

    @property
    def size(self) -> int:
        return int(self.factors.shape[0])

    @property
    def senders(self) -> IntArray:
        kept: IntArray = self.base.senders[self.kept.cpu().numpy()]
        return kept

    @property
    def weights(self) -> Tensor | None:
        """The weight of each kept update in a mean, float64; None if all are equal."""
        given: Tensor | None = getattr(self.base, "weights", None)
        return None if given is None else given.to(self.kept.device)[self.kept]

    @property
    def received(self) -> int:
        """The number of updates received, including unusable ones."""
        return self.base.size

    def norms(self) -> Tensor:
        return self.kept_norms * self.factors

    def weighted_sum(self, weights: Tensor) -> Tensor:
        full = torch.zeros(self.base.size, dtype=torch.float64, device=self.factors.device)
        full[self.kept] = weights.to(full) * self.factors
        return self.base.weighted_sum(full)

    def rows(self) -> Tensor:
        rows = self.base.rows()
        rows = rows if self.size == self.base.size else rows[self.kept]
        if bool((self.factors == 1).all()):
            return rows
        return rows * self.factors.to(torch.float32)[:, None]


Join = Callable[[Sequence[Any]], SlicedRows]  # blocks of a round -> their rows, which stay where they are


def remote_join(block: Block) -> Join | None:
    """Return how blocks whose rows are on other machines are joined; None if the rows of this one are here."""
    remote = getattr(getattr(block, "base", block), "remote", None)
    return None if remote is None else remote.join


def as_blocks(array: npt.NDArray[Any] | Tensor, block_size: int) -> Iterator[RowsBlock]:
    """Cut an [n, d] array into blocks of at most `block_size` rows, converted to float32 one block at a time.

    >>> [block.size for block in as_blocks(np.ones((5, 3)), 2)]
    [2, 2, 1]
    """
    for start in range(0, array.shape[0], block_size):
        rows = _float32(array[start : start + block_size])
        yield RowsBlock(rows, np.arange(start, start + len(rows)))


def _float32(rows: npt.NDArray[Any] | Tensor) -> Tensor:
    if isinstance(rows, Tensor):
        return rows.detach().resolve_neg().to(torch.float32)
    with np.errstate(over="ignore", invalid="ignore"):  # beyond float32 is inf, and the server drops that update
        # Torch shares memory only with writable arrays of positive strides: copy where it is not one. A dimension
        # of size 1 may have a negative stride and still count as contiguous.
        ready = np.require(rows, np.float32, ["C", "W"])
        return torch.from_numpy(ready.copy() if min(ready.strides, default=0) < 0 else ready)
