"""Apply a named rule to an [n, d] array of updates in one call: one round, from a zero state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, overload

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sparsefed.core.device import CPU, initial_state
from sparsefed.core.errors import ConfigError
from sparsefed.core.types import Context
from sparsefed.defenses.registry import build
from sparsefed.kernels.blocks import as_blocks

BLOCK_BYTES = 1 << 26  # float32 rows of one block: enough to be fast, small beside the array itself


@overload
def aggregate(name: str, updates: Tensor, **params: Any) -> Tensor: ...
@overload
def aggregate(name: str, updates: npt.NDArray[Any], **params: Any) -> npt.NDArray[np.float32]: ...
def aggregate(
    name: str,
    updates: npt.NDArray[Any] | Tensor,
    *,
    seed: int = 0,
    root: npt.NDArray[Any] | Tensor | None = None,
    theta: npt.NDArray[Any] | Tensor | None = None,
    layers: Sequence[int] = (),
    **params: Any,
) -> npt.NDArray[np.float32] | Tensor:
    """Return the aggregate [d] of the updates [n, d] of n clients, float32; an array gives an array, a tensor a tensor.

    `params` are the rule's own (`sparsefed list` shows them). The learning rate is 1 and nothing is remembered from
    earlier rounds, so the result is the aggregated update itself. Rows that hold NaN or infinity are left out.

    Some rules need more than the updates: `root`, the server's own update [d] (fltrust); `theta`, the model [d] (crfl);
    `layers`, the number of coordinates of each parameter tensor (lasa); `seed`, where the rule draws.

    >>> aggregate("sparsefed", np.array([[3.0, 0.0, 1.0], [3.0, 0.0, 0.0]]), k=1, clip_norm=10.0)
    array([3., 0., 0.], dtype=float32)
    """
    defense = build(name, **params)
    _check_updates(updates)
    d = updates.shape[1]
    if sum(layers) not in (0, d):
        raise ConfigError(f"layers add up to {sum(layers)} coordinates, but the updates have {d}")
    device = updates.device if isinstance(updates, Tensor) else CPU
    own, server = _vector("theta", theta, d, device), _vector("root", root, d, device)
    context = Context(0, 1.0, seed, own, tuple(layers), server)
    step = defense.step(initial_state(defense, d, device), as_blocks(updates, _block_size(updates)), context)
    return step.delta if isinstance(updates, Tensor) else step.delta.numpy()


def _block_size(updates: npt.NDArray[Any] | Tensor) -> int:
    """Return how many rows go into a block: all that are float32 already, else as many as make a small copy."""
    n, d = updates.shape
    as_it_is = updates.dtype in (np.float32, torch.float32)
    return n if as_it_is else max(1, min(n, BLOCK_BYTES // (4 * d)))


def _vector(name: str, given: npt.NDArray[Any] | Tensor | None, d: int, device: torch.device) -> Tensor | None:
    if given is None:
        return None
    if tuple(given.shape) != (d,):
        raise ConfigError(f"{name} has shape {list(given.shape)}, but must be [{d}], one number a coordinate")
    return torch.as_tensor(given).detach().to(device, torch.float32)


def _check_updates(updates: object) -> None:
    if not isinstance(updates, (np.ndarray, Tensor)):
        kind = type(updates).__name__
        raise ConfigError(f"updates is a {kind}, but must be a NumPy array or a torch tensor of shape [n, d]")
    shape = list(updates.shape)
    if len(shape) != 2:
        raise ConfigError(f"updates has shape {shape}, but must be [n, d]: a row of d numbers for each of n clients")
    if 0 in shape:
        raise ConfigError(f"updates has shape {shape}: there must be at least one client and one coordinate")
    if isinstance(updates, Tensor):
        real = not updates.dtype.is_complex and updates.dtype is not torch.bool
    else:
        real = updates.dtype.kind in "fiu"
    if not real:
        raise ConfigError(
            f"updates holds {updates.dtype}, but must hold real numbers (float32, or what converts to it)"
        )
