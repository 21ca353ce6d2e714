"""The value that `krum(f=2)`, `pgd(epochs=5)` or `dirichlet(alpha=0.1)` returns: a function and its parameters.

Rules, attacks, goals, partitions and schedules cannot be built where they are chosen: a rule must know how devices
train, an attack needs the data. Choosing one therefore only records the choice; `Simulation`, `Server` and configs
build it later. A choice with a registered (or importable) name can be written to a config and read back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sparsefed.core.errors import ConfigError


@dataclass(frozen=True)
class Chosen:
    """A rule, attack, goal, partition or schedule that has been chosen but not built, with its parameters."""

    kind: str  # "defense", "attack", "goal", "partition", "schedule"
    name: str  # as a config writes it: "krum", "my_module:my_rule"; "" if it has no importable name
    function: Callable[..., Any]
    parameters: Mapping[str, Any] = field(default_factory=dict)

    def to_config(self) -> dict[str, Any]:
        """Return the config table of this choice: its name, with the parameters beside it."""
        if not self.name:
            raise ConfigError(
                f"this {self.kind} cannot be written into a config: it is no function at the top of a module that can "
                "be imported; define it there, or keep it in Python"
            )
        return {"name": self.name, **self.parameters}

    def __repr__(self) -> str:
        given = ", ".join(f"{key}={value!r}" for key, value in self.parameters.items())
        return f"{self.name or getattr(self.function, '__name__', self.kind)}({given})"


def importable_name(function: Callable[..., Any]) -> str:
    """Return `module:function` if importing that yields this very function, else ''.

    >>> from math import sqrt
    >>> importable_name(sqrt), importable_name(lambda: 0)
    ('math:sqrt', '')
    """
    import importlib

    module, name = getattr(function, "__module__", ""), getattr(function, "__qualname__", "")
    if not module or module == "__main__" or not name.isidentifier():
        return ""
    there = getattr(importlib.import_module(module), name, None)
    return f"{module}:{name}" if there is function else ""


def named(function: Callable[..., Any], home: str) -> str:
    """Return a function's name in a config: its own name if its module is under `home`, else `module:function`."""
    ours = getattr(function, "__module__", "").startswith(home)
    return str(getattr(function, "__name__", "")) if ours else importable_name(function)


def positional(name: str, order: Sequence[str], args: Sequence[Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return all arguments by name, matching the positional ones to `order`."""
    if len(args) > len(order):
        raise ConfigError(f"{name} takes {len(order)} arguments by position, but was given {len(args)}; name the rest")
    places = dict(zip(order, args, strict=False))
    for key in places.keys() & given:
        raise ConfigError(f"{name} was given {key} twice, by position and by name")
    return {**places, **given}
