"""Names of run folders: after the config and what was changed in it, and never the folder of another run."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sparsefed.runs.folder import anywhere, standing

DIGITS = 8  # of the digest in a name
LONGEST = 100  # characters of a folder's name


def named_after(name: str, overrides: Sequence[str]) -> str:
    """Return the name of a config with the overrides that make it another run.

    >>> named_after("my", ["seed=1", "defense.k=500", "attack.name=lone_pgd"])
    'my-seed=1-k=500-lone_pgd'
    """
    parts = []
    for key, _, value in (override.partition("=") for override in overrides):
        short = re.sub(r"[^\w.+-]+", "_", value.strip().strip("\"'")).strip("_")
        last = key.strip().rpartition(".")[2]
        if key.strip() != "name":
            parts.append(short if last == "name" else f"{last}={short}")
    return "-".join([name, *parts])[:LONGEST]


def free_folder(folder: Path, table: Mapping[str, Any]) -> Path:
    """Return the folder if it holds no run or one of this config; else one beside it, named by the config's digest."""
    if standing(folder, table) != "another":
        return folder
    text = json.dumps(anywhere(table), sort_keys=True)
    return folder.with_name(f"{folder.name}-{hashlib.sha256(text.encode()).hexdigest()[:DIGITS]}")
