"""The JSON files that LEAF's scripts write (Caldas et al. 2018): examples by user, some hundred users per file.

{"users": [name, ...], "num_samples": [count, ...], "user_data": {name: {"x": [...], "y": [...]}, ...}}
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import IO, Any, NamedTuple, TypeVar

from sparsefed.data.record import Content, DamagedError

T = TypeVar("T")
KEYS = ("users", "num_samples", "user_data")


class Owned(NamedTuple):
    """One user's examples, as the file states them."""

    user: str
    x: list[Any]
    y: list[Any]


def each_user(content: Content, name: str, convert: Callable[[Owned], T]) -> Iterator[T]:
    """Yield `convert` of each user, a file at a time; a DamagedError that it raises is blamed on the file."""
    for path in content.paths(name):
        with content.open(path) as stream:
            converted = [convert(owned) for owned in _users(parsed(stream))]
        yield from converted


def parsed(stream: IO[bytes]) -> Any:
    """Return the object in a JSON file, or raise DamagedError."""
    try:
        return json.load(stream)
    except (ValueError, RecursionError) as error:
        raise DamagedError(f"is no JSON file, or is cut short ({error})") from error


def _users(found: Any) -> Iterator[Owned]:
    users, counts, data = ((found.get(k) if isinstance(found, dict) else None) for k in KEYS)
    if not isinstance(users, list) or not isinstance(counts, list) or not isinstance(data, dict):
        raise DamagedError(f"is no file of LEAF's: it should hold {', '.join(KEYS)}")
    if len(users) != len(counts) or len(set(map(str, users))) != len(users):
        raise DamagedError(
            f"is damaged: it states {len(counts)} counts for {len(set(map(str, users)))} different users"
        )
    for user, count in zip(users, counts, strict=True):
        yield _owned(str(user), count, data.get(str(user)))


def _owned(user: str, count: Any, data: Any) -> Owned:
    x, y = (data.get("x"), data.get("y")) if isinstance(data, dict) else (None, None)
    if not isinstance(x, list) or not isinstance(y, list) or not len(x) == len(y) == count:
        raise DamagedError(f"is damaged: the user {user} should have {count} examples x and labels y")
    return Owned(user, x, y)
