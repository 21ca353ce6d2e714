"""The honest updates of a round, as attackers with that knowledge see them, and statistics computed from them."""

from __future__ import annotations

import torch
from torch import Tensor

from sparsefed.attacks.base import granted
from sparsefed.core.threat import Knowledge
from sparsefed.kernels.distances import COLUMNS
from sparsefed.kernels.rows import row_norms


def received(knowledge: Knowledge) -> Tensor:
    """Return the honest updates as the server will see them [m, d]: without the unusable ones, and clipped."""
    honest = granted(knowledge.honest, "honest updates")
    norms = row_norms(honest)
    usable = torch.isfinite(norms)
    if not bool(usable.any()):
        return honest.new_zeros(1, honest.shape[1])
    if not bool(usable.all()):
        honest, norms = honest[usable], norms[usable]
    if not bool((norms > knowledge.budget).any()):
        return honest
    factors = torch.where(norms > knowledge.budget, knowledge.budget / norms, 1.0)
    return honest * factors.to(honest.dtype)[:, None]


def standard_deviations(rows: Tensor) -> Tensor:
    """Return each column's standard deviation [d], dividing by the number of rows; tiled to stay in the cache."""
    parts = torch.split(rows, COLUMNS, dim=1)
    return torch.cat([(part - part.mean(0)).square_().mean(0).sqrt_() for part in parts])


def centred_gram(rows: Tensor, beside: Tensor | None = None) -> Tensor:
    """Return the inner products, float64 [m + k, m + k], of m rows less their mean and of k vectors as they are."""
    k = 0 if beside is None else len(beside)
    total = torch.zeros(len(rows) + k, len(rows) + k, dtype=torch.float64, device=rows.device)
    for start in range(0, rows.shape[1], COLUMNS):  # a float64 copy of everything would not fit
        wide = rows[:, start : start + COLUMNS].double()
        wide = wide - wide.mean(0)
        if beside is not None:
            wide = torch.cat([wide, beside[:, start : start + COLUMNS].double()])
        total += wide @ wide.T
    return total
