"""Squared distances and inner products of all pairs of rows [n, d], accurate whatever their norms and offsets."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from sparsefed.kernels.sliced import Rows, SlicedRows

COLUMNS = 1 << 14  # per step in plain torch: n of them in float64
SMALL = 1 << 22  # numbers in all pairs of rows; below, the cost of float64 is negligible
UNDERFLOW = 2.0**-106  # a float32 square loses at most 2^-126, less than a millionth of this


def squared_distances(rows: Rows) -> Tensor:
    """Return |row_i - row_j|^2 of finite float32 rows, float64 [n, n]: symmetric, exactly 0 for equal rows.

    The relative error is below 1e-5 of each entry, whatever the rows (and typically 1e-8): a difference and its square
    are off by 3 * 2^-24, and 128 additions of a tile by 128 * 2^-24 at most. Where squares over- or underflow float32,
    and where the work is small, everything is float64 and the error about 1e-15.

    >>> squared_distances(torch.tensor([[0.0, 0.0], [3.0, 4.0]]))
    tensor([[ 0., 25.],
            [25.,  0.]], dtype=torch.float64)
    """
    if isinstance(rows, SlicedRows):
        return _squared_distances_sliced(rows)
    if rows.device.type != "cpu":
        return squared_distances_torch(rows)
    import numpy as np

    from sparsefed.kernels.distance_kernels import all_pairs, sweep_squares

    rows = rows.detach().contiguous()
    if len(rows) * rows.numel() > SMALL:
        fast = torch.from_numpy(all_pairs(sweep_squares, rows.numpy(), np.float32))
        if _trustworthy(fast, rows):
            return fast
    return torch.from_numpy(all_pairs(sweep_squares, rows.numpy(), np.float64))


def _squared_distances_sliced(rows: SlicedRows) -> Tensor:
    """Compute `squared_distances` from slices of the columns: only sums of n x n numbers are moved."""
    n, d = rows.shape
    if n * n * d > SMALL:
        fast = sum_over(rows, False)
        if _trustworthy(fast, rows):
            return fast
    return sum_over(rows, True)


def sum_over(rows: SlicedRows, double: bool) -> Tensor:
    """Return the sum of the slices' squared distances, in their order, float64 [n, n]."""
    total = torch.zeros(len(rows), len(rows), dtype=torch.float64)
    for part in rows.slices(partial(squares_of_slice, double=double)):
        total += part
    return total


def squares_of_slice(rows: Tensor, double: bool) -> Tensor:
    """Return the squared distances of the rows of one slice, float64 [n, n]."""
    import numpy as np

    from sparsefed.kernels.distance_kernels import pairs_of_slice, sweep_squares

    array = rows.detach().contiguous().numpy()
    return torch.from_numpy(pairs_of_slice(sweep_squares, array, np.float64 if double else np.float32))


def squared_distances_torch(rows: Tensor) -> Tensor:
    """Compute `squared_distances` in plain torch operations, float64 throughout, for every device."""
    total = torch.zeros(len(rows), len(rows), dtype=torch.float64, device=rows.device)
    for part in torch.split(rows.detach(), COLUMNS, dim=1):
        wide = part.double()
        total += torch.stack([(wide - row).square().sum(1) for row in wide])
    return total


def gram(rows: Tensor) -> Tensor:
    """Return <row_i, row_j> of float32 rows, float64 [n, n], with products and sums in float64.

    >>> gram(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    tensor([[ 5., 11.],
            [11., 25.]], dtype=torch.float64)
    """
    if rows.device.type != "cpu":
        return gram_torch(rows)
    import numpy as np

    from sparsefed.kernels.distance_kernels import all_pairs, sweep_products

    return torch.from_numpy(all_pairs(sweep_products, rows.detach().contiguous().numpy(), np.float64))


def gram_torch(rows: Tensor) -> Tensor:
    """Compute `gram` in plain torch operations, for every device."""
    total = torch.zeros(len(rows), len(rows), dtype=torch.float64, device=rows.device)
    for part in torch.split(rows.detach(), COLUMNS, dim=1):
        wide = part.double()
        total += wide @ wide.T
    return (total + total.T) / 2  # a matrix product need not round both halves alike


def _trustworthy(squares: Tensor, rows: Rows) -> bool:
    """Return whether no sum of float32 squares overflowed, and only equal rows have a distance of almost 0."""
    if not bool(squares.isfinite().all()):
        return False
    first = (squares <= rows.shape[1] * UNDERFLOW).to(torch.int8).argmax(1).tolist()  # at most i: the diagonal is 0
    near = [(i, j) for i, j in enumerate(first) if i != j]
    if isinstance(rows, SlicedRows):
        return not near or all(bool(part) for part in rows.slices(partial(equal_pairs, pairs=near)))
    return bool(equal_pairs(rows, near))


def equal_pairs(rows: Tensor, pairs: list[tuple[int, int]]) -> Tensor:
    """Return whether the rows of every pair are equal, as a tensor of one bool."""
    return torch.tensor(all(torch.equal(rows[i], rows[j]) for i, j in pairs))


def rehearse() -> None:
    """Call each kernel for pairs of rows once."""
    import numpy as np

    from sparsefed.kernels.distance_kernels import all_pairs, strike, sweep_squares

    rows = torch.ones(2, 2)
    all_pairs(sweep_squares, rows.numpy(), np.float32)
    squared_distances(rows)
    gram(rows)
    strike(0, np.ones(2, np.bool_), 1, np.array([[1], [0]]), np.zeros((2, 1)))
