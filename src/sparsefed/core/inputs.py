"""The inputs of a model: one tensor, or several that a module takes together; raw examples in, prepared inputs out.

`SeveralInputs` is used wherever a tensor of examples is: it is indexed, cut and counted by example, and each of its
parts follows. Knows nothing of targets or training.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn

WITHOUT_FLOAT64 = frozenset({"mps"})
Prepare = Callable[[Tensor], Tensor]  # raw examples -> float32 inputs (integers stay as they are)


class Scale(NamedTuple):
    """The normalisation of features, (x - mean) / std along the last axis, computed in float64."""

    mean: tuple[float, ...]
    std: tuple[float, ...]


class SeveralInputs:
    """Several tensors of examples, which a module takes by position or, if they have names, by name."""

    def __init__(self, parts: Sequence[Tensor], names: Sequence[str] = ()) -> None:
        self.parts, self.names = tuple(parts), tuple(names)

    def map(self, change: Callable[[Tensor], Tensor]) -> SeveralInputs:
        """Return the same inputs with every part changed."""
        return SeveralInputs([change(part) for part in self.parts], self.names)

    def __len__(self) -> int:
        return len(self.parts[0])

    def __getitem__(self, rows: Any) -> SeveralInputs:
        return self.map(lambda part: part[rows])

    def index_select(self, dim: int, rows: Tensor) -> SeveralInputs:
        return self.map(lambda part: part.index_select(dim, rows))

    def numel(self) -> int:
        return sum(part.numel() for part in self.parts)

    @property
    def shape(self) -> torch.Size:
        """The number of examples; what one example looks like differs from part to part."""
        return self.parts[0].shape[:1]

    @property
    def dtype(self) -> str:
        return " and ".join(str(part.dtype) for part in self.parts)

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is not torch.split:
            return NotImplemented
        cuts = [torch.split(part, *args[1:], **(kwargs or {})) for part in args[0].parts]
        return tuple(cls(parts, args[0].names) for parts in zip(*cuts, strict=True))


def has_float64(device: torch.device) -> bool:
    """Return whether a device computes in float64."""
    return device.type not in WITHOUT_FLOAT64


def each_part(x: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
    """Return inputs changed by a function: one tensor, or each of several."""
    return cast("Tensor", x.map(change)) if isinstance(x, SeveralInputs) else change(x)


def on_host(given: Any) -> Any:
    """Return arrays, or a tuple or dict of them, with the tensors of any device in host memory."""
    if isinstance(given, Mapping):
        return {name: on_host(part) for name, part in given.items()}
    if isinstance(given, tuple):
        return tuple(on_host(part) for part in given)
    return given.detach().cpu() if isinstance(given, Tensor) else given


def as_tensors(x: Any) -> Tensor:
    """Return arrays as tensors that share their memory: one array, or a tuple or dict of them as `SeveralInputs`."""
    if isinstance(x, Mapping):
        return cast("Tensor", SeveralInputs([as_tensors(part) for part in x.values()], [str(name) for name in x]))
    if isinstance(x, tuple):
        return cast("Tensor", SeveralInputs([as_tensors(part) for part in x]))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")  # a file mapped for reading
        return torch.from_numpy(np.asarray(x))


def shape_of(x: Any) -> Any:
    """Return the shape of one example; for several inputs, a tuple or dict of shapes."""
    if isinstance(x, Mapping):
        return {name: tuple(part.shape[1:]) for name, part in x.items()}
    return tuple(shape_of(part) for part in x) if isinstance(x, tuple) else tuple(x.shape[1:])


# --- preparation -----------------------------------------------------------------------------------------------------


def as_float(x: Tensor) -> Tensor:
    """Convert examples without further preparation: bytes to [0, 1], floats to float32; tokens stay integers."""
    if x.dtype == torch.uint8:
        return x.float().div_(255)
    return x.float() if x.is_floating_point() else x


def image_normaliser(mean: tuple[float, ...], std: tuple[float, ...]) -> Prepare:
    """Return a function from uint8 [M, H, W, C] to normalised float32 [M, C, H, W], channels-last."""
    scale = 1 / (255 * torch.tensor(std))
    shift = -torch.tensor(mean) / torch.tensor(std)

    def prepare(x: Tensor) -> Tensor:
        return torch.addcmul(shift.to(x.device), x.float(), scale.to(x.device)).permute(0, 3, 1, 2)

    return prepare


def preparation(scales: Sequence[Scale | None]) -> Prepare:
    """Return a function that prepares features: each input scaled by its own `Scale`, or only converted."""
    each = [as_float if scale is None else _scaler(scale) for scale in scales]

    def prepare(x: Tensor) -> Tensor:
        if not isinstance(x, SeveralInputs):
            return each[0](x)
        parts = [change(part) for change, part in zip(each, x.parts, strict=True)]
        return cast("Tensor", SeveralInputs(parts, x.names))

    return prepare


def _scaler(scale: Scale) -> Prepare:
    mean, std = (torch.tensor(part, dtype=torch.float64) for part in scale)

    def scaled(x: Tensor) -> Tensor:
        wide = torch.float64 if has_float64(x.device) else torch.float32
        return ((x.to(wide) - mean.to(x.device, wide)) / std.to(x.device, wide)).float()

    return scaled


def in_dtype(inputs: Tensor, dtype: torch.dtype) -> Tensor:
    """Return prepared inputs in the dtype that a model computes in; integers stay as they are."""
    return each_part(inputs, lambda part: part.to(dtype) if part.is_floating_point() else part)


def outputs_of(module: nn.Module, inputs: Tensor) -> Tensor:
    """Return the outputs of a module for prepared inputs."""
    if not isinstance(inputs, SeveralInputs):
        outputs: Tensor = module(inputs)
    elif inputs.names:
        outputs = module(**dict(zip(inputs.names, inputs.parts, strict=True)))
    else:
        outputs = module(*inputs.parts)
    return outputs
