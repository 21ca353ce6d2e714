"""Pure mathematics on flat vectors: blocks of rows, top-k, the memory step. Knows no rule, no round, no model."""

from __future__ import annotations

from sparsefed.kernels.blocks import RowsBlock, ScaledBlock, as_blocks
from sparsefed.kernels.compilation import warm_up
from sparsefed.kernels.error_feedback import Accumulated, accumulate_topk
from sparsefed.kernels.topk import topk_indices, topk_mask

__all__ = [
    "Accumulated",
    "RowsBlock",
    "ScaledBlock",
    "accumulate_topk",
    "as_blocks",
    "topk_indices",
    "topk_mask",
    "warm_up",
]
