"""Every name a config can use, read off the literal dicts and the config's own records, so that what is listed is what
there is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from types import MappingProxyType
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from rich.markup import escape
from rich.table import Table

from sparsefed import data
from sparsefed.attacks import ATTACKS, Attacker
from sparsefed.client import ENGINES
from sparsefed.config import Config
from sparsefed.data.augment import AUGMENTATIONS
from sparsefed.data.partition import PARTITIONS
from sparsefed.defenses import DEFENSES, PRE, PRESETS, Frame
from sparsefed.errors import ConfigError, unknown
from sparsefed.federation import SAMPLING
from sparsefed.models import MODELS
from sparsefed.parameters import parameters, readable
from sparsefed.schedule import SCHEDULES

Entry = dict[str, Any]
NOTHING: Mapping[str, Any] = MappingProxyType({})

# Where in a config each kind is named.
KEYS = {
    "defenses": "defense.name",
    "beside every defense": "defense",
    "pre-aggregations": "defense.pre",
    "attacks": "attack.name",
    "models": "model.name",
    "data sets": "data.name",
    "partitions": "data.partition",
    "augmentations": "data.augment",
    "sampling": "train.sampling",
    "schedules": "train.schedule",
    "engines": "train.engine",
    "presets": "train.preset",
}


COLUMNS = ("name", "type", "default", "summary", "goal", "needs", "parameters")
NEEDS = (
    "needs: what a rule must see beyond norms and sums. rows: the updates themselves, a block at a time; all rows: "
    "every update of a round at once, so that memory grows with the cohort; history: who sent what in earlier rounds; "
    "root: clean examples of the server's own (data.root); layers: which coordinates make up a layer; model: the "
    "current model."
)


def catalogue() -> dict[str, list[Entry]]:
    """Kind -> entries with name, summary and parameters; last, every key of a config with its default."""
    return {
        "defenses": [
            {**_entry(name, rule.builder, beside=rule.usual), "paper": rule.paper, "needs": list(rule.needs)}
            for name, rule in DEFENSES.items()
        ],
        "beside every defense": [
            {"name": p.name, "type": p.type, "default": p.default, "summary": p.doc}
            for p in parameters(Frame)
            if p.name not in ("mode", "preset")
        ],
        "pre-aggregations": [_entry(name, builder) for name, builder in PRE.items()],
        "attacks": [_attack(name, attacker) for name, attacker in ATTACKS.items()],
        "models": [_entry(name, builder, skip=2) for name, builder in MODELS.items()],
        "data sets": [{"name": name, "summary": record.description} for name, record in data.DATASETS.items()],
        "partitions": [_entry(name, rule, skip=5) for name, rule in PARTITIONS.items()],
        "augmentations": _plain(AUGMENTATIONS),
        "sampling": _plain(SAMPLING),
        "schedules": _plain(SCHEDULES),
        "engines": _plain(ENGINES),
        "presets": [{"name": name, "summary": _facts(asdict(preset))} for name, preset in PRESETS.items()],
        "config keys": list(_keys(Config, Config())),
    }


def narrowed(entries: Mapping[str, list[Entry]], what: str) -> dict[str, list[Entry]]:
    """One kind, or every entry of one name; all of it if nothing is asked for."""
    if not what:
        return dict(entries)
    if what in entries:
        return {what: entries[what]}
    found = {kind: [entry for entry in listed if entry["name"] == what] for kind, listed in entries.items()}
    if not any(found.values()):
        names = {entry["name"] for kind, listed in entries.items() if kind != "config keys" for entry in listed}
        raise ConfigError(unknown("kind or name", what, [*entries, *sorted(names)]))
    return {kind: listed for kind, listed in found.items() if listed}


def catalogue_tables(entries: Mapping[str, list[Entry]]) -> Iterator[Table]:
    """One table for each kind."""
    for kind, rows in entries.items():
        where = f" ({KEYS[kind]})" if kind in KEYS else ""
        table = Table(title=kind + where, title_justify="left", title_style="bold", show_lines=kind == "defenses")
        columns = [key for key in COLUMNS if any(key in r for r in rows)]
        table.caption = NEEDS if kind == "defenses" else None
        table.caption_justify = "left"
        for column in columns:
            table.add_column(column, overflow="fold", no_wrap=column == "name")
        for row in rows:
            table.add_row(*[_cell(row, column) for column in columns])
        yield table


def _keys(table: type[BaseModel], usual: BaseModel | None, above: str = "") -> Iterator[Entry]:
    """Every key of a table and of those in it, with the value it has in the usual config."""
    for name, field in table.model_fields.items():
        inner, value = _table(field), getattr(usual, name, None)
        if inner is not None:
            yield from _keys(inner, value, f"{above}{name}.")
        else:
            default = value if usual or field.is_required() else field.get_default()
            yield {"name": above + name, "type": readable(field.annotation), "default": default}


def _table(field: FieldInfo) -> type[BaseModel] | None:
    options = getattr(field.annotation, "__args__", (field.annotation,))
    return next((option for option in options if isinstance(option, type) and issubclass(option, BaseModel)), None)


def _entry(name: str, builder: Callable[..., Any], skip: int = 0, beside: Mapping[str, Any] = NOTHING) -> Entry:
    """`beside`: the parameters of the frame that have a default of their own here."""
    found = [asdict(p) for p in parameters(builder, skip)]
    found += [{**asdict(p), "default": beside[p.name]} for p in parameters(Frame) if p.name in beside]
    return {"name": name, "summary": _summary(builder), "parameters": found}


def _attack(name: str, attacker: Attacker) -> Entry:
    entry = _entry(name, attacker.method, skip=1)
    after = [asdict(p) for p in parameters(attacker.goal, 1)]
    goal = {"goal": _summary(attacker.goal), "paper": attacker.paper}
    return {**entry, **goal, "parameters": after + entry["parameters"]}


def _plain(known: Mapping[str, Callable[..., Any]]) -> list[Entry]:
    return [{"name": name, "summary": _summary(item)} for name, item in known.items()]


def _summary(item: Callable[..., Any]) -> str:
    return (item.__doc__ or "").strip().partition("\n")[0]


def _facts(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} = {value}" for key, value in values.items())


def _cell(row: Entry, column: str) -> str:
    value = row.get(column)
    if column == "parameters":
        return "\n".join(map(_parameter, value or []))
    if column == "needs":
        return "\n".join(value or ["-"])
    cite = f"\n[dim]{escape(row['paper'])}[/dim]" if column == "summary" and "paper" in row else ""
    text = f"{value:.4g}" if isinstance(value, float) else "" if value is None else str(value)
    return escape(text) + cite


def _parameter(found: Mapping[str, Any]) -> str:
    """`name = default` and what it means."""
    default = " (required)" if found["required"] else "" if found["default"] is None else f" = {found['default']}"
    return escape(found["name"] + default) + (f"\n  [dim]{escape(found['doc'])}[/dim]" if found["doc"] else "")
