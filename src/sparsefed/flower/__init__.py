"""The same rules in Flower: a strategy that lying and dying clients cannot stop, and the client's side of it.

    strategy = sparsefed.flower.Strategy("sparsefed", k=1000, clip_norm=5.0, lr=0.1)     # in a ServerApp
    app = sparsefed.flower.client(Net, load_my_data)                                     # a ClientApp

Flower is an extra with an environment of its own; nothing of it is imported before a name here is used.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from sparsefed.core.errors import ConfigError

if TYPE_CHECKING:
    from sparsefed.flower.apps import client_app, server_app
    from sparsefed.flower.client import client, clip
    from sparsefed.flower.door import Admitted, Refusal, ReplyFormat, Request, admit
    from sparsefed.flower.faults import fault
    from sparsefed.flower.leader import Secure
    from sparsefed.flower.red_team import red_team
    from sparsefed.flower.strategy import Strategy

_HOMES = {
    "Admitted": "door",
    "Refusal": "door",
    "ReplyFormat": "door",
    "Request": "door",
    "Secure": "leader",
    "Strategy": "strategy",
    "admit": "door",
    "client": "client",
    "client_app": "apps",
    "clip": "client",
    "fault": "faults",
    "red_team": "red_team",
    "server_app": "apps",
}
_WITHOUT_FLOWER = ("door",)  # modules that do not need flwr

__all__ = [
    "Admitted",
    "Refusal",
    "ReplyFormat",
    "Request",
    "Secure",
    "Strategy",
    "admit",
    "client",
    "client_app",
    "clip",
    "fault",
    "red_team",
    "server_app",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'sparsefed.flower' has no attribute '{name}'")
    if _HOMES[name] not in _WITHOUT_FLOWER and find_spec("flwr") is None:
        raise ConfigError(
            f"sparsefed.flower.{name} needs Flower, which is not installed; install it in an environment of its own: "
            "pip install -c constraints-flower.txt 'sparsefed[flower]'"
        )
    return getattr(import_module(f"sparsefed.flower.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
