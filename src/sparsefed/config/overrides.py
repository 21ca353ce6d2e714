"""Overrides: `key=value` on top of a config, as `--set` takes them; with several values they are several configs.

- A key without its table is enough where only one table takes it: `k=500` is `defense.k=500`.
- Another name for the model, defense or attack drops the parameters that the new one does not take, and says so.
- `defense.k=100,1000` stands for two configs; a list of TOML is in brackets.
"""

from __future__ import annotations

import logging
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any

from pydantic import BaseModel

from sparsefed.config import templates as bases
from sparsefed.config.lookup import takes
from sparsefed.config.schema import Config, DataTable, SecureTable, ThreatTable, TrainTable
from sparsefed.core.errors import ConfigError, quoted

log = logging.getLogger(__name__)

TABLES: Mapping[str, type[BaseModel]] = {
    "data": DataTable,
    "train": TrainTable,
    "threat": ThreatTable,
    "secure": SecureTable,
}


def apply(table: dict[str, Any], overrides: Sequence[str]) -> None:
    """Change a config in place; names are set first, because parameters belong to them."""
    pairs = [_pair(table, override) for override in overrides]
    given = {key for key, _ in pairs}
    for key, text in sorted(pairs, key=lambda pair: not _is_name(pair[0])):
        if _is_name(key):
            _drop_parameters(table, key.partition(".")[0], value_of(text), given)
        _set(table, key, text)


def several(overrides: Sequence[str]) -> list[list[str]]:
    """Return the overrides of each config, one for every combination of the values between commas.

    >>> several(["defense.k=10,20", "threat.ids=[1,2]"])
    [['defense.k=10', 'threat.ids=[1,2]'], ['defense.k=20', 'threat.ids=[1,2]']]
    """
    choices = []
    for override in overrides:
        key, equals, text = override.partition("=")
        choices.append([f"{key}{equals}{part}" for part in _parts(text)])
    return [list(each) for each in product(*choices)]


def value_of(text: str) -> Any:
    """Parse a value in TOML syntax; text that is not valid TOML is a string."""
    try:
        table = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text.strip()
    return table["value"] if len(table) == 1 else text.strip()


def _parts(text: str) -> Iterator[str]:
    """Yield the values between the commas that stand outside of brackets and quotes."""
    depth, quote, begin = 0, "", 0
    for i, char in enumerate(text):
        if quote:
            quote = "" if char == quote else quote
        elif char in "\"'":
            quote = char
        elif char in "[{(":
            depth += 1
        elif char in "]})":
            depth -= 1
        elif char == "," and depth == 0:
            yield text[begin:i].strip()
            begin = i + 1
    yield text[begin:].strip() if begin else text


def _pair(table: Mapping[str, Any], override: str) -> tuple[str, str]:
    key, equals, text = override.partition("=")
    parts = [part.strip() for part in key.split(".")]
    if not equals or not all(parts):
        raise ConfigError(f"--set takes key=value, for instance --set defense.k=1000, but was given {quoted(override)}")
    return (_whole_key(table, parts[0]) if len(parts) == 1 else ".".join(parts)), text


def _whole_key(table: Mapping[str, Any], key: str) -> str:
    """Return a key with its table, if it lacks one and only one table takes it."""
    if key in Config.model_fields:
        return key
    owners = [name for name, schema in TABLES.items() if key in schema.model_fields]
    owners += [name for name in bases.NAMED if key in (takes(name, _name(table, name)) or ())]
    if len(owners) > 1:
        both = " and ".join(f"{owner}.{key}" for owner in owners)
        raise ConfigError(f"--set {key}=... could be {both}; write one of them")
    return f"{owners[0]}.{key}" if owners else key


def _name(table: Mapping[str, Any], kind: str) -> str:
    """Return the name of a config's model, defense or attack, which its base or the schema may give."""
    base = table.get("base")
    default = getattr(Config.model_fields[kind].default, "name", "")
    for source in (table, bases.load(base) if isinstance(base, str) and base in bases.names() else {}):
        part = source.get(kind)
        if isinstance(part, Mapping) and isinstance(part.get("name"), str):
            return str(part["name"])
    return str(default)


def _is_name(key: str) -> bool:
    return key in {f"{kind}.name" for kind in bases.NAMED}


def _drop_parameters(table: dict[str, Any], kind: str, name: Any, given: set[str]) -> None:
    """Remove the parameters of the old name that the new one does not take, unless they are given anew."""
    part = table.get(kind)
    if not isinstance(part, dict) or not isinstance(name, str) or part.get("name") == name:
        return
    taken = takes(kind, name)
    left = [key for key in part if key != "name" and f"{kind}.{key}" not in given]
    dropped = [key for key in left if taken is not None and key not in taken]
    for key in dropped:
        del part[key]
    if dropped:
        kept = [f"{key} = {part[key]}" for key in left if key in part]
        also = f"; kept {', '.join(kept)}" if kept else ""
        log.warning("%s.name=%s: left out %s, which %s does not take%s", kind, name, ", ".join(dropped), name, also)


def _set(table: dict[str, Any], key: str, text: str) -> None:
    *path, last = key.split(".")
    bases.replace(table, key)
    for part in path:
        table = table.setdefault(part, {})
        if not isinstance(table, dict):
            raise ConfigError(f"--set {quoted(f'{key}={text}')}: '{part}' is a value, not a table")
    table[last] = value_of(text)
