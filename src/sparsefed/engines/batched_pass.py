"""One batched pass over the examples of many clients that records what their weight gradients are made of.

Hooks on layers pass on inputs and gradients of outputs; parameters of no known layer are spread over the examples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from sparsefed.core.device import CPU
from sparsefed.core.engine import LocalStep
from sparsefed.core.inputs import in_dtype, outputs_of
from sparsefed.core.task import Slot, Task, working_copy
from sparsefed.core.types import Batch, IntArray
from sparsefed.engines.attention import attention_known, open_attention
from sparsefed.engines.calls import Call, Group, folded_call, per_client_sum
from sparsefed.engines.convolutions import AnyTransposed
from sparsefed.engines.layers import LAYERS, bias_rows
from sparsefed.engines.pieces import Direct, FusedBlock, Ghost
from sparsefed.engines.recurrent import open_recurrent

PLAIN_LIMIT = 1 << 15  # numbers in parameters of no known layer: each example has a gradient of each of them
HIGHEST_RANK = 5  # of a batch that plain parameters are broadcast to

Receive = Callable[[Tensor, Tensor, Tensor | None], None]  # input, gradient of the output, output unless overwritten


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


def fused_block(task: Task, ready: Prepared, theta: Tensor, ids: IntArray, batch: Batch, step: LocalStep) -> FusedBlock:
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


def ranks(task: Task) -> list[int]:
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
