"""A pretended accelerator: tensors that claim another device and hold their numbers in ordinary memory.

Torch's FakeTensor knows devices but no numbers, so that the first `bool(...)` of a rule ends it. A `Pretended` tensor
has both: every operation is refused unless all its tensors are on one device, as CUDA refuses it (a scalar of the CPU
may take part, and indices may be there), and is then computed on the CPU. So whole rounds run, branches and all,
and can be compared with the same rounds on the CPU. Inside `strictly`, making a tensor of more than one number on the
CPU is refused as well.

The device is called `meta`: without CUDA in the build, autograd ends the process on tensors that claim to be on `cuda`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

DEVICE = torch.device("meta")
aten = torch.ops.aten
FACTORIES = {aten.zeros, aten.ones, aten.empty, aten.full, aten.arange, aten.eye, aten.linspace, aten.randn, aten.rand}
MATMULS = (torch.matmul, Tensor.matmul, Tensor.__matmul__)
QUANTILES = (torch.quantile, Tensor.quantile, torch.nanquantile, Tensor.nanquantile)
INDEXED = {aten.index.Tensor, aten.index_put_.default, aten.index_put.default, aten._index_put_impl_.default}


class MixedDeviceError(Exception):
    """Tensors of two devices met in one operation."""


class Pretended(Tensor):
    """A tensor that claims to be on the pretended device."""

    elem: Tensor
    is_meta = False  # it holds numbers, whatever its device is called

    @staticmethod
    def __new__(cls, elem: Tensor) -> Pretended:
        made = Tensor._make_wrapper_subclass(
            cls,
            elem.size(),
            strides=elem.stride(),
            storage_offset=elem.storage_offset(),
            dtype=elem.dtype,
            layout=elem.layout,
            device=DEVICE,
            requires_grad=False,
        )
        made.elem = elem
        return made

    def __repr__(self) -> str:  # type: ignore[override]
        return f"Pretended({self.elem})"

    def data_ptr(self) -> int:
        return self.elem.data_ptr()

    def tolist(self) -> Any:
        return self.elem.tolist()

    def new_tensor(self, data: Any, **more: Any) -> Tensor:  # type: ignore[override]
        return self.elem.new_tensor(data, **more).to(DEVICE)

    def __getitem__(self, index: Any) -> Any:
        return super().__getitem__(_indices(index))

    def __setitem__(self, index: Any, value: Any) -> None:
        super().__setitem__(_indices(index), value)

    def item(self) -> Any:
        return self.elem.item()

    def __bool__(self) -> bool:
        return bool(self.elem)

    def __float__(self) -> float:
        return float(self.elem)

    def __int__(self) -> int:
        return int(self.elem)

    def __index__(self) -> int:
        return int(self.elem)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        return _computed(func, args, kwargs or {})


def _indices(index: Any) -> Any:
    """Return an index without lists, which torch turns into tensors of the device where no mode sees it."""
    if isinstance(index, tuple):
        return tuple(_indices(part) for part in index)
    return torch.tensor(index) if isinstance(index, list) else index


def _computed(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Check the devices of an operation, compute it on the CPU, and let its results be where they belong."""
    given, _ = tree_flatten((args, kwargs))
    tensors = [value for value in given if isinstance(value, Tensor)]
    ours = {id(t.elem): t for t in tensors if isinstance(t, Pretended)}
    device = kwargs.get("device")
    place = torch.device(device) if device is not None else None
    copying = func in (aten._to_copy.default, aten.copy_.default, aten.copy.default)
    if ours and not copying:
        _require_one_device(func, args, tensors)
    on_it = (
        place.type == DEVICE.type if place is not None else (isinstance(args[0], Pretended) if copying else bool(ours))
    )
    if place is not None:
        kwargs = {**kwargs, "device": torch.device("cpu")}
    plain_args, plain_kwargs = tree_map(lambda v: v.elem if isinstance(v, Pretended) else v, (args, kwargs))
    out = func(*plain_args, **plain_kwargs)

    def placed(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        if id(value) in ours:
            assert ours[id(value)].shape == value.shape, f"{func} reshaped a tensor in place"
            return ours[id(value)]
        return Pretended(value) if on_it else value

    return tree_map(placed, out)


def _require_one_device(func: Any, args: Any, tensors: list[Tensor]) -> None:
    checked = tensors
    if func in INDEXED:  # indices may be on the CPU, as on CUDA
        checked = [args[0], *(a for a in args[2:] if isinstance(a, Tensor))]
    strangers = [t for t in checked if not isinstance(t, Pretended) and t.dim() > 0]
    if strangers:
        raise MixedDeviceError(f"{func}: {[tuple(t.shape) for t in strangers]} on the CPU, others on {DEVICE}")


class _Made(TorchFunctionMode):
    """A mode for functions that no dispatch mode can follow.

    `torch.tensor(..., device=...)` moves its numbers unseen; others reshape in place (a vector times a matrix).
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = dict(kwargs or {})
        if func is torch.tensor and torch.device(given.get("device") or "cpu").type == DEVICE.type:
            given.pop("device")
            return func(*args, **given).to(DEVICE)
        if func in MATMULS and args[0].dim() == 1 and args[1].dim() == 2:
            return (args[0].unsqueeze(0) @ args[1]).squeeze(0)
        if func in QUANTILES and isinstance(args[0], Pretended):
            return Pretended(func(args[0].elem, *args[1:], **given))
        return func(*args, **given)


class PretendedDevice(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A mode in which tensors can be made on, and moved to, the pretended device; `narrow`: which has no float64."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.strict, self.narrow, self._made = False, False, _Made()

    def __enter__(self) -> PretendedDevice:
        self._made.__enter__()  # type: ignore[no-untyped-call]
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self._made.__exit__(*error)  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = _computed(func, args, kwargs or {})
        if self.strict and func.overloadpacket in FACTORIES and not isinstance(out, Pretended) and out.numel() > 1:
            raise MixedDeviceError(f"{func} made {tuple(out.shape)} on the CPU")
        if self.narrow and isinstance(out, Pretended) and out.dtype is torch.float64:
            raise MixedDeviceError(f"{func} made float64 on a device that has none")
        return out

    @contextmanager
    def strictly(self) -> Iterator[None]:
        """Refuse every tensor that is made on the CPU."""
        self.strict = True
        try:
            yield
        finally:
            self.strict = False
