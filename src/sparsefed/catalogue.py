"""Every name a config can use, read off the literal dicts, so that what is listed is what there is."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from rich.table import Table

from sparsefed import data
from sparsefed.attacks import ATTACKS
from sparsefed.client import ENGINES
from sparsefed.data.partition import PARTITIONS
from sparsefed.defenses import DEFENSES, PRESETS
from sparsefed.federation import SAMPLING
from sparsefed.models import MODELS
from sparsefed.parameters import parameters
from sparsefed.schedule import SCHEDULES

Entry = dict[str, Any]


def catalogue() -> dict[str, list[Entry]]:
    """Kind -> entries with name, summary and parameters."""
    return {
        "defenses": [
            {**_entry(name, rule.builder, hidden={"mode", "preset"}), "paper": rule.paper, "needs": rule.needs}
            for name, rule in DEFENSES.items()
        ],
        "attacks": [_entry(name, builder, skip=1) for name, builder in ATTACKS.items()],
        "models": [_entry(name, builder, skip=2) for name, builder in MODELS.items()],
        "data sets": [{"name": name, "summary": record.description} for name, record in data.DATASETS.items()],
        "partitions": _plain(PARTITIONS),
        "sampling": _plain(SAMPLING),
        "schedules": _plain(SCHEDULES),
        "engines": _plain(ENGINES),
        "presets": [{"name": name, "summary": str(preset)} for name, preset in PRESETS.items()],
    }


def catalogue_tables(entries: Mapping[str, list[Entry]]) -> Iterator[Table]:
    """One table for each kind."""
    for kind, rows in entries.items():
        table = Table(title=kind, title_justify="left", title_style="bold")
        columns = [key for key in ("name", "summary", "parameters", "needs", "paper") if any(key in r for r in rows)]
        for column in columns:
            table.add_column(column, overflow="fold")
        for row in rows:
            table.add_row(*[_cell(row.get(column, "")) for column in columns])
        yield table


def _entry(name: str, builder: Callable[..., Any], skip: int = 0, hidden: Collection[str] = ()) -> Entry:
    found = [p for p in parameters(builder, skip) if p.name not in hidden]
    return {
        "name": name,
        "summary": _summary(builder),
        "parameters": [
            {"name": p.name, "type": p.type, "required": p.required, "default": p.default, "doc": p.doc} for p in found
        ],
    }


def _plain(known: Mapping[str, Callable[..., Any]]) -> list[Entry]:
    return [{"name": name, "summary": _summary(item)} for name, item in known.items()]


def _summary(item: Callable[..., Any]) -> str:
    return (item.__doc__ or "").strip().partition("\n")[0]


def _cell(value: Any) -> str:
    if isinstance(value, list):
        return "\n".join(p["name"] + ("" if p["required"] else f" = {p['default']}") for p in value)
    return str(value).replace("[", r"\[")
