"""SparseFed: a test bench and a deployable defense for poisoned federated learning.

    import sparsefed
    sparsefed.aggregate("sparsefed", updates, k=1000)                       # [n, d] array in, [d] out
    server = sparsefed.Server(sparsefed.defenses.krum(f=2), like=model)     # with memory, for a loop of one's own

What is here is loaded when it is first used; nothing else is imported, torch least of all.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sparsefed import attacks, data, defenses, models, schedules
    from sparsefed.core.choice import Chosen
    from sparsefed.data import partitions
    from sparsefed.defenses import aggregate
    from sparsefed.server import Server, ServerStep

    __version__: str

# Public name -> the module it is in; a module's own name stands for the module.
_HOMES = {
    "Chosen": "sparsefed.core.choice",
    "Server": "sparsefed.server",
    "ServerStep": "sparsefed.server",
    "aggregate": "sparsefed.defenses",
    "attacks": "sparsefed.attacks",
    "data": "sparsefed.data",
    "defenses": "sparsefed.defenses",
    "models": "sparsefed.models",
    "partitions": "sparsefed.data.partitions",
    "schedules": "sparsefed.schedules",
}

__all__ = [
    "Chosen",
    "Server",
    "ServerStep",
    "__version__",
    "aggregate",
    "attacks",
    "data",
    "defenses",
    "models",
    "partitions",
    "schedules",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("sparsefed")
    if name not in _HOMES:
        raise AttributeError(f"module 'sparsefed' has no attribute '{name}'")
    home = import_module(_HOMES[name])
    return home if home.__name__.rpartition(".")[2] == name else getattr(home, name)


def __dir__() -> list[str]:
    return __all__
