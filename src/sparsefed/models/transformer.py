"""A small causal transformer whose scores are tied to the embedding.

Vaswani et al. 2017; LayerNorm before each part, as in Xiong et al. 2020. With a vocabulary of V, sequences of T tokens
and a width of W numbers:

    V W  +  T W  +  layers (12 W^2 + 13 W)  +  2 W  +  V

Ten thousand words, sequences of 10 and the usual widths: 750 736 parameters. All its weights are in layers that the
fused engine supports, each called with a row for every example.
"""

from __future__ import annotations

from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sparsefed.models.info import model

SCALE = 0.02  # standard deviation of the initial embeddings, as in GPT-2: tied scores then start near 0


class _Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mixed, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:  # [M, T, width]
        parts = self.mixed(self.before_attention(x)).unflatten(2, (3, self.heads, -1))
        query, key, value = parts.permute(2, 0, 3, 1, 4)  # [M, heads, T, width / heads] each
        seen = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        out: Tensor = x + self.mlp(self.before_mlp(x))
        return out


class _Transformer(nn.Module):
    def __init__(self, length: int, classes: int, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.embedding, self.places = nn.Embedding(classes, width), nn.Embedding(length, width)
        for table in (self.embedding, self.places):
            nn.init.normal_(table.weight, std=SCALE)
        self.blocks = nn.Sequential(*(_Block(width, heads) for _ in range(layers)))
        self.last = nn.LayerNorm(width)
        self.scores = nn.Linear(width, classes)
        nn.init.zeros_(self.scores.bias)
        self.scores.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        places = places.expand(tokens.shape)  # a row for each example, for the fused engine
        scores: Tensor = self.scores(self.last(self.blocks(self.embedding(tokens) + self.places(places))))
        return scores


@model((10,), 10_000, "Reddit")
def transformer(
    shape: tuple[int, ...],
    classes: int,
    *,
    width: Annotated[int, "numbers a token"] = 64,
    heads: Annotated[int, "of attention; they share the width out"] = 4,
    layers: Annotated[int, "blocks of attention and perceptron"] = 2,
) -> nn.Module:
    """Build a small causal transformer with LayerNorm before each part, for text."""
    if len(shape) != 1:
        raise ValueError(f"it reads sequences of tokens, but the examples have the shape {list(shape)}")
    if heads < 1 or width % heads:
        raise ValueError(f"a width of {width} cannot be shared out among {heads} heads; use a multiple")
    return _Transformer(shape[0], classes, width, heads, layers)
