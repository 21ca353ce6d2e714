"""What a search is of: everything that changes a number, but for where it begins.

A folder is about one question, and what was found for it is not written over; machines that ask the same question of
the same database share a study.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sparsefed import config as configs
from sparsefed import runs
from sparsefed.commands.tune.space import Space
from sparsefed.commands.tune.trials import Objective
from sparsefed.config import Config
from sparsefed.core.errors import RunError

QUESTION = "study.json"


def study_name(folder: Path, config: Config, space: Space, objective: Objective) -> str:
    """The same for the same question, which is written down in the folder; refuses a folder that is about another."""
    table = configs.dump(config)
    table["attack"] = {key: value for key, value in table["attack"].items() if key not in space}
    for key in ("name", "checkpoint_every"):
        table.pop(key, None)
    searched = {name: asdict(each) for name, each in space.items()}
    text = json.dumps({"config": table, "space": searched, "objective": objective}, indent=2, sort_keys=True)
    path = folder / QUESTION
    if path.exists():
        _refuse_another(folder, _read(path), json.loads(text))
    else:
        runs.write_atomically(path, (text + "\n").encode())
    return f"sparsefed-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def _read(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise RunError(
            f"{path} is damaged ({error}); delete it: it only says what the search beside it is of"
        ) from None


def _refuse_another(folder: Path, there: Mapping[str, Any], asked: Mapping[str, Any]) -> None:
    before, now = dict(_flat(there)), dict(_flat(asked))
    changed = sorted(key for key in before.keys() | now.keys() if before.get(key) != now.get(key))
    if changed:
        key = changed[0]
        more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
        raise RunError(
            f"{folder} holds another search: {key.removeprefix('config.')} was {before.get(key)} and is {now.get(key)}"
            f"{more}; choose another folder with --out, or undo the change to go on"
        )


def _flat(table: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    for key, item in table.items():
        if isinstance(item, Mapping):
            yield from _flat(item, f"{path}{key}.")
        else:
            yield f"{path}{key}", item
