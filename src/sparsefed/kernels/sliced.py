"""Rows [n, d] of which only slices of columns are ever in one place: what a rule can do with updates on many machines.

Whatever a rule computes from slices it computes from whole rows in the same slices, `SLICE` columns each, and in the
same order. So the bits do not depend on where the rows are.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

SLICE = 1 << 16  # columns

OfSlice = Callable[[Tensor], Tensor]  # rows [n, at most SLICE] -> any tensor; it is called where the slice is


class SlicedRows(ABC):
    """The rows of a round's updates, spread over machines, and functions of their slices."""

    shape: tuple[int, int]

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    @abstractmethod
    def slices(self, function: OfSlice) -> Iterator[Tensor]:
        """Yield a function of each slice, in the order of the columns."""

    @abstractmethod
    def __getitem__(self, kept: Tensor) -> SlicedRows:
        """Return the rows of a mask, bool [n]."""

    def columnwise(self, function: OfSlice) -> Tensor:
        """Return a function that maps every column to one number, over all columns [d]."""
        return torch.cat(list(self.slices(function)))

    def new_zeros(self, size: int) -> Tensor:
        return torch.zeros(size)


Rows = Tensor | SlicedRows


def row_of(rows: Rows, i: int) -> Tensor:
    """Return one row [d], wherever it is."""
    return rows.columnwise(_Row(i)) if isinstance(rows, SlicedRows) else rows[i]


class _Row:
    """The function that picks one row; a class, so that another process can import it."""

    def __init__(self, i: int) -> None:
        self._i = i

    def __call__(self, rows: Tensor) -> Tensor:
        return rows[self._i]
