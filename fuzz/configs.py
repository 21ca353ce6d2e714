"""Hostile configs: odd values at every key, odd keys, and damaged TOML."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from fuzz import mutate
from fuzz.driver import Call, MakeCase
from sparsefed import config as configs
from sparsefed.core import toml
from sparsefed.core.errors import ConfigError

Random = np.random.Generator

BASES: tuple[dict[str, Any], ...] = (
    {
        "rounds": 3,
        "data": {"name": "digits", "partition": "iid", "devices": 30},
        "model": {"name": "softmax"},
        "train": {"cohort": 10, "lr": 0.1},
        "defense": {"name": "sparsefed", "k": 20, "clip_norm": 1.0},
        "threat": {"share": 0.1},
        "attack": {"name": "pgd", "auxiliary": 10},
    },
    {
        "epochs": 2.0,
        "data": {"name": "digits", "partition": "dirichlet", "alpha": 0.5, "devices": 20, "per_device": 5},
        "model": {"name": "mlp", "hidden": [8]},
        "train": {"mode": "fedavg", "cohort": 10, "local_epochs": 2, "local_batch": 3, "schedule": "constant"},
        "defense": {"name": "krum", "f": 2, "pre": ["nnm"]},
        "threat": {"count": 2, "start": 1, "knowledge": ["own data", "honest updates"]},
        "attack": {"name": "alie"},
    },
)
KEYS = (
    *("name", "seed", "base", "rounds", "epochs", "evaluate_every", "checkpoint_every", "data", "model", "train"),
    *("defense", "threat", "attack", "f", "k", "pre", "clip", "clip_norm", "goal", "hidden", "width", "alpha"),
    *("per_device", "devices", "vocabulary", "length", "augment", "sampling", "preset", "mode", "engine", "memory_mb"),
    *("local_lr", "prox", "dtype", "loss", "peak_at", "peak_epoch", "ids", "share", "count", "stop", "every", "root"),
)
VALUES: tuple[Any, ...] = (
    *(0, 1, -1, 2, 3, 10**3, 10**6, 10**9, 10**18, 2**31, 2**53, 2**63 - 1, 2**63, -(2**63), 10**40, 10**5000),
    *(0.0, 0.5, 1.0, -0.5, 1e-320, 1e-300, 1e300, 1e308, math.inf, -math.inf, math.nan, True, False),
    *("", " ", ".", "..", "/", "\0", "\x1b[31m", "\u202e", "x" * 3000, "x" * 20_000, "digits", "krum", "mean", "cnn"),
    *("live:x-1", "fedavg", "paper", "fused", "bfloat16", "fmnist/cross-device", "../../etc/passwd", "[bold]", "[/]"),
    *([], [[]], {}, [1], [-1], [0], ["nnm"], ["x"], [None], [1.5], [10**9] * 3, ["nnm"] * 1000, {"name": "krum"}),
    *({"name": 3}, {"name": {}}, [{"name": "nnm", "f": -1}], list(range(30_000)), {"a": {"a": {"a": {"a": {}}}}}),
)


def table_case(random: Random) -> tuple[str, Call]:
    """Put odd values at one to four keys of a good config."""
    table, changes = copy.deepcopy(BASES[int(random.integers(len(BASES)))]), []
    for _ in range(int(random.integers(1, 5))):
        place = table
        if random.random() < 0.8:
            inner = [value for value in table.values() if isinstance(value, dict)]
            place = inner[int(random.integers(len(inner)))] if inner else table
        present = random.random() < 0.6 and place
        key = str(random.choice(list(place) if present else KEYS))
        place[key] = copy.deepcopy(VALUES[int(random.integers(len(VALUES)))])
        changes.append(f"{key}={type(place[key]).__name__!s}:{_brief(place[key])}")
    build = bool(random.random() < 0.2)
    return f"{', '.join(changes)}{', built' if build else ''}", lambda: _use(table, build)


def number_case(random: Random) -> tuple[str, Call]:
    """Replace one or two numbers of a good config by other numbers of their kind, and build it."""
    table, changes = copy.deepcopy(BASES[int(random.integers(len(BASES)))]), []
    for _ in range(int(random.integers(1, 3))):
        tables = [table, *(value for value in table.values() if isinstance(value, dict))]
        leaves = [(part, key) for part in tables for key, value in part.items() if isinstance(value, int | float)]
        place, key = leaves[int(random.integers(len(leaves)))]
        kind = type(place[key])
        numbers = [value for value in VALUES if type(value) is kind]
        place[key] = numbers[int(random.integers(len(numbers)))]
        changes.append(f"{key}={_brief(place[key])}")
    return f"{', '.join(changes)}, built", lambda: _use(table, True)


def _brief(value: Any) -> str:
    try:
        return ascii(value)[:40]
    except ValueError:
        return "many digits"


def _use(table: Mapping[str, Any], build: bool) -> None:
    config = configs.parse(table)
    configs.parse(configs.dump(config))
    if build and (config.data.devices or 0) * (config.data.per_device or 1) <= 10**5 and config.train.cohort <= 10**3:
        configs.build(config)


def text_case(random: Random) -> tuple[str, Call]:
    """Damage the TOML of a good config."""
    text = toml.dumps(BASES[int(random.integers(len(BASES)))]).encode()
    description, raw = mutate.some(random, text)
    return description, lambda: _read(raw)


def _read(raw: bytes) -> None:
    import tempfile
    from pathlib import Path

    with tempfile.NamedTemporaryFile(suffix=".toml") as file:
        file.write(raw)
        file.flush()
        configs.read(Path(file.name))


def override_case(random: Random) -> tuple[str, Call]:
    """Override a key with a damaged value, as `--set` does."""
    key = str(random.choice([*KEYS, "defense.k", "train.lr", "attack.goal.name", "", ".", "a..b", "data.name.x"]))
    description, raw = mutate.some(random, str(random.choice(["1", "0.5", '"krum"', "[1, 2]", "{a = 1}"])).encode())
    override = f"{key}={raw.decode(errors='replace')}"
    return f"{key}: {description}", lambda: configs.parse(BASES[0], [override])


def toml_round_trip(random: Random) -> tuple[str, Call]:
    """Write odd tables as TOML and read them back."""
    import tomllib

    table = {str(random.choice(KEYS)): VALUES[int(random.integers(len(VALUES)))]}

    def call() -> None:
        try:
            configs.parse(table)
        except ConfigError:
            return
        tomllib.loads(toml.dumps(table))

    return str(list(table)), call


TARGETS: Mapping[str, MakeCase] = {
    "table": table_case,
    "numbers": number_case,
    "TOML": text_case,
    "override": override_case,
    "round trip": toml_round_trip,
}


def kept() -> Iterator[tuple[str, str, Call]]:
    """Yield the good configs."""
    for base in BASES:
        yield "table", "nothing changed", lambda base=base: _use(base, True)  # type: ignore[misc]
