"""A recurrent language model: predicts each token from those before it in the sequence.

Hochreiter and Schmidhuber 1997; two layers as in LEAF's model for Reddit. With a vocabulary of V, an embedding of E and
a state of H numbers:

    V E  +  4 H (E + H + 2)  +  (layers - 1) 4 H (2 H + 2)  +  the scores

where the scores take V H + V numbers, or tied to the embedding (Press and Wolf 2017) V, and E (H + 1) more if H is
not E. Ten thousand words and the usual widths: 889 680 parameters, of which the embedding has 640 000.
"""

from __future__ import annotations

from typing import Annotated

from torch import Tensor, nn

from sparsefed.models.info import model

# Initial embeddings are uniform in +-SCALE, as in LEAF, so that tied scores start near 0; on input they are scaled
# back to +-1, because two layers pass on almost nothing of small numbers, and plain SGD then learns only frequencies.
SCALE = 0.1


class _Lstm(nn.Module):
    def __init__(self, classes: int, width: int, hidden: int, layers: int, tied: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(classes, width)
        nn.init.uniform_(self.embedding.weight, -SCALE, SCALE)
        self.recurrent = nn.LSTM(width, hidden, layers, batch_first=True)
        self.narrow = nn.Linear(hidden, width) if tied and hidden != width else nn.Identity()
        self.scores = nn.Linear(width if tied else hidden, classes)
        nn.init.zeros_(self.scores.bias)
        if tied:
            self.scores.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        state, _ = self.recurrent(self.embedding(tokens) / SCALE)  # [M, T, hidden]
        scores: Tensor = self.scores(self.narrow(state))
        return scores


@model((10,), 10_000, "Reddit")
def lstm(
    shape: tuple[int, ...],
    classes: int,
    *,
    width: Annotated[int, "of the embedding"] = 64,
    hidden: Annotated[int, "numbers in the state of a layer"] = 128,
    layers: Annotated[int, "of recurrence"] = 2,
    tied: Annotated[bool, "scores words by the embedding's own weights"] = True,
) -> nn.Module:
    """Build two recurrent layers over an embedding, for text; every sequence starts from a state of 0."""
    if len(shape) != 1:
        raise ValueError(f"it reads sequences of tokens, but the examples have the shape {list(shape)}")
    return _Lstm(classes, width, hidden, layers, tied)
