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

from sparsefed.engines.recurrent import StateProducts

GHOST_MARGIN = 0.55  # a ghost norm may cost this share of the direct contraction: one call per client is wasteful
SHIFT_COST = 700  # multiplications that take as long as shifting and adding one entry of a Gram matrix


class Group(NamedTuple):
    """Adjacent clients of equal size, which are computed in one call."""

    clients: slice
    examples: slice
    size: int

    @property
    def members(self) -> int:
        return int(self.clients.stop - self.clients.start)


class Call(NamedTuple):
    """One use of a layer in the batched pass."""

    layer: nn.Module
    a: Tensor  # input [M, ...]
    g: Tensor  # gradient of the summed client losses with respect to the output [M, ...]
    groups: tuple[Group, ...]

    @property
    def clients(self) -> int:
        return int(self.groups[-1].clients.stop)


def folded_call(call: Call) -> tuple[Call, bool]:
    """Return a call on examples that each had a batch of their own with these folded into one, and whether there were.

    [M, b, ...] becomes [M b, ...], in groups of clients that are b times as large. A layer may also have been given an
    example without a batch axis.
    """
    shape = getattr(call.layer, "normalized_shape", None)
    convolution = getattr(call.layer, "kernel_size", None)
    own = len(shape) if shape is not None else 1 + len(convolution) if convolution is not None else 1
    if call.g.dim() - 1 <= own:
        return call, False
    times = call.g.shape[1]
    groups = tuple(
        Group(q.clients, slice(q.examples.start * times, q.examples.stop * times), q.size * times) for q in call.groups
    )
    return Call(call.layer, call.a.flatten(0, 1), call.g.flatten(0, 1), groups), True


# --- sums over a client's examples ---------------------------------------------------------------------------------


def per_client_sum(values: Tensor, groups: tuple[Group, ...]) -> Tensor:
    """Sum over each client's examples: [M, ...] -> [m, ...], in float32."""
    shape = values.shape[1:]
    parts = [values[q.examples].reshape(q.members, q.size, *shape).sum(1, dtype=torch.float32) for q in groups]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def by_client(values: Tensor, group: Group) -> Tensor:
    """Group positions by client, within a group: [count * size, ..., features] -> [count, positions, features]."""
    part = values[group.examples]
    return part.reshape(group.members, -1, part.shape[-1])


def _batched(call: Call, contract: Callable[[Tensor, Tensor], Tensor], a: Tensor, g: Tensor) -> Tensor:
    parts = [contract(by_client(a, q), by_client(g, q)) for q in call.groups]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _outer(a: Tensor, g: Tensor) -> Tensor:
    return torch.bmm(g.transpose(1, 2), a)


def _gram_norm(a: Tensor, g: Tensor) -> Tensor:
    """Return the squared Frobenius norm of A^T G for each client, without forming it."""
    gram = torch.bmm(a, a.transpose(1, 2)).double() * torch.bmm(g, g.transpose(1, 2)).double()
    return gram.sum((1, 2)).clamp_(min=0)


# --- linear --------------------------------------------------------------------------------------------------------


def _linear_rows(call: Call) -> Tensor:
    return _batched(call, _outer, call.a, call.g)


def _linear_norms(call: Call) -> Tensor:
    return _batched(call, _gram_norm, call.a, call.g)


def _linear_total(call: Call, g: Tensor) -> Tensor:
    return g.reshape(-1, g.shape[-1]).t() @ call.a.reshape(-1, call.a.shape[-1])


def _linear_ghost(call: Call) -> bool:
    positions = call.groups[-1].size * math.prod(call.a.shape[1:-1])
    inputs, outputs = call.a.shape[-1], call.g.shape[-1]
    return positions * (inputs + outputs) < GHOST_MARGIN * inputs * outputs


# --- convolution ---------------------------------------------------------------------------------------------------

AnyConv = nn.Conv1d | nn.Conv2d | nn.Conv3d


def _padding(layer: AnyConv) -> list[int]:
    if isinstance(layer.padding, str):
        spans = [d * (k - 1) for d, k in zip(layer.dilation, layer.kernel_size, strict=True)]
        return [span // 2 if layer.padding == "same" else 0 for span in spans]
    return list(layer.padding)


def _conv_known(layer: AnyConv) -> bool:
    uneven = layer.padding == "same" and any(
        d * (k - 1) % 2 for d, k in zip(layer.dilation, layer.kernel_size, strict=True)
    )
    return layer.padding_mode == "zeros" and not uneven


def _conv_weight_gradient(layer: AnyConv, a: Tensor, g: Tensor) -> Tensor:
    zeros = [0] * len(layer.kernel_size)
    stride, dilation = list(layer.stride), list(layer.dilation)
    mask = [False, True, False]
    gradients = torch.ops.aten.convolution_backward(
        g, a, layer.weight, None, stride, _padding(layer), dilation, False, zeros, layer.groups, mask
    )
    return gradients[1]  # type: ignore[no-any-return]


def _conv_rows(call: Call) -> Tensor:
    layer: AnyConv = call.layer  # type: ignore[assignment]
    if call.a.dim() != 4:
        return torch.stack(_one_by_one(call))
    if call.a.dtype == torch.bfloat16 and layer.groups == 1:  # calls cost more here: copy the patches if they are few
        if layer.in_channels <= 4:
            return _shifted_rows(call)
        if _positions(call) <= 320:
            return _unfolded_rows(call)
    return torch.stack([row.permute(0, 2, 3, 1) for row in _one_by_one(call)])  # as channels-last memory has it


def _one_by_one(call: Call) -> list[Tensor]:
    sizes = [q.size for q in call.groups for _ in range(q.members)]
    parts = zip(torch.split(call.a, sizes), torch.split(call.g, sizes), strict=True)
    return [_conv_weight_gradient(call.layer, a, g) for a, g in parts]  # type: ignore[arg-type]


def _positions(call: Call) -> int:
    return call.groups[-1].size * math.prod(call.g.shape[2:])


def _unfolded_rows(call: Call) -> Tensor:
    """Contract the inputs that each output position sees with the output gradients."""
    layer: nn.Conv2d = call.layer  # type: ignore[assignment]
    top, left = _padding(layer)
    padded = F.pad(call.a.permute(0, 2, 3, 1), (0, 0, left, left, top, top))
    (examples, height, width), channels = call.g.shape[:1] + call.g.shape[2:], call.a.shape[1]
    along, down, across, one = padded.stride()
    (down_step, across_step), (down_hole, across_hole) = layer.stride, layer.dilation
    windows = padded.as_strided(
        (examples, height, width, *layer.kernel_size, channels),
        (along, down * down_step, across * across_step, down * down_hole, across * across_hole, one),
    )
    rows = _batched(call, _outer, windows.flatten(3), call.g.permute(0, 2, 3, 1))
    return rows.view(len(rows), layer.out_channels, *layer.kernel_size, channels)


def _shifted_rows(call: Call) -> Tensor:
    """Compute `_unfolded_rows` for few channels, with one shifted copy of the image for each kernel offset."""
    parts = [_shifted_group_rows(call, q) for q in call.groups]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _shifted_group_rows(call: Call, q: Group) -> Tensor:
    layer: nn.Conv2d = call.layer  # type: ignore[assignment]
    (top, left), channels, out_grid = _padding(layer), call.a.shape[1], call.g.shape[2:]
    padded = F.pad(call.a[q.examples].contiguous(), (left, left, top, top))
    padded = padded.view(q.members, q.size, *padded.shape[1:]).transpose(1, 2)
    patches = padded.new_empty(q.members, *layer.kernel_size, channels, q.size, *out_grid)
    for i in range(layer.kernel_size[0]):
        for j in range(layer.kernel_size[1]):
            rows = _steps(i * layer.dilation[0], layer.stride[0], out_grid[0])
            columns = _steps(j * layer.dilation[1], layer.stride[1], out_grid[1])
            patches[:, i, j] = padded[..., rows, columns]
    g = by_client(call.g.permute(0, 2, 3, 1), q)
    gradients = torch.bmm(patches.flatten(4).flatten(1, 3), g)  # [members, kh * kw * C, O]
    return gradients.transpose(1, 2).reshape(q.members, layer.out_channels, *layer.kernel_size, channels)


def _conv_norms(call: Call) -> Tensor:
    """Compute ghost norms without patches.

    <patch p, patch q> is the sum over kernel offsets o of <a[p + o], a[q + o]>, so one Gram matrix of the pixels,
    shifted and added up, is the Gram matrix of the patches.
    """
    parts = [_conv_group_norms(call, q) for q in call.groups]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _conv_group_norms(call: Call, q: Group) -> Tensor:
    layer: nn.Conv2d = call.layer  # type: ignore[assignment]
    (height, width), (out_height, out_width) = call.a.shape[2:], call.g.shape[2:]
    top, left = _padding(layer)
    a, g = by_client(call.a.permute(0, 2, 3, 1), q), by_client(call.g.permute(0, 2, 3, 1), q)
    pixels = _clients_last(torch.bmm(a, a.transpose(1, 2))).view(
        q.size, height, width, q.size, height, width, q.members
    )
    pixels = F.pad(pixels, (0, 0, left, left, top, top, 0, 0, left, left, top, top))
    gram = pixels.new_zeros(q.size, out_height, out_width, q.size, out_height, out_width, q.members)
    for i in range(layer.kernel_size[0]):
        for j in range(layer.kernel_size[1]):
            rows = _steps(i * layer.dilation[0], layer.stride[0], out_height)
            columns = _steps(j * layer.dilation[1], layer.stride[1], out_width)
            gram += pixels[:, rows, columns, :, rows, columns]
    gram *= _clients_last(torch.bmm(g, g.transpose(1, 2))).view_as(gram)
    return gram.flatten(0, -2).sum(0, dtype=torch.float64).clamp_(min=0)


def _clients_last(grams: Tensor) -> Tensor:
    """Reorder [count, T, T] to float32 [T, T, count]: long inner loops for images of any size."""
    return grams.permute(1, 2, 0).float().contiguous()


def _steps(first: int, step: int, count: int) -> slice:
    return slice(first, first + step * (count - 1) + 1, step)


def _conv_total(call: Call, g: Tensor) -> Tensor:
    return _conv_weight_gradient(call.layer, call.a, g)  # type: ignore[arg-type]


def _conv_ghost(call: Call) -> bool:
    layer: AnyConv = call.layer  # type: ignore[assignment]
    if call.a.dim() != 4 or layer.groups != 1:
        return False
    inputs, outputs = layer.weight[0].numel(), layer.out_channels
    return _positions(call) * (layer.in_channels + outputs + SHIFT_COST) < GHOST_MARGIN * inputs * outputs


def _conv_flat(rows: Tensor) -> Tensor:
    """Convert rows in channels-last order back to the parameter's own order."""
    return rows.movedim(-1, -3)


def _conv_packed(parameter: Tensor) -> Tensor:
    return parameter.permute(0, 2, 3, 1)


# --- transposed convolution ----------------------------------------------------------------------------------------

AnyTransposed = nn.ConvTranspose1d | nn.ConvTranspose2d | nn.ConvTranspose3d


def _transposed_rows(call: Call) -> Tensor:
    """Return the weight gradients of a transposed convolution, one client after the other."""
    layer: AnyTransposed = call.layer  # type: ignore[assignment]
    stride, padding, dilation = list(layer.stride), list(layer.padding), list(layer.dilation)
    extra = _output_padding(layer, call)
    sizes = [q.size for q in call.groups for _ in range(q.members)]
    parts = zip(torch.split(call.a, sizes), torch.split(call.g, sizes), strict=True)
    mask = [False, True, False]
    backward = torch.ops.aten.convolution_backward
    return torch.stack(
        [
            backward(g, a, layer.weight, None, stride, padding, dilation, True, extra, layer.groups, mask)[1]
            for a, g in parts
        ]
    )


def _output_padding(layer: AnyTransposed, call: Call) -> list[int]:
    """Return the output padding of this call, which its argument `output_size` may have changed."""
    sizes: list[tuple[int, ...]] = [
        call.a.shape[2:],
        call.g.shape[2:],
        layer.stride,
        layer.padding,  # type: ignore[list-item]
        layer.dilation,
        layer.kernel_size,
    ]
    return [out - ((size - 1) * s - 2 * p + d * (k - 1) + 1) for size, out, s, p, d, k in zip(*sizes, strict=True)]


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

    return _batched(call, norm, call.a[..., None], _embedding_g(call, call.g).float())


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
_CONV = Layer(_conv_rows, None, None, lambda call: False, _conv_known)  # noqa: ARG005
_CONV2D = Layer(_conv_rows, _conv_norms, _conv_total, _conv_ghost, _conv_known, _conv_flat, _conv_packed)
_TRANSPOSED = Layer(_transposed_rows)

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
