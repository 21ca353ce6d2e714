"""The count sketch: a vector of d numbers in a table of r rows and c columns.

Charikar, Chen, Farach-Colton 2002, Finding Frequent Items in Data Streams, section 3:

    S(x)[j, b]  =  sum of s_j(i) x_i over the coordinates i with h_j(i) = b
    U(S)_i      =  median over the rows j of s_j(i) S[j, h_j(i)]

S is linear. One row's estimate is unbiased, with variance (|x|^2 - x_i^2) / c; so it is off by t or more with
probability at most q = |x|^2 / (c t^2), and the median of r independent rows only if more than half of them are: with
probability at most the binomial tail P[Bin(r, q) > r / 2] <= (4 q)^(r / 2). r must be odd: a median of an even number
of rows is not one of them, and no rule for that is worth the choice.

The hashes are tabulated (Thorup and Zhang 2012, Tabulation-Based 5-Independent Hashing with Applications to Linear
Probing and Second Moment Estimation): with i = 1024 a + b,

    H_j(i)  =  high_j[a] xor low_j[b] xor both_j[a + b]      32 random bits

maps any 5 coordinates independently. Its last bit is the sign, the other 31 choose the column. Nothing of size d is
kept, and coordinates in ascending order read the tables in order.

*Departures.* The original needs pairwise independence only. The 31 bits are cut into c columns by multiplication, so a
column may be more likely than another by a share of c / 2^31 (0.02 % for 500 000 columns).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sparsefed.core.errors import ConfigError
from sparsefed.core.rng import rng
from sparsefed.kernels.topk import check_k, topk_indices_torch

LOW = 1024  # the low alphabet: coordinates that share their high character
MOST_COLUMNS = 1 << 24  # more, and 31 bits would fill them unevenly
MOST_CELLS = 1 << 26  # a quarter of a gigabyte a table
AT_ONCE = 1 << 20  # coordinates per step whose hashes the torch path holds

Tables = npt.NDArray[np.uint32]


@dataclass(frozen=True)
class Hashes:
    """The hash functions of the r rows of a sketch of d coordinates in c columns."""

    d: int
    columns: int
    high: Tables  # [r, A], A = d / 1024 rounded up
    low: Tables  # [r, 1024]
    both: Tables  # [r, A + 1023]

    @property
    def rows(self) -> int:
        return len(self.high)

    @property
    def tables(self) -> tuple[Tables, Tables, Tables]:
        return self.high, self.low, self.both


class Sparse(NamedTuple):
    """A vector given by its nonzero coordinates."""

    indices: Tensor  # int64 [k], ascending
    values: Tensor  # float32 [k]


def draw_hashes(seed: int, d: int, rows: int, columns: int) -> Hashes:
    """Return the hashes of a seed: equal in every round and on every device, so that sketches add up."""
    check_size(rows, columns)
    generator, tiles = rng(seed, "sketch"), -(-d // LOW)
    high, low, both = (
        generator.integers(0, 1 << 32, size=(rows, size), dtype=np.uint32) for size in (tiles, LOW, tiles + LOW - 1)
    )
    return Hashes(d, columns, high, low, both)


def check_size(rows: int, columns: int) -> None:
    """Refuse a table size that no sketch can have."""
    if rows < 1 or rows % 2 == 0:
        raise ConfigError(f"rows is {rows}, but an estimate is the median over the rows: choose an odd number, say 5")
    if not 1 <= columns <= MOST_COLUMNS:
        raise ConfigError(f"columns is {columns}, but must be from 1 to {MOST_COLUMNS}: choose some tenth of d or less")
    if rows * columns > MOST_CELLS:
        raise ConfigError(f"rows is {rows} and columns is {columns}, but the table has {MOST_CELLS} cells at most")


def cells(hashes: Hashes, row: int, indices: Tensor) -> tuple[Tensor, Tensor]:
    """Return the columns int64 [m] and signs float32 [m] of these coordinates (int64 [m]) in a row, by torch."""
    value = hash_values(hashes, row, indices)
    return ((value >> 1) * hashes.columns) >> 31, 1 - 2 * (value & 1).to(torch.float32)


def hash_values(hashes: Hashes, row: int, indices: Tensor) -> Tensor:
    """Return H_row(i) of these coordinates, 32 bits in int64 [m]."""
    high, low, both = (torch.from_numpy(table[row].astype(np.int64)).to(indices.device) for table in hashes.tables)
    a, b = indices // LOW, indices % LOW
    return high[a] ^ low[b] ^ both[a + b]


def sketch(hashes: Hashes, x: Tensor) -> Tensor:
    """Return S(x), float32 [r, c], of a float32 vector [d]; each row adds the coordinates in ascending order."""
    _check_d(hashes, x.numel())
    if x.device.type != "cpu":
        return sketch_torch(hashes, x)
    from sparsefed.kernels import sketch_kernels

    array = x.detach().contiguous().numpy()
    return torch.from_numpy(sketch_kernels.sketch(array, hashes.tables, hashes.columns))


def sketch_torch(hashes: Hashes, x: Tensor) -> Tensor:
    """Compute `sketch` in plain torch operations; bit for bit if `index_add_` keeps the order, as on CPU."""
    table = x.new_zeros(hashes.rows, hashes.columns)
    for indices in _all_coordinates(hashes, x.device):
        _add(hashes, indices, x[indices], table)
    return table


def sketch_sparse(hashes: Hashes, x: Sparse) -> Tensor:
    """Return S(x) of a sparse vector, with no work that grows with d."""
    table = x.values.new_zeros(hashes.rows, hashes.columns)
    _add(hashes, x.indices, x.values, table)
    return table


def touched(hashes: Hashes, indices: Tensor) -> Tensor:
    """Return a mask of the cells that these coordinates contribute to, bool [r, c]."""
    mask = torch.zeros(hashes.rows, hashes.columns, dtype=torch.bool, device=indices.device)
    for j in range(hashes.rows):
        mask[j, cells(hashes, j, indices)[0]] = True
    return mask


def estimates(hashes: Hashes, table: Tensor) -> Tensor:
    """Return U(table), float32 [d]: the median over the rows, for every coordinate."""
    if table.device.type != "cpu":
        return estimates_torch(hashes, table)
    from sparsefed.kernels import sketch_kernels

    array = table.detach().contiguous().numpy()
    return torch.from_numpy(sketch_kernels.estimates(array, hashes.tables, hashes.d))


def estimates_torch(hashes: Hashes, table: Tensor) -> Tensor:
    """Compute `estimates`, bit for bit, in plain torch operations, for every device."""
    return torch.cat([_estimates_of(hashes, table, indices) for indices in _all_coordinates(hashes, table.device)])


def heavy_hitters(hashes: Hashes, table: Tensor, k: int) -> Sparse:
    """Return the k coordinates of largest |estimate|, ties by lowest index, with their estimates."""
    check_k(k, hashes.d)
    if table.device.type != "cpu":
        return heavy_hitters_torch(hashes, table, k)
    from sparsefed.kernels import sketch_kernels

    array = table.detach().contiguous().numpy()
    found = sketch_kernels.heavy_hitters(array, hashes.tables, hashes.d, k)
    return Sparse(*map(torch.from_numpy, found))


def heavy_hitters_torch(hashes: Hashes, table: Tensor, k: int) -> Sparse:
    """Compute `heavy_hitters` in plain torch operations, for every device."""
    all_of_them = estimates_torch(hashes, table)
    indices = topk_indices_torch(all_of_them, k)
    return Sparse(indices, all_of_them[indices])


def rehearse() -> None:
    """Call each kernel for sketches once."""
    from sparsefed.kernels import sketch_kernels

    hashes = draw_hashes(0, sketch_kernels.FILTER_FROM, 1, 2)  # enough for the filter to be used
    table = sketch(hashes, torch.ones(hashes.d))
    heavy_hitters(hashes, table, 1)
    estimates(hashes, table)


def _all_coordinates(hashes: Hashes, device: torch.device) -> tuple[Tensor, ...]:
    return torch.split(torch.arange(hashes.d, device=device), AT_ONCE)


def _add(hashes: Hashes, indices: Tensor, values: Tensor, table: Tensor) -> None:
    for j in range(hashes.rows):
        columns, signs = cells(hashes, j, indices)
        table[j].index_add_(0, columns, signs * values)


def _estimates_of(hashes: Hashes, table: Tensor, indices: Tensor) -> Tensor:
    by_row = []
    for j in range(hashes.rows):
        columns, signs = cells(hashes, j, indices)
        by_row.append(signs * table[j, columns])
    return torch.stack(by_row).sort(dim=0).values[hashes.rows // 2] + 0.0  # + 0.0: no -0.0


def _check_d(hashes: Hashes, d: int) -> None:
    if d != hashes.d:
        raise ConfigError(f"the vector has {d} coordinates, but these hashes are for {hashes.d}: draw them for {d}")
