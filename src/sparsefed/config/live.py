"""Live objects in a config: a module, arrays or a function that cannot be written down is named `live:...`.

One description and one set of checks thus serve both TOML and Python. Such a name is valid in this process only, and
for as long as the object is alive (a `Simulation` keeps its own alive).
"""

from __future__ import annotations

import itertools
import re
import weakref
from collections.abc import Mapping
from typing import Any

from sparsefed.core.errors import ConfigError

PREFIX = "live:"

_objects: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()
_numbers = itertools.count(1)


def refer(thing: Any) -> str:
    """Return the name by which configs of this process can refer to an object; equal for the same object."""
    for name, known in list(_objects.items()):
        if known is thing:
            return name
    title = getattr(thing, "__name__", type(thing).__name__)
    name = f"{PREFIX}{re.sub(r'[^A-Za-z0-9_]', '', title) or 'object'}-{next(_numbers)}"
    _objects[name] = thing
    return name


def referred(name: str) -> Any:
    """Return the object of a `live:` name; raise ConfigError if it is gone or of another process."""
    thing = _objects.get(name)
    if thing is None:
        raise ConfigError(
            f"'{name}' is an object of another Python process, or of a Simulation that is gone; build the Simulation "
            "again in Python, with that object"
        )
    return thing


def live_names(table: Mapping[str, Any]) -> list[str]:
    """Return the keys of a config's table whose values are live objects of this process.

    >>> live_names({"model": {"name": "live:Net-1"}, "train": {"lr": 0.1}})
    ['model.name']
    """
    keys = []
    for key, value in table.items():
        if isinstance(value, Mapping):
            keys += [f"{key}.{inner}" for inner in live_names(value)]
        elif isinstance(value, str) and value.startswith(PREFIX):
            keys.append(key)
    return keys


def numberless(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return the table with `live:Net` for `live:Net-7`, which is equal in two processes that build alike."""
    return {
        key: numberless(value)
        if isinstance(value, Mapping)
        else re.sub(r"-\d+$", "", value)
        if isinstance(value, str) and value.startswith(PREFIX)
        else value
        for key, value in table.items()
    }
