"""Per-client weight gradients, layer by layer, from what one batched pass leaves behind.

For a layer that is linear in its weights, a client's gradient is a contraction of its own rows of the saved inputs `a`
with its own rows of the output gradients `g`. There are two ways to obtain it:

- *direct*: do the contraction for each client, which yields the rows [m, ...].
- *ghost*: leave the rows unwritten. The squared norm of `A^T G` is the sum over pairs of positions of
  `(A A^T) * (G G^T)` (Goodfellow 2015; Bu et al. 2022 for convolutions), and any weighted sum of the clients' gradients
  is ONE batched contraction with the rows of `g` scaled. Cheaper where a client has few positions and the layer many
  weights.

Each supported layer type has one entry in `LAYERS`; for any other type the engine does not guess, but falls back to the
loop.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from sparsefed.engines.calls import GHOST_MARGIN, Call, batched, by_client, gram_norm, outer, per_client_sum
from sparsefed.engines.convolutions import (
    conv_flat,
    conv_ghost,
    conv_known,
    conv_norms,
    conv_packed,
    conv_rows,
    conv_total,
    transposed_rows,
)
from sparsefed.engines.recurrent import StateProducts

# --- linear --------------------------------------------------------------------------------------------------------


def _linear_rows(call: Call) -> Tensor:
    return batched(call, outer, call.a, call.g)


def _linear_norms(call: Call) -> Tensor:
    return batched(call, gram_norm, call.a, call.g)


def _linear_total(call: Call, g: Tensor) -> Tensor:
    return g.reshape(-1, g.shape[-1]).t() @ call.a.reshape(-1, call.a.shape[-1])


def _linear_ghost(call: Call) -> bool:
    positions = call.groups[-1].size * math.prod(call.a.shape[1:-1])
    inputs, outputs = call.a.shape[-1], call.g.shape[-1]
    return positions * (inputs + outputs) < GHOST_MARGIN * inputs * outputs


# --- embedding -----------------------------------------------------------------------------------------------------


def _embedding_known(layer: nn.Embedding) -> bool:
    return layer.max_norm is None and not layer.scale_grad_by_freq and not layer.sparse


def _embedding_g(call: Call, g: Tensor) -> Tensor:
    layer: nn.Embedding = call.layer  # type: ignore[assignment]
    if layer.padding_idx is None:
        return g
    return g.masked_fill((call.a == layer.padding_idx).unsqueeze(-1), 0)


def _embedding_rows(call: Call) -> Tensor:
    layer: nn.Embedding = call.layer  # type: ignore[assignment]
    g = _embedding_g(call, call.g).float()
    rows = g.new_zeros(call.clients * layer.num_embeddings, layer.embedding_dim)
    for q in call.groups:
        tokens = by_client(call.a[..., None], q)[..., 0]
        clients = torch.arange(q.clients.start, q.clients.stop, device=g.device)
        first = clients.unsqueeze(1) * layer.num_embeddings
        rows.index_add_(0, (tokens + first).flatten(), by_client(g, q).flatten(0, 1))
    return rows.view(call.clients, layer.num_embeddings, layer.embedding_dim)


def _embedding_norms(call: Call) -> Tensor:
    def norm(tokens: Tensor, g: Tensor) -> Tensor:
        same = tokens == tokens.transpose(1, 2)
        return (torch.bmm(g, g.transpose(1, 2)).double() * same).sum((1, 2)).clamp_(min=0)

    return batched(call, norm, call.a[..., None], _embedding_g(call, call.g).float())


def _embedding_total(call: Call, g: Tensor) -> Tensor:
    layer: nn.Embedding = call.layer  # type: ignore[assignment]
    total = torch.zeros(layer.num_embeddings, layer.embedding_dim, device=g.device)
    return total.index_add_(0, call.a.flatten(), _embedding_g(call, g).float().flatten(0, -2))


def _embedding_ghost(call: Call) -> bool:
    layer: nn.Embedding = call.layer  # type: ignore[assignment]
    positions = call.groups[-1].size * math.prod(call.a.shape[1:])
    return bool(positions**2 < layer.num_embeddings)


# --- normalisation layers and biases: always direct, their rows are small -------------------------------------------


def _group_norm_rows(call: Call) -> Tensor:
    layer: nn.GroupNorm = call.layer  # type: ignore[assignment]
    scaled = call.g * F.group_norm(call.a, layer.num_groups, eps=layer.eps)
    channels = scaled.flatten(2).sum(2, dtype=torch.float32) if scaled.dim() > 2 else scaled  # [M, C]
    return per_client_sum(channels, call.groups)


def _layer_norm_rows(call: Call) -> Tensor:
    layer: nn.LayerNorm = call.layer  # type: ignore[assignment]
    scaled = call.g * F.layer_norm(call.a, list(layer.normalized_shape), eps=layer.eps)
    return per_client_sum(_sum_to(scaled, layer), call.groups)


def _rms_norm_rows(call: Call) -> Tensor:
    layer: nn.RMSNorm = call.layer  # type: ignore[assignment]
    scaled = call.g * F.rms_norm(call.a, list(layer.normalized_shape), eps=layer.eps)
    return per_client_sum(_sum_to(scaled, layer), call.groups)


def _prelu_rows(call: Call) -> Tensor:
    """Sum g * min(a, 0) over a client's positions, for all channels together if they share one slope."""
    layer: nn.PReLU = call.layer  # type: ignore[assignment]
    scaled = call.g * call.a.clamp(max=0)
    if layer.num_parameters == 1:
        return per_client_sum(scaled.flatten(1).sum(1, keepdim=True, dtype=torch.float32), call.groups)
    return per_client_sum(_sum_to(scaled, layer), call.groups)


def _sum_to(values: Tensor, layer: nn.Module) -> Tensor:
    """Sum [M, ..., bias shape] over the positions in between."""
    if isinstance(layer, nn.LayerNorm | nn.RMSNorm):
        middle = range(1, values.dim() - len(layer.normalized_shape))
    elif isinstance(layer, nn.Linear):
        middle = range(1, values.dim() - 1)
    else:  # channels come second
        middle = range(2, values.dim())
    return values.sum(tuple(middle), dtype=torch.float32) if len(middle) else values


def bias_rows(call: Call) -> Tensor:
    return per_client_sum(_sum_to(call.g, call.layer), call.groups)


# --- the table -----------------------------------------------------------------------------------------------------


class Layer(NamedTuple):
    """The per-client differentiation of one layer type's `weight`; a `bias` is handled alike for all types."""

    rows: Callable[[Call], Tensor]
    norms: Callable[[Call], Tensor] | None = None  # squared, float64 [m]
    total: Callable[[Call, Tensor], Tensor] | None = None  # the batched contraction with given output gradients
    ghost: Callable[[Call], bool] = lambda call: False  # noqa: ARG005
    known: Callable[..., bool] = lambda layer: True  # noqa: ARG005
    flat: Callable[[Tensor], Tensor] = lambda rows: rows  # from the layout of `rows` to that of the parameter
    packed: Callable[[Tensor], Tensor] = lambda parameter: parameter  # and back
    reaching: Callable[[Call], Tensor] = lambda call: call.g  # the output gradients that reach the weight


_LINEAR = Layer(_linear_rows, _linear_norms, _linear_total, _linear_ghost)
_CONV = Layer(conv_rows, None, None, lambda call: False, conv_known)  # noqa: ARG005
_CONV2D = Layer(conv_rows, conv_norms, conv_total, conv_ghost, conv_known, conv_flat, conv_packed)
_TRANSPOSED = Layer(transposed_rows)

LAYERS: dict[type[nn.Module], Layer] = {
    nn.Linear: _LINEAR,
    NonDynamicallyQuantizableLinear: _LINEAR,  # the last projection of attention
    StateProducts: Layer(_linear_rows),  # direct: its output is not the product that a ghost would need
    nn.Conv1d: _CONV,
    nn.Conv2d: _CONV2D,
    nn.Conv3d: _CONV,
    nn.Embedding: Layer(
        _embedding_rows,
        _embedding_norms,
        _embedding_total,
        _embedding_ghost,
        _embedding_known,
        reaching=lambda call: _embedding_g(call, call.g),
    ),
    nn.GroupNorm: Layer(_group_norm_rows),
    nn.LayerNorm: Layer(_layer_norm_rows),
    nn.RMSNorm: Layer(_rms_norm_rows),
    nn.PReLU: Layer(_prelu_rows),
    nn.ConvTranspose1d: _TRANSPOSED,
    nn.ConvTranspose2d: _TRANSPOSED,
    nn.ConvTranspose3d: _TRANSPOSED,
}
