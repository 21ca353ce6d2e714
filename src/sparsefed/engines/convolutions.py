"""Per-client weight gradients of convolutions and transposed convolutions.

Directly, by one call for each client or from copied patches; or as norms alone, from Gram matrices (`layers`).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sparsefed.engines.calls import GHOST_MARGIN, Call, Group, by_client, outer

PATCH_BYTES = 1 << 26  # patches of inputs that are copied at a time
PATCH_CHANNELS = 16  # from so many input channels on, float32 patches are copied: see FLOAT32_PATCHES
# On processors whose vectors have 256 bits, one product of copied patches beats a call for each client in float32 too;
# where they have 512, calls are faster (docs/benchmarks.md).
PATCH_MARGIN = 0.15  # what GHOST_MARGIN is for convolutions whose patches are copied
FLOAT32_PATCHES = torch.backends.cpu.get_cpu_capability() == "AVX2"
SHIFT_COST = 700  # multiplications that take as long as shifting and adding one entry of a Gram matrix

AnyConv = nn.Conv1d | nn.Conv2d | nn.Conv3d


def _padding(layer: AnyConv) -> list[int]:
    if isinstance(layer.padding, str):
        spans = [d * (k - 1) for d, k in zip(layer.dilation, layer.kernel_size, strict=True)]
        return [span // 2 if layer.padding == "same" else 0 for span in spans]
    return list(layer.padding)


def conv_known(layer: AnyConv) -> bool:
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


def conv_rows(call: Call) -> Tensor:
    layer: AnyConv = call.layer  # type: ignore[assignment]
    if call.a.dim() != 4:
        return torch.stack(_one_by_one(call))
    if layer.groups == 1 and (call.a.dtype == torch.bfloat16 or FLOAT32_PATCHES):
        if layer.in_channels <= 4:
            return _in_pieces(call, _shifted_rows)
        if _patches_pay(call):
            return _in_pieces(call, _unfolded_rows)
    return torch.stack([row.permute(0, 2, 3, 1) for row in _one_by_one(call)])  # as channels-last memory has it


def _patches_pay(call: Call) -> bool:
    """Return whether copying the patches costs less than one call for each client."""
    if call.a.dtype == torch.bfloat16:
        return _positions(call) <= 320
    return call.a.shape[1] >= PATCH_CHANNELS and call.a.is_contiguous(memory_format=torch.channels_last)


def _in_pieces(call: Call, rows_of: Callable[[Call, Group], Tensor]) -> Tensor:
    """Compute the rows of a few clients at a time, so that their patches take at most PATCH_BYTES."""
    layer: nn.Conv2d = call.layer  # type: ignore[assignment]
    position = layer.weight[0].numel() * call.a.element_size() * math.prod(call.g.shape[2:])
    parts = []
    for q in call.groups:
        few = max(1, PATCH_BYTES // (q.size * position))
        for first in range(0, q.members, few):
            last = min(first + few, q.members)
            clients = slice(q.clients.start + first, q.clients.start + last)
            examples = slice(q.examples.start + first * q.size, q.examples.start + last * q.size)
            parts.append(rows_of(call, Group(clients, examples, q.size)))
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _one_by_one(call: Call) -> list[Tensor]:
    sizes = [q.size for q in call.groups for _ in range(q.members)]
    parts = zip(torch.split(call.a, sizes), torch.split(call.g, sizes), strict=True)
    return [_conv_weight_gradient(call.layer, a, g) for a, g in parts]  # type: ignore[arg-type]


def _positions(call: Call) -> int:
    return call.groups[-1].size * math.prod(call.g.shape[2:])


def _unfolded_rows(call: Call, q: Group) -> Tensor:
    """Contract the inputs that each output position sees with the output gradients."""
    layer: nn.Conv2d = call.layer  # type: ignore[assignment]
    top, left = _padding(layer)
    padded = F.pad(call.a[q.examples].permute(0, 2, 3, 1), (0, 0, left, left, top, top))
    (height, width), channels = call.g.shape[2:], call.a.shape[1]
    along, down, across, one = padded.stride()
    (down_step, across_step), (down_hole, across_hole) = layer.stride, layer.dilation
    windows = padded.as_strided(
        (len(padded), height, width, *layer.kernel_size, channels),
        (along, down * down_step, across * across_step, down * down_hole, across * across_hole, one),
    )
    g = by_client(call.g.permute(0, 2, 3, 1), q)
    rows = outer(windows.reshape(*g.shape[:2], -1), g)
    return rows.view(q.members, layer.out_channels, *layer.kernel_size, channels)


def _shifted_rows(call: Call, q: Group) -> Tensor:
    """Compute `_unfolded_rows` for few channels, with one shifted copy of the image for each kernel offset."""
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


def conv_norms(call: Call) -> Tensor:
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


def conv_total(call: Call, g: Tensor) -> Tensor:
    return _conv_weight_gradient(call.layer, call.a, g)  # type: ignore[arg-type]


def conv_ghost(call: Call) -> bool:
    layer: AnyConv = call.layer  # type: ignore[assignment]
    if call.a.dim() != 4 or layer.groups != 1:
        return False
    inputs, outputs = layer.weight[0].numel(), layer.out_channels
    margin = PATCH_MARGIN if call.a.dtype == torch.float32 and FLOAT32_PATCHES else GHOST_MARGIN
    return _positions(call) * (layer.in_channels + outputs + SHIFT_COST) < margin * inputs * outputs


def conv_flat(rows: Tensor) -> Tensor:
    """Convert rows in channels-last order back to the parameter's own order."""
    return rows.movedim(-1, -3)


def conv_packed(parameter: Tensor) -> Tensor:
    return parameter.permute(0, 2, 3, 1)


# --- transposed convolution ----------------------------------------------------------------------------------------

AnyTransposed = nn.ConvTranspose1d | nn.ConvTranspose2d | nn.ConvTranspose3d


def transposed_rows(call: Call) -> Tensor:
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
