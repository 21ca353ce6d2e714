"""Pre-aggregations by name: transforms of a round's rows before any rule sees them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sparsefed.core.errors import ConfigError, unknown
from sparsefed.core.signatures import check_arguments, parameters, shown
from sparsefed.defenses.arc import arc
from sparsefed.defenses.bucketing import bucketing
from sparsefed.defenses.combine import Pre
from sparsefed.defenses.nnm import nnm

MOST = 8  # in a row; more would mix everything with everything

PRE: Mapping[str, Callable[..., Pre]] = {"nnm": nnm, "bucketing": bucketing, "arc": arc}


def pre_aggregations(entries: str | Sequence[str | Mapping[str, Any]], f: int | None) -> tuple[Pre, ...]:
    """Return the functions that these entries name; one that takes f and is given none gets the rule's."""
    listed = [entries] if isinstance(entries, (str, Mapping)) else entries
    if len(listed) > MOST:
        raise ConfigError(f"pre has {len(listed)} pre-aggregations, one after the other; use {MOST} at most")
    return tuple(_one(entry, f) for entry in listed)


def _one(entry: str | Mapping[str, Any], f: int | None) -> Pre:
    given = {"name": entry} if isinstance(entry, str) else dict(entry)
    name = str(given.pop("name", ""))
    if name not in PRE:
        raise ConfigError(unknown("pre-aggregation", shown(name)[1:-1], PRE))
    takes_f = any(p.name == "f" for p in parameters(PRE[name]))
    params = {"f": f, **given} if takes_f and f is not None else given
    check_arguments(f"pre-aggregation {name}", PRE[name], params)
    return PRE[name](**params)
