"""`nn.GRU` written step by step, so that the fused engine's hooks see its products.

    r = s(W_ir x + b_ir + W_hr h + b_hr)        z = s(W_iz x + b_iz + W_hz h + b_hz)
    n = tanh(W_in x + b_in + r * (W_hn h + b_hn))        h' = (1 - z) * n + z * h

The products with the inputs are one linear layer over all steps. Those with the states come one after the other, but
their weight gradients are still one contraction: `StateProducts` receives the gradients of all steps at once.
"""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sparsefed.core.errors import ConfigError


class StateProducts(nn.Linear):
    """The products of a recurrent layer with its states; the module adds nothing by itself.

    Called with memory for the states of all steps, it returns zeros that are added to the products of each step: their
    gradient is the products'. The states are written to that memory as they become known.
    """

    def forward(self, states: Tensor) -> Tensor:
        return states.new_zeros(*states.shape[:-1], self.out_features)


def open_recurrent(module: nn.Module) -> None:
    """Rewrite the GRU layers of a private copy."""
    for layer in list(module.modules()):
        if type(layer) is nn.GRU:
            for name in _directions(layer):
                layer.add_module(f"inputs{name}", _shell(nn.Linear, layer, f"ih{name}"))
                layer.add_module(f"states{name}", _shell(StateProducts, layer, f"hh{name}"))
            layer.forward = partial(_run, layer)  # type: ignore[method-assign, assignment]


def _directions(layer: nn.GRU) -> list[str]:
    """Return the suffixes of the parameters of every layer and direction, in order."""
    ways = ("", "_reverse") if layer.bidirectional else ("",)
    return [f"_l{number}{way}" for number in range(layer.num_layers) for way in ways]


def _shell(kind: type[nn.Linear], layer: nn.GRU, name: str) -> nn.Linear:
    """Return a linear layer that holds the GRU's own parameters."""
    weight = getattr(layer, f"weight_{name}")
    with torch.device("meta"):
        shell = kind(weight.shape[1], weight.shape[0], layer.bias)
    shell.weight = weight
    if layer.bias:
        shell.bias = getattr(layer, f"bias_{name}")
    return shell


def _run(layer: nn.GRU, input: Tensor, hx: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Compute what the layer's own forward pass does, for inputs with a batch axis."""
    if not isinstance(input, Tensor) or input.dim() != 3:
        raise ConfigError("packed sequences and sequences without a batch axis are not computed in one batched pass")
    outputs = input if layer.batch_first else input.transpose(0, 1)
    names, last = _directions(layer), []
    each = 2 if layer.bidirectional else 1
    for first in range(0, len(names), each):
        ways = [_direction(layer, name, outputs, hx, first + i) for i, name in enumerate(names[first : first + each])]
        outputs = torch.cat([states for states, _ in ways], -1)
        last += [state for _, state in ways]
        if layer.training and first + each < len(names):
            outputs = F.dropout(outputs, layer.dropout)
    return outputs if layer.batch_first else outputs.transpose(0, 1), torch.stack(last)


def _direction(layer: nn.GRU, name: str, inputs: Tensor, hx: Tensor | None, place: int) -> tuple[Tensor, Tensor]:
    """Return all states of one layer in one direction [M, T, hidden], and the last one."""
    products, own = getattr(layer, f"inputs{name}")(inputs), getattr(layer, f"states{name}")
    memory = inputs.new_zeros(*inputs.shape[:2], layer.hidden_size)
    taps = own(memory)
    state = inputs.new_zeros(inputs.shape[0], layer.hidden_size) if hx is None else hx[place]
    steps = range(inputs.shape[1])
    states: list[Tensor] = []
    for t in reversed(steps) if name.endswith("_reverse") else steps:
        memory[:, t] = state.detach()
        from_input = products[:, t].chunk(3, -1)
        from_state = (F.linear(state, own.weight, own.bias) + taps[:, t]).chunk(3, -1)
        r, z = (torch.sigmoid(a + b) for a, b in zip(from_input[:2], from_state[:2], strict=True))
        new = torch.tanh(from_input[2] + r * from_state[2])
        state = new + z * (state - new)
        states.append(state)
    return torch.stack(states[::-1] if name.endswith("_reverse") else states, 1), state
