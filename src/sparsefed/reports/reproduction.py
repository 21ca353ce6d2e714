"""The parts of a page that make a result reproducible: configs, versions, commands."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sparsefed.core import toml
from sparsefed.core.types import RunRecord
from sparsefed.reports.document import Block, Fold, Listing, Side, Table, fold, paragraph, table
from sparsefed.results.groups import Facts, differing, flat, keys
from sparsefed.results.summary import labels

FACTS = ("status", "created", "seed", "rounds", "parameters", "commit")
MOST_COLUMNS = 12  # runs side by side in a table; more stand in rows
PINNED = ("torch", "numpy", "numba", "safetensors")


def configs(runs: Sequence[RunRecord]) -> Iterator[Block]:
    """Yield the differences between the runs, and each config in full."""
    every = [dict(flat(run.config)) for run in runs]
    if len(runs) > 1:
        apart = [{key: each.get(key, "–") for key in differing(every)} for each in every]
        differences = _facts_table("Where the configs differ", runs, apart)
        same = paragraph("All runs have the same config.")
        yield from fold("Where the configs differ", differences or same, when=len(runs) > MOST_COLUMNS)
    named = zip(labels(runs), runs, strict=True)
    full = [Fold(f"Config of {label}", (Listing(toml.dumps(run.config)),)) for label, run in named]
    yield from fold("All configs", *full, when=len(runs) > MOST_COLUMNS)


def versions(runs: Sequence[RunRecord]) -> tuple[Block, ...]:
    """Return the versions and machines the runs were made with."""
    facts = [{key: str(run.manifest[key]) for key in FACTS if run.manifest.get(key) is not None} for run in runs]
    tables = (
        _facts_table("The runs", runs, facts),
        _facts_table("Versions", runs, [_texts(run.manifest.get("versions")) for run in runs]),
        _facts_table("Machine", runs, [_texts(run.manifest.get("machine")) for run in runs]),
    )
    known = tuple(each for each in tables if each is not None)
    return fold("Versions, commits and machines", Side(known)) if known else ()


def again(runs: Sequence[RunRecord]) -> Iterator[Block]:
    """Yield the commands: the versions, the ones that made these runs, and one for each config."""
    if prepare := _preparation(runs):
        yield paragraph("With the same code and versions, the same seed makes the same choices:")
        yield Listing("\n".join(prepare))
    commands = dict.fromkeys(str(run.manifest["command"]) for run in runs if run.manifest.get("command"))
    if commands:
        yield paragraph("The commands that made these runs:")
        yield Listing("\n".join(commands))
    yield paragraph("Or each alone, from its config above, saved under this name:")
    yield Listing("\n".join(f"sparsefed run {file_name(label)}.toml" for label in labels(runs)))


def _preparation(runs: Sequence[RunRecord]) -> list[str]:
    """Return the commands that restore the code and the versions, as far as all runs agree on them."""
    commit = _agreed([str(run.manifest.get("commit") or "") for run in runs])
    versions = [_texts(run.manifest.get("versions")) for run in runs]
    agreed = {name: _agreed([each.get(name, "") for each in versions]) for name in PINNED}
    pins = [f"{name}=={version.split('+')[0]}" for name, version in agreed.items() if version]
    checkout = f"git checkout {commit.rstrip('+')}{'   # and changes that were not committed' * commit.endswith('+')}"
    return ([checkout] if commit else []) + ([f"pip install . {' '.join(pins)}"] if pins else [])


def _agreed(values: Sequence[str]) -> str:
    return values[0] if len(set(values)) == 1 else ""


def file_name(label: str) -> str:
    """Return a label as a file name that needs no quoting in a shell.

    >>> file_name("krum (2)")
    'krum-2'
    """
    return re.sub(r"[^A-Za-z0-9._-]+", "-", label).strip("-.") or "run"


def _facts_table(caption: str, runs: Sequence[RunRecord], facts: Sequence[Facts]) -> Table | None:
    """Return named facts: one column per run, one row per run if there are many, or one column if all agree."""
    names = keys(facts)
    if not names:
        return None
    agree = len(runs) > 1 and all(each == facts[0] for each in facts)
    if len(runs) > MOST_COLUMNS and not agree:
        by_run = zip(labels(runs), facts, strict=True)
        rows = [(label, *(each.get(key, "–") for key in names)) for label, each in by_run]
        return table(caption, ("Run", *names), rows, "facts")
    heads, columns = (["all runs"], facts[:1]) if agree else (labels(runs), facts)
    rows = [(key, *(each.get(key, "–") for each in columns)) for key in names]
    return table(caption, ("What", *heads), rows, "facts")


def _texts(facts: Any) -> dict[str, str]:
    return {str(key): str(item) for key, item in facts.items()} if isinstance(facts, Mapping) else {}
