"""Apply a named rule to an [n, d] array of updates in one call: one round, from a zero state."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import Any, overload

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sparsefed.core.device import CPU, initial_state
from sparsefed.core.errors import ConfigError
from sparsefed.core.rng import check_seed
from sparsefed.core.signatures import shown
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

    Raises:
        ConfigError: if the updates, the rule or a parameter cannot be used; the message says why.

    >>> aggregate("sparsefed", np.array([[3.0, 0.0, 1.0], [3.0, 0.0, 0.0]]), k=1, clip_norm=10.0)
    array([3., 0., 0.], dtype=float32)
    """
    defense = build(name, **params)
    _check_updates(updates)
    d = updates.shape[1]
    sizes = layer_sizes(layers, d, "updates have")
    device = updates.device if isinstance(updates, Tensor) else CPU
    own, server = _vector("theta", theta, d, device), _vector("root", root, d, device)
    if own is not None and not bool(torch.isfinite(own).all()):
        raise ConfigError("theta holds numbers that are not finite; give the model that the updates are of")
    context = Context(0, 1.0, check_seed(seed), own, sizes, server)
    step = defense.step(initial_state(defense, d, device), as_blocks(updates, _block_size(updates)), context)
    require_finite(name, step.delta)
    return step.delta if isinstance(updates, Tensor) else step.delta.numpy()


def _block_size(updates: npt.NDArray[Any] | Tensor) -> int:
    """Return how many rows go into a block: all that are float32 already, else as many as make a small copy."""
    n, d = updates.shape
    as_it_is = updates.dtype in (np.float32, torch.float32)
    return n if as_it_is else max(1, min(n, BLOCK_BYTES // (4 * d)))


def _vector(name: str, given: npt.NDArray[Any] | Tensor | None, d: int, device: torch.device) -> Tensor | None:
    if given is None:
        return None
    require_numbers(name, given, "[d]")
    if tuple(given.shape) != (d,):
        raise ConfigError(f"{name} has shape {list(given.shape)}, but must be [{d}], one number a coordinate")
    (block,) = as_blocks(given[None], 1)
    return block.tensor[0].to(device)


def _check_updates(updates: object) -> None:
    require_numbers("updates", updates, "[n, d]")
    shape = list(getattr(updates, "shape", ()))
    if len(shape) != 2:
        raise ConfigError(f"updates has shape {shape}, but must be [n, d]: a row of d numbers for each of n clients")
    if 0 in shape:
        raise ConfigError(f"updates has shape {shape}: there must be at least one client and one coordinate")


def require_numbers(name: str, given: object, shape: str) -> None:
    """Raise ConfigError unless this is an ordinary array or tensor of real numbers, in the memory of a device."""
    if isinstance(given, Tensor):
        plain = given.layout is torch.strided and not (given.is_quantized or given.is_meta or given.is_nested)
        real = not given.dtype.is_complex and given.dtype is not torch.bool
    elif isinstance(given, np.ndarray) and not isinstance(given, np.ma.MaskedArray):
        plain, real = True, given.dtype.kind in "fiu"
    else:
        kind = type(given).__name__
        raise ConfigError(f"{name} is a {kind}, but must be a NumPy array or a torch tensor of shape {shape}")
    if not real:
        raise ConfigError(f"{name} holds {given.dtype}, but must hold real numbers (float32, or what converts to it)")
    if not plain:
        raise ConfigError(f"{name} is a sparse, nested, quantized or meta tensor; give an ordinary one, `.to_dense()`")


def layer_sizes(layers: Iterable[int], d: int, whose: str) -> tuple[int, ...]:
    """Return the coordinates of each parameter tensor; refuse what is not whole numbers that add up to d, or to 0."""
    try:
        sizes = tuple(operator.index(size) for size in layers)
    except (TypeError, ValueError, RuntimeError):
        raise ConfigError(f"layers is {shown(layers)}, but must be a list of whole numbers") from None
    if any(size < 0 for size in sizes):
        raise ConfigError(f"layers is {shown(layers)}, but a layer has 0 coordinates or more")
    if sum(sizes) not in (0, d):
        raise ConfigError(f"layers add up to {shown(sum(sizes))} coordinates, but the {whose} {d}")
    return sizes


def require_finite(name: object, delta: Tensor) -> None:
    """Raise ConfigError if a result is not finite: the parameters are so large that float32 does not hold it."""
    if not bool(torch.isfinite(delta).all()):
        raise ConfigError(f"{name} gives numbers beyond float32 with these parameters; choose smaller ones")
