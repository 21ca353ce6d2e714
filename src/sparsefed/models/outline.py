"""Models without weights: enough to count and describe a model of any size in milliseconds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

_DRAWS = {"normal_", "uniform_", "kaiming_normal_", "kaiming_uniform_", "trunc_normal_"}


class _Undrawn(TorchFunctionMode):
    """A torch mode that skips weight initialisation: pointless without storage, and slow to import."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        if getattr(func, "__name__", "") in _DRAWS:
            return args[0] if args else given["tensor"]
        return func(*args, **given)


def outline(build: Callable[[], nn.Module]) -> nn.Module:
    """Return the module that `build` makes, with parameters that are shapes only (torch's `meta` device)."""
    with torch.device("meta"), _Undrawn():
        return build()
