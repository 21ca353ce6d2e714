"""LASA (Xu, Zhang and Hu 2025, Achieving Byzantine-Resilient Federated Learning via Layer-Adaptive Sparsified Model
Aggregation): sparsify each update, then select the clients to average layer by layer.

    u_i      <-  top_k(u_i) min(1, M / ||u_i||)                      k = d - floor(sparsity d), M the median norm
    m_i,l     =  ||u_i,l||                                           magnitude of the layer l
    p_i,l     =  (1 + sum_j sgn(u_i,l,j) / sum_j |sgn(u_i,l,j)|) / 2   its positive direction purity
    z(x_i)    =  |x_i - median(x)| / std(x)                          over the clients, std about their mean
    B_l       =  {i: z(m_i,l) <= lambda_n and z(p_i,l) <= lambda_s}, or all clients if that is empty
    u_l       =  mean of u_i,l over B_l

The clipping, the defaults and M as the lower of the middle two for an even n are those of the authors' code. There too,
what is averaged is what was sparsified.

*Departures.* Every coordinate competes in the top-k (ties by the lowest index): the authors' code spares tensors that
are not weight matrices or kernels, which the sizes of the layers do not tell, and drops the k-th itself. Its purity is
drawn towards 1/2 by a factor 1 - sparsity for everybody, which no z notices. Where all agree (a std of 0), its z is not
a number and the whole layer goes unfiltered; here all pass that one test, and the other still counts. A layer of which
nothing is left has purity 1/2. Who lies on the radius is in, where the code has him out; the differences are measured
up to 1e-9 of the largest value, so that rounding does not choose. Without sizes of layers, the model is one layer.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Annotated, Unpack

import torch
from torch import Tensor

from sparsefed.core.errors import ConfigError
from sparsefed.core.types import Block, Context, State
from sparsefed.defenses.combine import accepted, stack
from sparsefed.defenses.options import CommonKeywords
from sparsefed.defenses.pipeline import Combine, Flow, clip_factors, require
from sparsefed.defenses.rule import rule
from sparsefed.kernels.compilation import warm_up
from sparsefed.kernels.rows import row_norms, weighted_sum
from sparsefed.kernels.topk import rehearse, topk_mask

ROUNDING = 1e-9  # relative to the largest value: smaller differences count as none


@rule(
    paper="Xu et al. 2025, Achieving Byzantine-Resilient Federated Learning via Layer-Adaptive Sparsified Model "
    "Aggregation",
    needs=("all rows", "layers"),
)
def lasa(
    sparsity: Annotated[float, "the share of each update's coordinates, the smallest, that is set to 0"] = 0.3,
    lambda_n: Annotated[float, "how many standard deviations a layer's norm may lie from the median"] = 1.0,
    lambda_s: Annotated[float, "how many standard deviations a layer's share of positive signs may"] = 1.0,
    **_: Unpack[CommonKeywords],
) -> Combine:
    """LASA: sparsified updates; in each layer the mean of those whose norm and signs lie near the median."""
    require(0 <= sparsity < 1, f"sparsity is {sparsity}, but some coordinates must be left: choose 0 <= sparsity < 1")
    require(lambda_n > 0, f"lambda_n is {lambda_n}, but a radius is positive: choose lambda_n > 0 (the authors have 1)")
    require(lambda_s > 0, f"lambda_s is {lambda_s}, but a radius is positive: choose lambda_s > 0 (the authors have 1)")

    def init(d: int) -> State:  # noqa: ARG001
        warm_up(rehearse)
        return {}

    def step(state: State, blocks: Iterable[Block], context: Context) -> Flow:
        rows, senders, *_ = stack(blocks, context)
        sizes = _sizes(context, rows.shape[1])
        if not len(rows):
            return Flow(state, rows.new_zeros(rows.shape[1]), {"selected": 0.0})
        norms = row_norms(rows)
        factors = clip_factors(norms, float(norms.median()))
        kept = _largest(rows, sparsity)
        layers, selected = [], torch.zeros(len(rows), device=rows.device)  # in how many layers each client is
        for part, mask in zip(torch.split(rows, sizes, 1), torch.split(kept, sizes, 1), strict=True):
            layer = torch.where(mask, part, 0.0)  # the only copy of the values, one layer at a time
            chosen = _chosen(layer, factors, lambda_n, lambda_s)
            layers.append(weighted_sum(layer, factors * chosen / chosen.sum()))
            selected += chosen
        stats = {"selected": float(selected.sum()) / len(sizes)}  # averaged over the layers
        return Flow(state, torch.cat(layers), stats, accepted(senders, selected))

    return Combine(init, step)


def _sizes(context: Context, d: int) -> list[int]:
    sizes = [size for size in context.layers if size] or [d]
    if sum(sizes) != d:
        raise ConfigError(f"lasa: the layers add up to {sum(sizes)} coordinates, but the updates have {d}")
    return sizes


def _largest(rows: Tensor, sparsity: float) -> Tensor:
    """Return the coordinates that sparsification keeps of each row, bool [n, d]."""
    d = rows.shape[1]
    k = d - math.floor(sparsity * d)
    kept = torch.ones(rows.shape, dtype=torch.bool, device=rows.device)
    for i in range(len(rows) if k < d else 0):
        kept[i] = topk_mask(rows[i], k)
    return kept


def _chosen(layer: Tensor, factors: Tensor, lambda_n: float, lambda_s: float) -> Tensor:
    """Return which clients' layers are averaged, bool [n]."""
    # A factor of 0 (most updates are 0, and so is the median norm) leaves a layer without a direction.
    purity = torch.where(factors > 0, _purity(layer), 0.5)
    chosen = _near(row_norms(layer) * factors, lambda_n) & _near(purity, lambda_s)
    return chosen if bool(chosen.any()) else torch.ones_like(chosen)


def _purity(layer: Tensor) -> Tensor:
    positive, negative = (layer > 0).sum(1).double(), (layer < 0).sum(1).double()
    return (1 + (positive - negative) / (positive + negative).clamp(min=1)) / 2


def _near(values: Tensor, radius: float) -> Tensor:
    """Return where |x - median| <= radius std."""
    gap = (values - values.quantile(0.5)).abs()
    return gap <= radius * values.std(correction=0) + ROUNDING * values.abs().max()
