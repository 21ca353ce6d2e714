"""SparseFed: a test bench and a deployable defense for poisoned federated learning.

    import sparsefed
    sparsefed.aggregate("sparsefed", updates, k=1000)                       # [n, d] array in, [d] out
    server = sparsefed.Server(sparsefed.defenses.krum(f=2), like=model)     # with memory, for your own training loop
    sparsefed.Simulation(model, (x, y), defense=..., attack=...).run()      # a federation under attack
    sparsefed.audit("my.toml")                                              # and every other command, as a function

Every public name is loaded on first use: `import sparsefed` itself imports nothing, not even torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sparsefed import attacks, config, data, defenses, flower, models, schedules, trackers
    from sparsefed.commands.audit import audit
    from sparsefed.commands.certify import certify
    from sparsefed.commands.choose_k import choose_k
    from sparsefed.commands.deploy import deploy
    from sparsefed.commands.reproduce.run import reproduce
    from sparsefed.commands.sweep import sweep_file
    from sparsefed.commands.tune import tune
    from sparsefed.commands.watch import watch
    from sparsefed.core.choice import Chosen
    from sparsefed.core.errors import SparseFedError
    from sparsefed.core.threat import ThreatModel
    from sparsefed.data import partitions
    from sparsefed.defenses import aggregate
    from sparsefed.reports.run_report import report
    from sparsefed.server import Server, ServerStep
    from sparsefed.simulation import Simulation
    from sparsefed.sweeps.sweep import sweep

    __version__: str

# Public name -> its module.
_HOMES = {
    "Chosen": "sparsefed.core.choice",
    "Server": "sparsefed.server",
    "ServerStep": "sparsefed.server",
    "Simulation": "sparsefed.simulation",
    "SparseFedError": "sparsefed.core.errors",
    "ThreatModel": "sparsefed.core.threat",
    "aggregate": "sparsefed.defenses",
    "audit": "sparsefed.commands.audit",
    "certify": "sparsefed.commands.certify",
    "choose_k": "sparsefed.commands.choose_k",
    "deploy": "sparsefed.commands.deploy",
    "partitions": "sparsefed.data",
    "report": "sparsefed.reports.run_report",
    "reproduce": "sparsefed.commands.reproduce.run",
    "sweep": "sparsefed.sweeps.sweep",
    "sweep_file": "sparsefed.commands.sweep",
    "tune": "sparsefed.commands.tune",
    "watch": "sparsefed.commands.watch",
}
_MODULES = ("attacks", "config", "data", "defenses", "flower", "models", "schedules", "trackers")

__all__ = [
    "Chosen",
    "Server",
    "ServerStep",
    "Simulation",
    "SparseFedError",
    "ThreatModel",
    "__version__",
    "aggregate",
    "attacks",
    "audit",
    "certify",
    "choose_k",
    "config",
    "data",
    "defenses",
    "deploy",
    "flower",
    "models",
    "partitions",
    "report",
    "reproduce",
    "schedules",
    "sweep",
    "sweep_file",
    "trackers",
    "tune",
    "watch",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("sparsefed")
    if name in _MODULES:
        return import_module(f"sparsefed.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'sparsefed' has no attribute '{name}'")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
