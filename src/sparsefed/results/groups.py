"""Grouping of runs by their configs alone: equal settings, equal defenses, equal attacks."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from sparsefed.core import toml
from sparsefed.core.types import RunRecord

ASIDE = ("name", "seed", "evaluate_every", "checkpoint_every")  # keys in which repeated runs may differ
K = TypeVar("K", bound=Hashable)
T = TypeVar("T")
Facts = Mapping[str, str]  # a config, flat: 'defense.k' -> '1000'


def flat(config: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, str]]:
    """Yield every value of a config under its dotted path, written as TOML."""
    for key, item in config.items():
        if isinstance(item, Mapping):
            yield from flat(item, f"{path}{key}.")
        elif item is not None:
            yield f"{path}{key}", toml.value(item)


def facts(run: RunRecord, only: Sequence[str] = (), without: Sequence[str] = ()) -> dict[str, str]:
    """Return a run's config as flat facts: only some of its tables and keys, or all but some."""
    chosen = {
        key: item for key, item in run.config.items() if key not in (*ASIDE, *without) and (not only or key in only)
    }
    return dict(flat(chosen))


def grouped(keys: Iterable[K], items: Iterable[T]) -> dict[K, list[T]]:
    """Return the items of equal keys together, in order of first occurrence."""
    groups: dict[K, list[T]] = {}
    for key, item in zip(keys, items, strict=True):
        groups.setdefault(key, []).append(item)
    return groups


def frozen(facts: Facts) -> Hashable:
    """Return facts as a hashable key."""
    return tuple(sorted(facts.items()))


def keys(facts: Iterable[Facts]) -> list[str]:
    """Return every key that occurs in any of the facts, in order of first occurrence."""
    return list(dict.fromkeys(key for each in facts for key in each))


def differing(facts: Sequence[Facts]) -> list[str]:
    """Return the keys on which the facts disagree."""
    return [key for key in keys(facts) if len({each.get(key) for each in facts}) > 1]


def told_apart(named: Sequence[tuple[str, Facts]]) -> list[str]:
    """Return the names, with the differing facts appended to those that occur more than once.

    >>> told_apart([("krum", {"defense.f": "1"}), ("krum", {"defense.f": "2"}), ("mean", {})])
    ['krum (f = 1)', 'krum (f = 2)', 'mean']
    """
    return [_label(name, own, [other for same, other in named if same == name]) for name, own in named]


def _label(name: str, own: Facts, alike: Sequence[Facts]) -> str:
    shown = [f"{key.split('.', 1)[-1]} = {own[key].strip(chr(34))}" for key in differing(alike) if key in own]
    return f"{name} ({', '.join(shown)})" if shown else name
