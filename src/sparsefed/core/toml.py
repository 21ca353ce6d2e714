"""TOML serialisation of configs, so that a shown config can be saved and rerun; the standard library only reads."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any


def dumps(config: Mapping[str, Any]) -> str:
    """Return the config as TOML, without None, which TOML cannot express.

    >>> print(dumps({"seed": 1, "model": {"name": "cnn", "widths": [8, 16]}}))
    seed = 1
    <BLANKLINE>
    [model]
    name = "cnn"
    widths = [8, 16]
    """
    return "\n\n".join(part for part in _tables((), config) if part)


def _tables(path: tuple[str, ...], table: Mapping[str, Any]) -> list[str]:
    plain = [f"{_key(k)} = {value(v)}" for k, v in table.items() if v is not None and not isinstance(v, Mapping)]
    nested = {k: v for k, v in table.items() if isinstance(v, Mapping)}
    head = [f"[{'.'.join(map(_key, path))}]"] if path and (plain or not nested) else []
    return ["\n".join(head + plain)] + [part for k, v in nested.items() for part in _tables((*path, k), v)]


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _string(name)


def _string(text: str) -> str:
    # JSON's escapes are TOML's, except for the one control character that JSON does not escape.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def value(item: Any) -> str:
    """Return one value in TOML syntax.

    >>> value(True), value([1, 2.5]), value({"k": "v"})
    ('true', '[1, 2.5]', '{k = "v"}')
    """
    if isinstance(item, bool):
        return "true" if item else "false"
    if isinstance(item, (int, float)):
        return repr(item)
    if isinstance(item, (list, tuple)):
        return f"[{', '.join(value(part) for part in item if part is not None)}]"
    if isinstance(item, Mapping):
        return f"{{{', '.join(f'{_key(k)} = {value(v)}' for k, v in item.items() if v is not None)}}}"
    return _string(str(item))
