"""`nn.MultiheadAttention` written with linear layers, so that the fused engine's hooks see its projections.

The module itself multiplies by its parameters in one call that no hook can see. `open_attention` gives a private copy a
forward pass of the same mathematics, with a linear layer for every projection; their weights are those of the module,
or views of them, so that loading a model into the copy loads them too.
"""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sparsefed.core.errors import ConfigError
from sparsefed.core.task import Slot

PROJECTIONS = ("query", "key", "value")


def attention_known(layer: nn.MultiheadAttention) -> bool:
    """Return whether `open_attention` knows all options of this layer."""
    return layer.bias_k is None and layer.bias_v is None and not layer.add_zero_attn


def open_attention(module: nn.Module, slots: dict[int, Slot]) -> dict[int, Slot]:
    """Rewrite the attention layers of a private copy, and return all slots, by the id of their parameter."""
    found = dict(slots)
    for layer in list(module.modules()):
        if isinstance(layer, nn.MultiheadAttention) and attention_known(layer):
            found |= _open(layer, slots)
    return found


def _open(layer: nn.MultiheadAttention, slots: dict[int, Slot]) -> dict[int, Slot]:
    parts: dict[int, Slot] = {}
    weights = [layer.q_proj_weight, layer.k_proj_weight, layer.v_proj_weight]
    if layer._qkv_same_embed_dim:
        layer.add_module("packed", _linear(layer.in_proj_weight, layer.in_proj_bias))
        weights = _thirds(layer.in_proj_weight, slots, parts)
    biases = _thirds(layer.in_proj_bias, slots, parts) if layer.in_proj_bias is not None else [None] * 3
    for name, weight, bias in zip(PROJECTIONS, weights, biases, strict=True):
        layer.add_module(name, _linear(weight, bias))
    layer.forward = partial(_attend, layer)  # type: ignore[method-assign]
    return parts


def _linear(weight: nn.Parameter, bias: nn.Parameter | None) -> nn.Linear:
    with torch.device("meta"):
        linear = nn.Linear(weight.shape[1], weight.shape[0], bias is not None)
    linear.weight = weight
    if bias is not None:
        linear.bias = bias
    return linear


def _thirds(parameter: nn.Parameter, slots: dict[int, Slot], parts: dict[int, Slot]) -> list[nn.Parameter]:
    """Return the three parts of a packed parameter, as views, and add their slots to `parts` if it is trained."""
    views = [nn.Parameter(view, requires_grad=False) for view in parameter.detach().chunk(3)]
    whole = slots.get(id(parameter))
    for i, view in enumerate(views):
        if whole is not None:
            parts[id(view)] = Slot(f"{whole.name}[{i}]", view.shape, whole.start + i * view.numel())
    return views


def _attend(
    layer: nn.MultiheadAttention,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,  # noqa: ARG001 - a hint: the mask is given too
) -> tuple[Tensor, Tensor | None]:
    """Compute what the layer's own forward pass does, for inputs with a batch axis."""
    if query.dim() != 3:
        raise ConfigError("attention without a batch axis is not computed in one batched pass")
    q, k, v = (_heads(part, layer.num_heads) for part in _projected(layer, query, key, value))
    mask = _mask(attn_mask, key_padding_mask, q)
    dropout = layer.dropout if layer.training else 0.0
    if need_weights:
        scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
        weights = F.dropout(torch.softmax(scores if mask is None else scores + mask, -1), dropout)
        seen = weights @ v
    else:
        weights, seen = None, F.scaled_dot_product_attention(q, k, v, mask, dropout)
    output = layer.out_proj(seen.transpose(1, 2).flatten(2))
    output = output if layer.batch_first else output.transpose(0, 1)
    return output, weights.mean(1) if weights is not None and average_attn_weights else weights


def _projected(layer: nn.MultiheadAttention, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
    """Return queries, keys and values [batch, positions, width]: of one input by one multiplication."""
    inputs = [part if layer.batch_first else part.transpose(0, 1) for part in (query, key, value)]
    if query is key and key is value and layer._qkv_same_embed_dim:
        packed: Tensor = layer.get_submodule("packed")(inputs[0])
        return packed.chunk(3, -1)
    return tuple(getattr(layer, name)(part) for name, part in zip(PROJECTIONS, inputs, strict=True))


def _heads(part: Tensor, heads: int) -> Tensor:
    """Reorder [batch, positions, width] to [batch, heads, positions, width / heads]."""
    return part.view(*part.shape[:-1], heads, -1).transpose(1, 2)


def _mask(positions: Tensor | None, padding: Tensor | None, q: Tensor) -> Tensor | None:
    """Return both masks as one that is added to the scores [batch, heads, positions, positions]."""
    if positions is not None and positions.dim() == 3:  # one for each example and head
        positions = positions.view(*q.shape[:2], *positions.shape[1:])
    given = [_added(positions, q), _added(None if padding is None else padding[:, None, None, :], q)]
    both = [mask for mask in given if mask is not None]
    return both[0] + both[1] if len(both) == 2 else both[0] if both else None


def _added(mask: Tensor | None, q: Tensor) -> Tensor | None:
    if mask is None or mask.is_floating_point():
        return mask
    return torch.where(mask, -torch.inf, 0.0).to(q.dtype)
