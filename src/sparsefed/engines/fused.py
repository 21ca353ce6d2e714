"""The fused engine: the one-step updates of a whole cohort in one batched pass.

Every device starts from the same weights, so the forward pass and the backward pass over activations are those of
ordinary training on all their examples together; only the weight gradients are per client (`layers.py`). Rules that
need norms and weighted sums alone never pay for the rows.

Knows nothing of rounds, defenses or attackers.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from sparsefed.core.device import CPU
from sparsefed.core.engine import MEMORY_BUDGET, Cohort, Engine, LocalStep, few, one_step, split
from sparsefed.core.errors import ConfigError
from sparsefed.core.inputs import in_dtype, outputs_of
from sparsefed.core.task import Slot, Task, draws, load_flat, seeded_layers, working_copy
from sparsefed.core.types import Batch, Block, IntArray
from sparsefed.engines.attention import attention_known, open_attention
from sparsefed.engines.layers import LAYERS, AnyTransposed, Call, Group, Layer, bias_rows, folded_call, per_client_sum
from sparsefed.engines.loop import client_rows, loop
from sparsefed.engines.recurrent import open_recurrent
from sparsefed.engines.transfer import batch_on, batches_on
from sparsefed.kernels.rows import row_moments, weighted_sum

log = logging.getLogger(__name__)

PLAIN_LIMIT = 1 << 15  # numbers in parameters of no known layer: each example has a gradient of each of them
HIGHEST_RANK = 5  # of a batch that plain parameters are broadcast to
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


Receive = Callable[[Tensor, Tensor, Tensor | None], None]  # input, gradient of the output, output unless overwritten


# --- the batched pass ------------------------------------------------------------------------------------------------


class _Tap(torch.autograd.Function):
    """An identity function that passes on the gradient of a layer's output, with its input, as soon as it is known.

    Under `vmap` it is given every example's own output, wherever the examples' axis is, and puts that axis first.
    """

    @staticmethod
    def forward(_anchor: Tensor, output: Tensor, a: Tensor, receive: Receive) -> Tensor:  # noqa: ARG004
        return output

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor, Receive], output: Tensor) -> None:  # noqa: ARG004
        _, ours, ctx.a, ctx.receive = inputs
        ctx.kept, ctx.version = ours.detach(), ours._version + 1  # the tap itself counts as one write
        ctx.mark_dirty(ours)  # so that in-place activations may follow

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, Tensor, None, None]:
        unchanged = ctx.kept if ctx.kept._version == ctx.version else None  # an in-place activation overwrote it
        ctx.receive(ctx.a, gradients[0], unchanged)
        return None, gradients[0], None, None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], anchor: Tensor, output: Tensor, a: Tensor, receive: Receive
    ) -> tuple[Tensor, int]:
        firsts = [
            part.expand(info.batch_size, *part.shape).clone() if dim is None else part.movedim(dim, 0)
            for part, dim in zip((output, a), in_dims[1:3], strict=True)
        ]
        return _Tap.apply(anchor, *firsts, receive), 0  # type: ignore[no-untyped-call]


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
        self._uses: dict[str, int] = {}
        self.anchor = torch.zeros(0, device=device, requires_grad=True)
        self.apart = False  # whether examples go through the model one by one, under `vmap`
        self.pieces: dict[str, Direct | Ghost] = {}

    def hook(self, layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor) -> Tensor:
        for parameter in layer.parameters(recurse=False):
            name = self._slots[id(parameter)].name if id(parameter) in self._slots else ""
            self._uses[name] = self._uses.get(name, 0) + 1

        def receive(a: Tensor, g: Tensor, unchanged: Tensor | None) -> None:
            call = Call(layer, a, g, self._groups)
            call, folded = folded_call(call) if self.apart else (call, False)
            kept = unchanged.flatten(0, 1) if folded and unchanged is not None else unchanged
            self._receive(call, lambda: layer.forward(call.a) if kept is None else kept)

        a = (args[0] if args else kwargs["input"]).detach()
        return _Tap.apply(self.anchor, output, a, receive)  # type: ignore[no-any-return, no-untyped-call]

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
    plain, owners = plain_parameters(task), dict(task.template.named_modules())
    numbers = sum(parameter.numel() for parameter in plain.values())
    names = dict.fromkeys(name.rpartition(".")[0] for name in plain)
    if numbers <= PLAIN_LIMIT and not any(isinstance(owners[name], nn.RNNBase) for name in names):
        return []
    return [f"{name or 'model'} ({type(owners[name]).__name__})" for name in names]


def plain_parameters(task: Task) -> dict[str, nn.Parameter]:
    """Return the trained parameters that belong to no layer of the table, by name."""
    known: set[int] = set()
    for layer in task.template.modules():
        own = dict(layer.named_parameters(recurse=False))
        if isinstance(layer, nn.MultiheadAttention | nn.GRU):
            is_known = type(layer) is nn.GRU or (not isinstance(layer, nn.GRU) and attention_known(layer))
        else:
            is_known = type(layer) in LAYERS and LAYERS[type(layer)].known(layer) and own.keys() <= {"weight", "bias"}
        known |= {id(parameter) for parameter in own.values()} if is_known else set()
    named, trained = dict(task.template.named_parameters()), [slot.name for slot in task.slots]
    return {name: named[name] for name in trained if id(named[name]) not in known}


class Prepared(NamedTuple):
    """A private copy of the model for batched passes, whose parameters require no gradient."""

    module: nn.Module
    slots: dict[int, Slot]  # by id(parameter)
    plain: dict[str, tuple[nn.Parameter, Slot]]  # parameters that no layer of the table owns, by name
    apart: bool  # whether examples go through the model one by one, under `vmap`
    rank: int  # of what plain parameters are broadcast to, with the examples' axis; 0: there are none, or apart


def prepare(task: Task, dtype: torch.dtype, apart: bool = False, rank: int = 0) -> Prepared:
    """Return a copy of the model for batched passes; plain parameters need a `rank`, or examples `apart`."""
    module = working_copy(task, dtype).requires_grad_(False)
    if apart or any(isinstance(layer, AnyTransposed) for layer in module.modules()):
        # Group normalisation of channels-last images has no batching rule, and that of few channels is slow.
        for layer in module.modules():
            if isinstance(layer, nn.Conv2d):
                layer.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    named, loose = dict(module.named_parameters()), plain_parameters(task)
    plain = {slot.name: (named[slot.name], slot) for slot in task.slots if slot.name in loose}
    slots = {id(named[slot.name]): slot for slot in task.slots if slot.name not in loose}
    open_recurrent(module)
    return Prepared(module, open_attention(module, slots), plain, apart, rank)


@contextmanager
def _recorded(ready: Prepared, recording: _Recording) -> Iterator[None]:
    handles = [
        layer.register_forward_hook(recording.hook, with_kwargs=True)
        for layer in ready.module.modules()
        if type(layer) in LAYERS and any(id(p) in ready.slots for p in layer.parameters(recurse=False))
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _fused_block(
    task: Task, ready: Prepared, theta: Tensor, ids: IntArray, batch: Batch, step: LocalStep
) -> FusedBlock:
    """Run one batched pass; the copy already holds `theta`."""
    recording = _Recording(ready.slots, _groups(batch.sizes), theta.device)
    dtype = dict(ready.module.named_parameters())[task.slots[0].name].dtype
    inputs = in_dtype(task.prepare(batch.x), dtype)
    spread = {name: _spread(parameter, len(batch.y), ready.rank) for name, (parameter, _) in ready.plain.items()}
    with _recorded(ready, recording):
        outputs = _apart(ready, recording, inputs, spread) if ready.apart else _together(ready, inputs, spread)
    shares = torch.from_numpy(1 / np.repeat(batch.sizes, batch.sizes)).float().to(theta.device)
    (task.losses(outputs, batch.y) * shares).sum().backward()  # type: ignore[no-untyped-call]
    for name, each in spread.items():
        if each.grad is not None:
            slot = ready.plain[name][1]
            rows = per_client_sum(each.grad.reshape(len(each), *slot.shape), recording._groups)
            recording.pieces[name] = Direct(slot, rows)
    return FusedBlock(list(recording.pieces.values()), ids, theta, step)


def _spread(parameter: Tensor, examples: int, rank: int) -> Tensor:
    """Return a parameter once for each example, in the memory of one, so that each has a gradient of its own.

    With a rank, the examples' axis takes the place of a first axis of length 1, or stands before so many axes of
    length 1 that the result has this rank: it then broadcasts with a batch as the parameter does.
    """
    given = parameter.detach()
    if rank and _has_free_axis(parameter.shape):
        return given.expand(examples, *given.shape[1:]).requires_grad_()
    ones = [1] * max(0, rank - 1 - given.dim())
    return given.view(*ones, *given.shape).expand(examples, *ones, *given.shape).requires_grad_()


def _has_free_axis(shape: torch.Size) -> bool:
    return len(shape) > 1 and shape[0] == 1


def _ranks(task: Task) -> list[int]:
    """Return the ranks to which the plain parameters of a model may be broadcast, those of all of them together."""
    shapes = [parameter.shape for parameter in plain_parameters(task).values()]
    own = [1 + len(shape) for shape in shapes if not _has_free_axis(shape)]
    return list(range(max(2, *own), HIGHEST_RANK + 1)) if own else [HIGHEST_RANK]


def _together(ready: Prepared, inputs: Tensor, spread: dict[str, Tensor]) -> Tensor:
    """Return the outputs of a batch; each example uses its own copy of the plain parameters."""
    if not spread:
        return outputs_of(ready.module, inputs)

    def run(*args: Tensor, **kwargs: Tensor) -> Tensor:
        return functional_call(ready.module, spread, args, kwargs)  # type: ignore[no-any-return]

    return outputs_of(run, inputs)  # type: ignore[arg-type]


def _apart(ready: Prepared, recording: _Recording, inputs: Tensor, spread: dict[str, Tensor]) -> Tensor:
    """Return the outputs of examples that go through the model each as a batch of one, with their own parameters.

    One pass all the same: `vmap` computes layers whose weights are common as a batch.
    """
    recording.apart = True
    anchors = torch.zeros(len(inputs), 0, device=recording.anchor.device, requires_grad=True)

    def alone(anchor: Tensor, parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        recording.anchor = anchor
        return functional_call(ready.module, parameters, (x,))  # type: ignore[no-any-return]

    with sdpa_kernel(SDPBackend.MATH):  # the only one that `vmap` can batch
        outputs = vmap(alone, randomness="different")(anchors, spread, inputs.contiguous().unsqueeze(1))
    return outputs.squeeze(1)


# --- the engine ------------------------------------------------------------------------------------------------------


def fused(
    task: Task, dtype: torch.dtype = torch.float32, budget: int = MEMORY_BUDGET, otherwise: Engine | None = None
) -> Engine:
    """Compute updates by one batched pass per block of clients; models that this does not support go to `otherwise`.

    Args:
        task: the model and its loss.
        dtype: in which to compute.
        budget: bytes that one block of clients may take.
        otherwise: the engine for other models; by default the loop.
    """
    slow = otherwise or loop(task, dtype, budget)
    if unknown := unknown_layers(task):
        log.warning("computing client by client: no fused gradient for %s", ", ".join(unknown))
        return slow
    ready: list[tuple[Prepared, float] | None] = []  # with the bytes of an example; None if the model is not supported

    def compute(theta: Tensor, cohort: Cohort, step: LocalStep) -> Iterator[Block]:
        if not one_step(step.plan, cohort.sizes):
            raise ConfigError(
                "one batched pass computes one local step, not several; use the engine by_client or stacked"
            )
        if not ready:
            ready.append(_tried(task, theta, cohort, dtype))
        if ready[0] is None:
            yield from slow(theta, cohort, step)
            return
        copy, cost = ready[0]
        load_flat(task, copy.module, theta)
        width = torch.finfo(dtype).bits // 8
        with seeded_layers(copy.module, step.seed):
            blocks = split(cohort, float(width * task.d), cost, budget)
            for ids, batch in batches_on(cohort.gather, blocks, task.device):
                block = _fused_block(task, copy, theta, ids, batch, step)
                del batch  # its memory must be free while the block is used, and the block's while the next is computed
                yield block
                del block

    return compute


def _tried(task: Task, theta: Tensor, cohort: Cohort, dtype: torch.dtype) -> tuple[Prepared, float] | None:
    """Return a copy of the model with which one pass gives the loop's updates, and the bytes per example, or None.

    A layer used in a way that hooks cannot see (its weight used outside `forward`, an input overwritten) shows up here,
    and so does one that sees its examples along another axis, or all alike: these are computed apart.
    """
    batch = batch_on(few(cohort), task.device)
    slow = working_copy(task, torch.float32).train(not draws(task.template))
    load_flat(task, slow, theta)
    truth = client_rows(task, slow, theta, batch, LocalStep(1.0, 0.0))
    ways = (
        [(False, rank) for rank in (_ranks(task) if len(batch.y) > 1 else [])]
        if plain_parameters(task)
        else [(False, 0)]
    )
    for apart, rank in (*ways, (True, 0)):
        cost = _probe(task, prepare(task, torch.float32, apart, rank), theta, batch, truth)
        if cost is not None:
            copy = prepare(task, dtype, apart, rank)
            copy.module.train()
            return copy, cost * torch.finfo(dtype).bits / 32
    log.warning("computing client by client: the model uses a layer's parameters outside that layer")
    return None


def _probe(task: Task, ready: Prepared, theta: Tensor, batch: Batch, truth: Tensor) -> float | None:
    """Return the bytes per example in float32, or None if one batched pass does not give the loop's rows."""
    load_flat(task, ready.module.train(not draws(task.template)), theta)
    saved: dict[int, int] = {}
    weights = {parameter.data_ptr() for parameter in ready.module.parameters()}  # saved too, but not for each example

    def pack(tensor: Tensor) -> Tensor:
        if tensor.data_ptr() not in weights:
            saved[tensor.data_ptr()] = tensor.nbytes
        return tensor

    try:
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor), _strict():
            ids = np.arange(len(batch.sizes))
            rows = _fused_block(task, ready, theta, ids, batch, LocalStep(1.0, 0.0)).rows()
    except Exception as error:  # layers called in a way that the table does not know may raise anything
        log.info("no batched pass%s: %s", " of examples apart" * ready.apart, str(error).partition("\n")[0])
        return None
    off, size = torch.linalg.vector_norm(rows - truth, dim=1), torch.linalg.vector_norm(truth, dim=1)
    if bool((off > PROBE_TOLERANCE * size + 1e-12).any()):
        return None
    for _, slot in ready.plain.values():  # a short gradient of its own would drown in the whole
        mine, part = rows[:, slot.start : slot.stop], truth[:, slot.start : slot.stop]
        if bool(((mine - part).norm(dim=1) > PROBE_TOLERANCE * part.norm(dim=1) + 1e-6 * size).any()):
            return None
    own = sum(parameter.numel() for parameter, _ in ready.plain.values())
    return 3.0 * sum(saved.values()) / len(batch.y) + 8.0 * own  # saved tensors, their gradients, the layers' inputs


@contextmanager
def _strict() -> Iterator[None]:
    """Turn warnings into errors (`vmap` warns where it is slow) and let no layer take its path for inference."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)
