"""The fused engine: the one-step updates of a whole cohort in one batched pass.

Every device starts from the same weights, so the forward pass and the backward pass over activations are those of
ordinary training on all their examples together; only the weight gradients are per client (`layers.py`). Rules that
need norms and weighted sums alone never pay for the rows.

Knows nothing of rounds, defenses or attackers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sparsefed.core.device import CPU, batch_on, batches_on
from sparsefed.core.engine import MEMORY_BUDGET, Cohort, Engine, LocalStep, few, one_step, split
from sparsefed.core.errors import ConfigError
from sparsefed.core.task import Slot, Task, load_flat, seeded_layers, working_copy
from sparsefed.core.types import Batch, Block, IntArray
from sparsefed.engines.layers import LAYERS, Call, Group, Layer, bias_rows, per_client_sum
from sparsefed.engines.loop import client_rows, loop
from sparsefed.kernels.rows import row_moments, weighted_sum

log = logging.getLogger(__name__)

PROBE_TOLERANCE = 1e-3  # of a client's norm: a layer used in a way the table does not describe is off by far more


# --- pieces: one parameter's part of all rows -----------------------------------------------------------------------


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


# --- the batched pass ------------------------------------------------------------------------------------------------


class _Tap(torch.autograd.Function):
    """An identity function that passes the gradient of its output to `receive` as soon as it is known."""

    @staticmethod
    def forward(ctx: Any, _anchor: Tensor, output: Tensor, receive: Callable[[Tensor], None]) -> Tensor:
        ctx.receive = receive
        ctx.mark_dirty(output)  # so that in-place activations may follow
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, Tensor, None]:
        ctx.receive(gradients[0])
        return None, gradients[0], None


def _groups(sizes: IntArray) -> tuple[Group, ...]:
    """Return the runs of adjacent clients of equal size."""
    starts = np.flatnonzero(np.diff(sizes, prepend=-1))
    stops = np.append(starts[1:], len(sizes))
    firsts = np.concatenate([[0], np.cumsum(sizes)])
    return tuple(
        Group(slice(int(i), int(j)), slice(int(firsts[i]), int(firsts[j])), int(sizes[i]))
        for i, j in zip(starts, stops, strict=True)
    )


class _Recording:
    """A collector of the pieces of one batched pass, with forward hooks on layers that own trained parameters."""

    def __init__(self, slots: dict[int, Slot], groups: tuple[Group, ...], device: torch.device = CPU) -> None:
        self._slots, self._groups = slots, groups  # slots by id(parameter)
        self._anchor = torch.zeros(0, device=device, requires_grad=True)
        self._uses: dict[str, int] = {}
        self.pieces: dict[str, Direct | Ghost] = {}

    def hook(self, layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor) -> Tensor:
        a = (args[0] if args else kwargs["input"]).detach()
        for parameter in layer.parameters(recurse=False):
            name = self._slots[id(parameter)].name if id(parameter) in self._slots else ""
            self._uses[name] = self._uses.get(name, 0) + 1
        kept, version = output.detach(), output._version + 1  # the tap itself counts as one write

        def unchanged_output() -> Tensor:
            return kept if kept._version == version else layer.forward(a)  # an in-place activation overwrote it

        def receive(g: Tensor) -> None:
            self._receive(Call(layer, a, g, self._groups), unchanged_output)

        return _Tap.apply(self._anchor, output, receive)  # type: ignore[no-any-return, no-untyped-call]

    def _receive(self, call: Call, output: Callable[[], Tensor]) -> None:
        layer = LAYERS[type(call.layer)]
        weight, bias = call.layer.weight, getattr(call.layer, "bias", None)
        if id(weight) in self._slots:
            slot = self._slots[id(weight)]
            if self._uses[slot.name] == 1 and layer.ghost(call):
                self._add(Ghost(slot, layer, call, output))
            else:
                self._add(Direct(slot, layer.rows(call), layer))
        if id(bias) in self._slots:
            self._add(Direct(self._slots[id(bias)], bias_rows(call)))

    def _add(self, piece: Direct | Ghost) -> None:
        before = self.pieces.get(piece.slot.name)
        if before is None:
            self.pieces[piece.slot.name] = piece
        else:  # a parameter used more than once is always direct
            assert isinstance(before, Direct) and isinstance(piece, Direct)
            self.pieces[piece.slot.name] = before.add(piece)


def unknown_layers(task: Task) -> list[str]:
    """Return the layers with trained parameters that the fused path does not support, as 'name (Type)'."""
    trained = {id(p) for p in task.template.parameters() if p.requires_grad}
    unknown = []
    for name, layer in task.template.named_modules():
        if not any(id(p) in trained for p in layer.parameters(recurse=False)):
            continue
        known = type(layer) in LAYERS and LAYERS[type(layer)].known(layer)
        if not known or any(key not in ("weight", "bias") for key, _ in layer.named_parameters(recurse=False)):
            unknown.append(f"{name or 'model'} ({type(layer).__name__})")
    return unknown


@contextmanager
def _recorded(module: nn.Module, recording: _Recording) -> Iterator[None]:
    handles = [
        layer.register_forward_hook(recording.hook, with_kwargs=True)
        for layer in module.modules()
        if any(id(p) in recording._slots for p in layer.parameters(recurse=False))
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _fused_block(
    task: Task, module: nn.Module, theta: Tensor, ids: IntArray, batch: Batch, step: LocalStep
) -> FusedBlock:
    """Run one batched pass; `module` already holds `theta`, and its parameters require no gradient."""
    named = dict(module.named_parameters())
    slots = {id(named[slot.name]): slot for slot in task.slots}
    recording = _Recording(slots, _groups(batch.sizes), theta.device)
    inputs = task.prepare(batch.x)
    dtype = named[task.slots[0].name].dtype
    with _recorded(module, recording):
        outputs = module(inputs.to(dtype) if inputs.is_floating_point() else inputs)
    shares = torch.from_numpy(1 / np.repeat(batch.sizes, batch.sizes)).float().to(theta.device)
    (task.losses(outputs, batch.y) * shares).sum().backward()  # type: ignore[no-untyped-call]
    return FusedBlock(list(recording.pieces.values()), ids, theta, step)


# --- the engine ------------------------------------------------------------------------------------------------------


def fused(task: Task, dtype: torch.dtype = torch.float32, budget: int = MEMORY_BUDGET) -> Engine:
    """Compute updates by one batched pass per block of clients; fall back to the loop for unsupported models."""
    unknown = unknown_layers(task)
    if unknown:
        log.warning("computing client by client: no fused gradient for %s", ", ".join(unknown))
        return loop(task, dtype, budget)
    module = working_copy(task, dtype).requires_grad_(False).train()
    slow = loop(task, dtype, budget)
    cost: list[float] = []  # bytes per example once the probe has passed; -1 once it has failed

    def compute(theta: Tensor, cohort: Cohort, step: LocalStep) -> Iterator[Block]:
        if not one_step(step.plan, cohort.sizes):
            raise ConfigError(
                "one batched pass computes one local step, not several; use the engine by_client or stacked"
            )
        if not cost:
            cost.append(_probe(task, theta, cohort) * torch.finfo(dtype).bits / 32)
        if cost[0] < 0:
            yield from slow(theta, cohort, step)
            return
        load_flat(task, module, theta)
        width = torch.finfo(dtype).bits // 8
        with seeded_layers(module, step.seed):
            blocks = split(cohort, float(width * task.d), cost[0], budget)
            for ids, batch in batches_on(cohort.gather, blocks, task.device):
                yield _fused_block(task, module, theta, ids, batch, step)

    return compute


def _probe(task: Task, theta: Tensor, cohort: Cohort) -> float:
    """Compare the fused path with the loop on two clients, and return the bytes per example in float32, or -1.

    A layer used in a way that hooks cannot see (its weight used outside `forward`, an input overwritten) shows up here.
    """
    batch = batch_on(few(cohort), task.device)
    step = LocalStep(1.0, 0.0)
    fast, slow = working_copy(task, torch.float32).eval(), working_copy(task, torch.float32).eval()
    load_flat(task, fast, theta)
    load_flat(task, slow, theta)
    truth = client_rows(task, slow, theta, batch, step)
    saved: dict[int, int] = {}
    weights = {parameter.data_ptr() for parameter in fast.parameters()}  # saved too, but not once per example

    def pack(tensor: Tensor) -> Tensor:
        if tensor.data_ptr() not in weights:
            saved[tensor.data_ptr()] = tensor.nbytes
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        rows = _fused_block(task, fast.requires_grad_(False), theta, np.arange(len(batch.sizes)), batch, step).rows()
    error, size = torch.linalg.vector_norm(rows - truth, dim=1), torch.linalg.vector_norm(truth, dim=1)
    if bool((error > PROBE_TOLERANCE * size + 1e-12).any()):
        log.warning("computing client by client: the model uses a layer's parameters outside that layer")
        return -1.0
    return 3.0 * sum(saved.values()) / len(batch.y)  # saved tensors, their gradients, and the layers' inputs
