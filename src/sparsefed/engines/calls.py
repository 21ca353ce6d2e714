"""One use of a layer in a batched pass, and sums and contractions over each client's own part of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

GHOST_MARGIN = 0.55  # a ghost norm may cost this share of the direct contraction: one call per client is wasteful


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


def batched(call: Call, contract: Callable[[Tensor, Tensor], Tensor], a: Tensor, g: Tensor) -> Tensor:
    parts = [contract(by_client(a, q), by_client(g, q)) for q in call.groups]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def outer(a: Tensor, g: Tensor) -> Tensor:
    return torch.bmm(g.transpose(1, 2), a)


def gram_norm(a: Tensor, g: Tensor) -> Tensor:
    """Return the squared Frobenius norm of A^T G for each client, without forming it."""
    gram = torch.bmm(a, a.transpose(1, 2)).double() * torch.bmm(g, g.transpose(1, 2)).double()
    return gram.sum((1, 2)).clamp_(min=0)
