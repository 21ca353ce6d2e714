"""FLTrust: updates are trusted as far as they point where the server's own update points.

FLTrust: Byzantine-robust Federated Learning via Trust Bootstrapping (Cao, Fang, Liu, Gong 2021, Algorithm 2). With g_0
the update that the server computes on a small clean root set, and g_i that of device i,

    TS_i  =  ReLU(cos(g_i, g_0))
    g     =  (1 / sum_i TS_i)  sum_i  TS_i  (||g_0|| / ||g_i||)  g_i

so that a device can earn no more length than the root's, and no weight at all by pointing the other way.

*Departures.* None of substance. The paper leaves open what happens where a cosine or the mean is not defined: an update
of zero (or shorter than 1e-30 of the root's) earns no trust; where nobody earns any, or the root update is zero or not
finite, the result is zero. Cosines are good to about 1e-6.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Unpack

import numpy as np
import torch
from torch import Tensor

from sparsefed.core.errors import ConfigError
from sparsefed.core.types import Block, Context, State
from sparsefed.defenses.combine import accepted
from sparsefed.defenses.options import CommonKeywords
from sparsefed.defenses.pipeline import Combine, Flow, no_state, no_updates, require
from sparsefed.defenses.rule import rule
from sparsefed.kernels.rows import row_moments, row_norms, weighted_sum

SHORTEST = 1e-30  # relative to the root's norm: a shorter update cannot be stretched to it within float32


@rule(
    paper="Cao et al. 2021, FLTrust: Byzantine-robust Federated Learning via Trust Bootstrapping",
    needs=("rows", "root"),
)
def fltrust(**_: Unpack[CommonKeywords]) -> Combine:
    """The mean weighted by the cosine with the server's own update, every update rescaled to the length of that one."""

    def step(state: State, blocks: Iterable[Block], context: Context) -> Flow:
        root = _root(context)
        length = float(row_norms(root[None]))
        trusts: list[float] = []
        senders: list[int] = []
        total: Tensor | None = None
        for block in blocks:
            rows, norms = block.rows(), block.norms()
            trust = _trust(rows, norms, root, length)
            # An update without trust may have norm 0, which cannot be divided by.
            weights = torch.where(trust > 0, trust * length / norms, 0.0)
            part = weighted_sum(rows, weights)
            total = part if total is None else total.add_(part)
            trusts += trust.tolist()
            senders += block.senders.tolist()
            del block, rows, part  # free before the next block is computed
        if total is None:
            raise no_updates(context)
        trusted, n = math.fsum(trusts), max(1, len(trusts))
        vector = total / trusted if trusted > 0 else total
        stats = {"trust": trusted / n, "trusted": float(sum(trust > 0 for trust in trusts))}
        return Flow(state, vector, stats, accepted(np.array(senders, np.int64), torch.tensor(trusts)))

    return Combine(no_state, step)


def _root(context: Context) -> Tensor:
    if context.root is None:
        raise ConfigError(
            "fltrust needs an update of the server's own: give aggregate(..., root=...) one, "
            "or set root, a number of examples that the server holds, under [data] in a config"
        )
    return context.root


def _trust(rows: Tensor, norms: Tensor, root: Tensor, length: float) -> Tensor:
    """Return the trust ReLU(cos(row, root)) of each row, float64 [m]."""
    d = rows.shape[1]
    require(len(root) == d, f"root has {len(root)} coordinates, but the updates have {d}: they must be of one model")
    if not 0 < length < math.inf:
        return torch.zeros_like(norms)
    # Scaling by a power of two is exact: orthogonal rows stay orthogonal, and no product leaves float32.
    exponent = math.frexp(length)[1]
    dots = row_moments(rows, torch.ldexp(root.to(rows.device), torch.tensor(-exponent)))[1]
    cosines = dots / (norms * math.ldexp(length, -exponent))
    return torch.where(norms > SHORTEST * length, cosines.clamp(0, 1), 0.0)
