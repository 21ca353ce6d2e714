"""The reference of a config: every key with its type, default and meaning; as entries, a page, or a config to edit."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from pydantic import BaseModel

from sparsefed.config.load import parse
from sparsefed.config.schema import Config
from sparsefed.core.signatures import readable

PAGE_HEAD = """# Every key of a config

One line a key; `sparsefed list "config keys"` prints the same, `sparsefed list NAME` the parameters that stand beside a
name. A key that is left out has its default. `python -m sparsefed.config.reference > docs/config.md` writes this page
from the schema (`config/schema.py`); a test compares them.
"""
STARTED = {  # what a new config sets; everything else is there as a comment
    "rounds": 100,
    "evaluate_every": 20,
    "data.name": "digits",
    "data.devices": 200,
    "model.name": "mlp",
    "train.cohort": 20,
    "defense.name": "sparsefed",
    "defense.k": 200,
    "threat.share": 0.05,
    "attack.name": "pgd",
    "attack.auxiliary": 50,
}
BESIDE = {
    "defense.k": "how many coordinates a round may change",
    "attack.auxiliary": "how many test points they want labelled wrongly",
}
HEAD = """# A config of SparseFed: `sparsefed audit {file}` finds the defense that holds, `sparsefed run {file}` trains
# once.
# What is set here differs from the defaults; every other key is a comment with its default. `sparsefed list` shows the
# names, `sparsefed list NAME` the parameters that stand beside one.
# Data and a model of your own: put my_data.py beside this file, and write name = "my_data:DATA" and "my_data:model".
"""


class ConfigKey(NamedTuple):
    """One key of a config."""

    name: str  # with its table, as `--set` takes it
    type: str
    default: Any  # None: none, or it follows from others
    about: str


def keys() -> Iterator[ConfigKey]:
    """Yield every key of a config, in the order of the schema."""
    return _keys(Config, parse({}))


def _keys(table: type[BaseModel], usual: BaseModel | None, above: str = "") -> Iterator[ConfigKey]:
    for name, field in table.model_fields.items():
        value, types = getattr(usual, name, None), getattr(field.annotation, "__args__", (field.annotation,))
        inner = next((each for each in types if isinstance(each, type) and issubclass(each, BaseModel)), None)
        if inner is not None:
            yield from _keys(inner, value, f"{above}{name}.")
        else:
            default = value if usual or field.is_required() else field.get_default()
            yield ConfigKey(above + name, readable(field.annotation), default, field.description or "")


def page() -> str:
    """Return the reference as Markdown."""
    lines, table = [PAGE_HEAD], None
    for key in keys():
        within, _, name = key.name.rpartition(".")
        if within != table:
            title = f"[{within}]" if within else "At the top"
            lines += [f"\n## {title}\n", "| key | type | default | meaning |", "| --- | --- | --- | --- |"]
            table = within
        default = "" if key.default in (None, "") else f"`{_toml(key.default)}`"
        kind = key.type.replace("|", "or")
        lines.append(f"| `{name}` | {kind} | {default} | {key.about} |")
    return "\n".join(lines) + "\n"


def commented(file: str) -> str:
    """Return a config to edit, for a file of this name: some keys are set, all others are comments."""
    lines, table = [HEAD.format(file=file)], ""
    for key in _with_parameters():
        within, _, name = key.name.rpartition(".")
        if within != table:
            optional = not any(started.startswith(f"{within}.") for started in STARTED)
            lines += ["", f"{'# ' * optional}[{within}]"]
            table = within
        if key.name in STARTED:
            lines.append(f"{name} = {_toml(STARTED[key.name])}  # {key.about}")
        else:
            value = _toml(key.default) if key.default not in (None, "") else ""
            lines.append(f"# {name} = {value}  # {key.about}".replace(" =   #", " =  #"))
    return "\n".join(lines) + "\n"


def _with_parameters() -> Iterator[ConfigKey]:
    for key in keys():
        yield key
        if key.name in ("defense.name", "attack.name"):
            table = key.name.removesuffix("name")
            yield from (ConfigKey(name, "int", None, about) for name, about in BESIDE.items() if name.startswith(table))


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return json.dumps(list(value) if isinstance(value, tuple) else value)


if __name__ == "__main__":
    print(page(), end="")
