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
    from sparsefed.commands.audit import audit
    from sparsefed.commands.reproduce.run import reproduce
    from sparsefed.defenses import aggregate
    from sparsefed.sweeps.sweep import sweep

__version__ = version("sparsefed")

_HOMES = {
    "aggregate": "sparsefed.defenses",
    "audit": "sparsefed.commands.audit",
    "reproduce": "sparsefed.commands.reproduce.run",
    "sweep": "sparsefed.sweeps.sweep",
}

__all__ = ["__version__", "aggregate", "audit", "reproduce", "sweep"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'sparsefed' has no attribute '{name}'")
