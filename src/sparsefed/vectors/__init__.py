"""Pure mathematics on flat vectors: blocks of rows, top-k, the memory step. Knows no rule, no round, no model."""

from __future__ import annotations

from sparsefed.vectors.blocks import RowsBlock, ScaledBlock, as_blocks
from sparsefed.vectors.memory import Accumulated, accumulate_topk
from sparsefed.vectors.topk import topk_indices, topk_mask
from sparsefed.vectors.warm import warm_up

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
