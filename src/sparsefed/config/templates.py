"""Base configs: settings to start from, one TOML file each, and the rules for writing a config on top of one.

Not to be confused with `train.preset`, which says where learning rate and clip are applied. A base is a plain table
like a user's own; the user's config takes precedence, key by key, and:

- a table that names another model, defense or attack replaces the base's table, because parameters belong to the name;
- a key that expresses the same setting in other terms (`rounds` and `epochs`) replaces the base's;
- another schedule drops the base's peak.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any

from sparsefed.core.errors import ConfigError, unknown

Table = dict[str, Any]

NAMED = ("model", "defense", "attack")
TIMES = (("rounds", "epochs"), ("train.peak_at", "train.peak_epoch"))  # the same setting in other terms
INSTEAD = (*TIMES, ("threat.share", "threat.count", "threat.ids", "threat.per_round"))


def names() -> list[str]:
    """Return the names of all bases, as `data set/setting`."""
    return sorted(name for name, _ in _files())


def load(name: str) -> Table:
    """Load the table of a base."""
    return tomllib.loads(_text(name))


def summary(name: str) -> str:
    """Return the description of a base: the first line of its file."""
    return _text(name).partition("\n")[0].removeprefix("# ")


def over(base: Mapping[str, Any], given: Mapping[str, Any]) -> Table:
    """Return the given config merged over the base.

    >>> over({"epochs": 2, "model": {"name": "cnn", "width": 4}}, {"rounds": 7, "model": {"width": 8}})
    {'model': {'name': 'cnn', 'width': 8}, 'rounds': 7}
    >>> over({"model": {"name": "cnn", "width": 4}}, {"model": {"name": "softmax"}})
    {'model': {'name': 'softmax'}}
    """
    merged = {key: dict(item) if isinstance(item, Mapping) else item for key, item in base.items()}
    for key in _keys(given):
        replace(merged, key, INSTEAD)
    if _found(given, "train.schedule") not in (None, _found(base, "train.schedule")):
        for key in TIMES[1]:
            _drop(merged, key)
    for key, item in given.items():
        below = merged.get(key)
        if isinstance(below, dict) and isinstance(item, Mapping) and not _renamed(key, below, item):
            merged[key] = {**below, **item}
        else:
            merged[key] = dict(item) if isinstance(item, Mapping) else item
    return merged


def replace(table: Table, key: str, groups: tuple[tuple[str, ...], ...] = TIMES) -> None:
    """Remove from a table, in place, every key that expresses the same setting as `key`."""
    for group in groups:
        if key in group:
            for other in group:
                _drop(table, other)


def refuse_both(table: Mapping[str, Any]) -> None:
    """Raise ConfigError if a config sets the peak twice."""
    one, other = TIMES[1]
    if _found(table, one) is not None and _found(table, other) is not None:
        raise ConfigError(
            f"{one} = {_found(table, one)} and {other} = {_found(table, other)} both place the peak; give one of them"
        )


def _files() -> Iterator[tuple[str, Traversable]]:
    for folder in resources.files("sparsefed").joinpath("config/files/presets").iterdir():
        if folder.is_dir():
            for file in folder.iterdir():
                if file.name.endswith(".toml"):
                    yield f"{folder.name}/{file.name.removesuffix('.toml')}", file


def _text(name: str) -> str:
    found = dict(_files())
    if name not in found:
        raise ConfigError(unknown("base", name, found))
    return found[name].read_text(encoding="utf-8")


def _renamed(key: str, below: Mapping[str, Any], given: Mapping[str, Any]) -> bool:
    return key in NAMED and "name" in given and given["name"] != below.get("name")


def _keys(table: Mapping[str, Any]) -> Iterator[str]:
    """Yield every key, those of nested tables as `table.key`."""
    for key, item in table.items():
        yield key
        if isinstance(item, Mapping):
            yield from (f"{key}.{inner}" for inner in item)


def _found(table: Mapping[str, Any], key: str) -> Any:
    *above, last = key.split(".")
    for part in above:
        table = table.get(part, {}) if isinstance(table, Mapping) else {}
    return table.get(last) if isinstance(table, Mapping) else None


def _drop(table: Table, key: str) -> None:
    *above, last = key.split(".")
    for part in above:
        table = table.get(part, {})
    if isinstance(table, dict):
        table.pop(last, None)
