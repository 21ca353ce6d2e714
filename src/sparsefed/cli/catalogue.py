"""The catalogue of every name a config can use, read from the registries and the config's own records."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import asdict
from typing import Any

from rich.markup import escape
from rich.table import Table
from torch import nn

from sparsefed import data
from sparsefed.attacks import ATTACKS, NEEDS, Attacker, Need, attack_info
from sparsefed.config import resolve
from sparsefed.config import templates as bases
from sparsefed.config.reference import keys
from sparsefed.core.errors import ConfigError, quoted
from sparsefed.core.federation import SAMPLING
from sparsefed.core.schedule import SCHEDULES
from sparsefed.core.signatures import parameters
from sparsefed.core.task import make_task
from sparsefed.data.augment import AUGMENTATIONS
from sparsefed.data.partitions.partition import PARTITIONS
from sparsefed.defenses import DEFENSES, PRE, PRESETS, CommonOptions, RuleInfo, rule_info
from sparsefed.engines import ENGINES
from sparsefed.engines.batched_pass import unknown_layers
from sparsefed.models import MODELS, model_info
from sparsefed.models.outline import outline

Entry = dict[str, Any]

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
    "bases": "base",
}
ALSO = {"presets": ("bases",)}  # other kinds that a user may mean by this word
COLUMNS = ("name", "type", "default", "summary", "needs", "size", "engine", "parameters")
CAPTIONS = {
    "defenses": "needs: what a rule must see beyond norms and sums. rows: the updates themselves, a block at a time; "
    "all rows: every update of a round at once, so that memory grows with the cohort; history: who sent what in "
    "earlier rounds; root: clean examples of the server's own (data.root); layers: which coordinates make up a layer; "
    "model: the current model.",
    "attacks": "needs: what attackers must be granted in threat.knowledge, beyond what everybody knows (the model, "
    "the learning rate, the norm that the server enforces). own data: what the compromised devices of the round hold; "
    "honest updates: what the others of the round send; defense: the server's rule, to try out what it would make of "
    "any updates; server state: its momentum and memory. The parameters of an attack's goal and of its method stand "
    "side by side in [attack].",
}
NARROW = len("honest updates")  # the longest need: the text beside it needs the space more


def catalogue() -> dict[str, list[Entry]]:
    """Return kind -> entries with name, summary and parameters; last, every key of a config with its default."""
    return {
        "defenses": [
            {**_entry(name, info.builder, usual=info.usual), "paper": info.paper, "needs": list(info.needs)}
            for name, info in ((name, rule_info(rule)) for name, rule in DEFENSES.items())
        ],
        "beside every defense": [
            {"name": p.name, "type": p.type, "default": p.default, "summary": p.doc}
            for p in parameters(CommonOptions)
            if p.name not in ("mode", "preset", "local_lr")
        ],
        "pre-aggregations": [_entry(name, builder) for name, builder in PRE.items()],
        "attacks": [_attack(name, attack_info(attack)) for name, attack in ATTACKS.items()],
        "models": [_model(name, builder) for name, builder in MODELS.items()],
        "data sets": [{"name": name, "summary": record.description} for name, record in data.DATASETS.items()],
        "partitions": [_entry(name, rule, skip=5) for name, rule in PARTITIONS.items()],
        "augmentations": _plain(AUGMENTATIONS),
        "sampling": _plain(SAMPLING),
        "schedules": [_entry(name, builder, skip=2) for name, builder in SCHEDULES.items()],
        "engines": _plain(ENGINES),
        "presets": [
            {"name": name, "summary": ", ".join(f"{key} = {value}" for key, value in asdict(preset).items())}
            for name, preset in PRESETS.items()
        ],
        "bases": [{"name": name, "summary": bases.summary(name)} for name in bases.names()],
        "config keys": [
            {"name": key.name, "type": key.type, "default": key.default, "summary": key.about} for key in keys()
        ],
    }


def narrowed(entries: Mapping[str, list[Entry]], what: str) -> dict[str, list[Entry]]:
    """Return one kind, or every entry of one name; everything if neither is requested."""
    if not what:
        return dict(entries)
    if what in entries:
        return {kind: entries[kind] for kind in (what, *ALSO.get(what, ())) if kind in entries}
    if ":" in what:
        return {"your own": [own_entry(what)]}
    matches = {kind: [entry for entry in listed if entry["name"] == what] for kind, listed in entries.items()}
    if not any(matches.values()):
        names = {entry["name"] for kind, listed in entries.items() if kind != "config keys" for entry in listed}
        close = difflib.get_close_matches(what, [*entries, *sorted(names)], n=1)
        hint = f" (did you mean '{close[0]}'?)" if close else ""
        raise ConfigError(
            f"unknown name {quoted(what)}{hint}; kinds are {', '.join(entries)}, and names stand under each"
        )
    return {kind: listed for kind, listed in matches.items() if listed}


def own_entry(name: str) -> Entry:
    """Return the entry of a rule, an attack, a model or anything else of the user's, named as module:function."""
    found = resolve("name", name, {})
    info = getattr(found, "info", None)
    if isinstance(info, RuleInfo):
        return {**_entry(name, info.builder, usual=info.usual), "paper": info.paper, "needs": list(info.needs)}
    if isinstance(info, Attacker):
        return _attack(name, info)
    if not callable(found):
        return {"name": name, "summary": f"a {type(found).__name__}"}
    return _entry(name, found)


def catalogue_lines(entries: Mapping[str, list[Entry]]) -> Iterator[str]:
    """Yield a heading for each kind, and one line for each of its names; markup is allowed."""
    for kind, rows in entries.items():
        where = f" ({KEYS[kind]})" if kind in KEYS else ""
        yield f"\n[bold]{escape(kind + where)}[/bold]"
        widest = max((len(row["name"]) for row in rows), default=0)
        for row in rows:
            default = row.get("default")
            usual = "" if default in (None, "") else f" [dim]= {escape(str(default))}[/dim]"
            yield f"  [bold]{escape(row['name']):{widest}}[/bold]  {escape(row['summary'])}{usual}"


def catalogue_tables(entries: Mapping[str, list[Entry]]) -> Iterator[Table]:
    """Yield one table for each kind, with all there is to know."""
    for kind, rows in entries.items():
        where = f" ({KEYS[kind]})" if kind in KEYS else ""
        table = Table(title=kind + where, title_justify="left", title_style="bold", show_lines=kind in CAPTIONS)
        columns = [key for key in COLUMNS if any(key in r for r in rows)]
        table.caption, table.caption_justify = escape(CAPTIONS.get(kind, "")), "left"
        for column in columns:
            widest = NARROW if column == "needs" else None
            table.add_column(column, overflow="fold", no_wrap=column == "name", max_width=widest)
        for row in rows:
            table.add_row(*[_cell(row, column) for column in columns])
        yield table


def _entry(name: str, builder: Callable[..., Any], skip: int = 0, usual: Mapping[str, Any] | None = None) -> Entry:
    """Return an entry; `usual` holds the common options that have a default of their own here."""
    own = [asdict(p) for p in parameters(builder, skip)]
    common = [{**asdict(p), "default": usual[p.name]} for p in parameters(CommonOptions) if usual and p.name in usual]
    return {"name": name, "summary": _summary(builder), "parameters": own + common}


def _model(name: str, builder: Callable[..., nn.Module]) -> Entry:
    """Return a model's entry, with its number of parameters for its usual examples and how updates are computed."""
    entry, info = _entry(name, builder, skip=2), model_info(builder)
    try:
        task = make_task(outline(lambda: builder(info.shape, info.classes)))
    except (RuntimeError, ValueError):  # a model of other examples, which it does not state
        return {**entry, "size": "", "engine": ""}
    strange = unknown_layers(task)
    return {
        **entry,
        "size": f"{task.d:,} ({info.whose})".replace(",", " "),
        "engine": f"client by client, for {', '.join(strange)}" if strange else "fused",
    }


def _attack(name: str, attacker: Attacker) -> Entry:
    """Return an attack's entry: the goal's parameters first, each marked with what it belongs to."""
    entry, unless = _entry(name, attacker.method, skip=1), attacker.otherwise
    wanted = [{**asdict(p), "of": "goal"} for p in parameters(attacker.goal, 1)]
    return {
        **entry,
        "paper": attacker.paper,
        "goal": {"name": attacker.goal.__name__, "summary": _summary(attacker.goal)},
        "needs": _in_order(attacker.needs),
        "otherwise": {"when": unless.when, "needs": _in_order(unless.needs)} if unless else None,
        "parameters": wanted + [{**p, "of": "method"} for p in entry["parameters"]],
    }


def _in_order(needs: Collection[Need]) -> list[str]:
    return [need for need in NEEDS if need in needs]


def _plain(known: Mapping[str, Callable[..., Any]]) -> list[Entry]:
    return [{"name": name, "summary": _summary(item)} for name, item in known.items()]


def _summary(item: Callable[..., Any]) -> str:
    return (item.__doc__ or "").strip().partition("\n")[0]


def _cell(row: Entry, column: str) -> str:
    value = row.get(column)
    if column == "parameters":
        return "\n".join(_headed(row) if "goal" in row else map(_parameter, value or []))
    if column == "needs":
        return "\n".join([*(value or ["-"]), *_otherwise(row)])
    cite = f"\n[dim]{escape(row['paper'])}[/dim]" if column == "summary" and "paper" in row else ""
    text = f"{value:.4g}" if isinstance(value, float) else "" if value is None else str(value)
    return escape(text) + cite


def _headed(row: Entry) -> Iterator[str]:
    """Yield an attack's goal with its parameters, and then those of its method."""
    goal, given = row["goal"], row["parameters"]
    yield f"[bold]goal: {escape(goal['name'])}[/bold]\n  [dim]{escape(goal['summary'])}[/dim]"
    yield from (_parameter(p) for p in given if p["of"] == "goal")
    if own := [_parameter(p) for p in given if p["of"] == "method"]:
        yield from ("[bold]method:[/bold]", *own)


def _otherwise(row: Entry) -> Iterator[str]:
    """Yield the condition under which an attack needs other knowledge, and that knowledge."""
    if unless := row.get("otherwise"):
        yield f"[dim]if {escape(unless['when'])}:[/dim]"
        yield from unless["needs"] or ["nothing"]


def _parameter(p: Mapping[str, Any]) -> str:
    """Return `name = default` and what it means."""
    default = " (required)" if p["required"] else "" if p["default"] is None else f" = {p['default']}"
    return escape(p["name"] + default) + (f"\n  [dim]{escape(p['doc'])}[/dim]" if p["doc"] else "")
