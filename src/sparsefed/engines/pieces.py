"""One parameter's part of the rows of a block of clients, written out or not, and the block made of them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from sparsefed.core.engine import LocalStep
from sparsefed.core.task import Slot
from sparsefed.core.types import IntArray
from sparsefed.engines.calls import Call, per_client_sum
from sparsefed.engines.layers import Layer
from sparsefed.kernels.rows import row_moments, weighted_sum


class Direct:
    """A parameter whose per-client gradients are written out."""

    def __init__(self, slot: Slot, rows: Tensor, layer: Layer | None = None) -> None:
        self.slot, self._rows, self._layer = slot, rows, layer  # rows [m, ...], in the layer's own layout

    def moments(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        part = theta.view(self.slot.shape)
        return row_moments(self._rows.flatten(1), (self._layer.packed(part) if self._layer else part).reshape(-1))

    def weighted_sum(self, weights: Tensor) -> Tensor:
        total = weighted_sum(self._rows.flatten(1), weights).view(self._rows.shape[1:])
        return self._flat(total).reshape(-1)

    def write(self, out: Tensor, base: Tensor, scale: float) -> None:
        """Write base + scale * rows to `out`, in one pass."""
        rows = self._flat(self._rows)
        torch.add(base.view(self.slot.shape), rows, alpha=scale, out=out.view(len(out), *self.slot.shape))

    def add(self, other: Direct) -> Direct:
        return Direct(self.slot, self._rows.float() + other._rows.float(), self._layer)

    def _flat(self, rows: Tensor) -> Tensor:
        return self._layer.flat(rows) if self._layer else rows


class Ghost:
    """A parameter whose per-client gradients stay unwritten: norms from Gram matrices, sums by one contraction."""

    def __init__(self, slot: Slot, layer: Layer, call: Call, output: Callable[[], Tensor]) -> None:
        self.slot, self._layer, self._call, self._output = slot, layer, call, output

    def moments(self, theta: Tensor) -> tuple[Tensor, Tensor]:  # noqa: ARG002 - the layer holds the same weights
        assert self._layer.norms is not None
        return self._layer.norms(self._call), self._dots()

    def _dots(self) -> Tensor:
        """Return <gradient, weight> as <output gradient, output without bias>: the layer is linear in its weight."""
        call = self._call
        output, bias = self._output(), getattr(call.layer, "bias", None)
        along = (self._layer.reaching(call) * output).flatten(1).sum(1, dtype=torch.float32)
        if bias is not None:
            shift = bias if isinstance(call.layer, nn.Linear) else bias.view(-1, *[1] * (call.g.dim() - 2))
            along = along - (call.g * shift).flatten(1).sum(1, dtype=torch.float32)
        return per_client_sum(along, call.groups).double()

    def weighted_sum(self, weights: Tensor) -> Tensor:
        assert self._layer.total is not None
        call = self._call
        sizes = torch.tensor([q.size for q in call.groups for _ in range(q.members)], device=weights.device)
        spread = torch.repeat_interleave(weights, sizes).view(-1, *[1] * (call.g.dim() - 1))
        scaled = (call.g * spread.float()).to(call.g.dtype)  # rounded once per entry, not once per client
        if bool((weights == 0).any()):  # 0 * nan is nan: zero the skipped clients on both sides
            scaled = torch.where(spread == 0, 0, scaled)
            if call.a.is_floating_point():
                alone = spread.view(-1, *[1] * (call.a.dim() - 1))
                call = call._replace(a=torch.where(alone == 0, 0, call.a))
        return self._layer.total(call, scaled).float().reshape(-1)

    def write(self, out: Tensor, base: Tensor, scale: float) -> None:
        Direct(self.slot, self._layer.rows(self._call), self._layer).write(out, base, scale)


class FusedBlock:
    """The updates of some clients, assembled from the pieces of one batched pass."""

    def __init__(self, pieces: list[Direct | Ghost], senders: IntArray, theta: Tensor, step: LocalStep) -> None:
        self._pieces, self._theta, self._step = pieces, theta, step
        self._size, self.senders = len(senders), senders

    @property
    def size(self) -> int:
        return self._size

    def norms(self) -> Tensor:
        """Return |scale (g + w theta)|, from |g|^2, <g, theta> and |theta|^2."""
        decay, squared = self._step.weight_decay, self._theta.new_zeros(self._size, dtype=torch.float64)
        for piece in self._pieces:
            squares, dots = piece.moments(self._theta[piece.slot.start : piece.slot.stop])
            squared += squares + 2 * decay * dots
        squared += decay**2 * float(torch.linalg.vector_norm(self._theta, dtype=torch.float64)) ** 2
        return squared.clamp_(min=0).sqrt_().mul_(abs(self._step.scale))

    def weighted_sum(self, weights: Tensor) -> Tensor:
        total = self._theta * float(self._step.weight_decay * weights.sum())
        for piece in self._pieces:
            total[piece.slot.start : piece.slot.stop] += piece.weighted_sum(weights)
        return total.mul_(self._step.scale)

    def rows(self) -> Tensor:
        out, base = (
            self._theta.new_empty(self._size, len(self._theta)),
            self._theta * (self._step.scale * self._step.weight_decay),
        )
        if sum(piece.slot.stop - piece.slot.start for piece in self._pieces) < len(base):
            out.copy_(base.expand_as(out))  # a parameter that no example used: its gradient is 0
        for piece in self._pieces:
            part = slice(piece.slot.start, piece.slot.stop)
            piece.write(out[:, part], base[part], self._step.scale)
        return out
