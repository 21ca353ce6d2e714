"""SparseFed: a test bench and a deployable defense for poisoned federated learning.

    import sparsefed
    sparsefed.aggregate("sparsefed", updates, k=1000)   # [n, d] array in, [d] out

Everything else is imported from its own module; what is here is loaded when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sparsefed.defenses import aggregate

__version__ = version("sparsefed")

_HOMES = {"aggregate": "sparsefed.defenses"}

__all__ = ["__version__", "aggregate"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'sparsefed' has no attribute '{name}'")
