"""Hostile run folders: damaged files, odd content with the right checksums, links, pipes, and code.

A case passes if the folder is refused by one sentence, or reads as the undamaged run does; nothing it names is imported
and nothing outside of it is written.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fuzz import mutate
from fuzz.configs import BASES, VALUES
from fuzz.driver import Call, MakeCase
from sparsefed import config as configs
from sparsefed import runs
from sparsefed.core import toml
from sparsefed.core.errors import SparseFedError
from sparsefed.core.round import ServerState
from sparsefed.reports.run_report import report

Random = np.random.Generator
Damage = Callable[[Path], None]

FILES = (runs.CONFIG, runs.MANIFEST, runs.METRICS, runs.CHECKPOINT, "previous.safetensors")
FOREIGN = ("os:system", "builtins:eval", "subprocess:run", "shutil:rmtree", "nowhere:nothing")


@functools.cache
def good() -> Path:
    """Return a finished run, made once for all cases."""
    folder = Path(tempfile.mkdtemp(prefix="sparsefed-fuzz-")) / "run"
    config = configs.parse(BASES[0] | {"checkpoint_every": 1, "evaluate_every": 1})
    runs.run(folder, configs.dump(config), lambda: configs.build(config), checkpoint_every=1)
    return folder


def damaged(act: Damage, drawn: bool, faithful: bool) -> Call:
    """Return the call that damages a copy of the run and then opens it in every way."""

    def call() -> None:
        with tempfile.TemporaryDirectory() as place:
            folder = Path(shutil.copytree(good(), Path(place) / "run"))
            precious = Path(place) / "precious"
            precious.write_text("precious")
            act(folder)
            try:
                _open(folder, drawn, faithful)
            finally:
                assert precious.read_text() == "precious", "a file outside of the folder was changed"

    return call


def _open(folder: Path, drawn: bool, faithful: bool) -> None:
    refused: SparseFedError | None = None
    for use in (_load, _resume, *([_report] if drawn else [])):
        try:
            use(folder, faithful)
        except SparseFedError as error:
            refused = error
    if refused is not None:
        raise refused


def _load(folder: Path, faithful: bool) -> None:
    record, state = runs.load_run(folder), runs.load_state(folder)
    if faithful:
        truth, last = runs.load_run(good()), runs.load_state(good())
        assert record.config == truth.config and record.rows == truth.rows, "damage went unnoticed"
        assert _same(state, last) or (state is not None and last is not None and state.round < last.round)


def _same(one: ServerState | None, other: ServerState | None) -> bool:
    if one is None or other is None:
        return one is other
    return one.round == other.round and torch.equal(one.theta, other.theta)


def _resume(folder: Path, _: bool) -> None:
    config = configs.of_run(runs.load_config(folder), folder)
    assert not [name for name in FOREIGN if name in str(configs.dump(config))], "code of a foreign folder was imported"
    with runs.locked(folder):
        pass
    if config.rounds <= 10 and config.model.name == "softmax":
        runs.run(folder, configs.dump(config), lambda: configs.build(config), checkpoint_every=1, create=False)


def _report(folder: Path, _: bool) -> None:
    report(folder).to_html()


def bytes_case(random: Random) -> tuple[str, Call]:
    """Damage the bytes of one file."""
    name = str(random.choice(FILES))
    description, raw = mutate.some(random, (good() / name).read_bytes())
    return f"{name}: {description}", damaged(lambda folder: _write(folder / name, raw), random.random() < 0.05, True)


def _write(path: Path, raw: bytes) -> None:
    path.write_bytes(raw)


def _any(random: Random) -> Any:
    value = VALUES[int(random.integers(len(VALUES)))]
    return value if not isinstance(value, int) or abs(value) < 10**4000 else 0


def manifest_case(random: Random) -> tuple[str, Call]:
    """Put odd values into the manifest, without a checksum, as an early version could have written them."""
    manifest = json.loads((good() / runs.MANIFEST).read_text())
    del manifest["sha256"], manifest["config"]
    place, key = manifest, str(random.choice(list(manifest)))
    while isinstance(place[key], dict) and random.random() < 0.7:
        place = place[key]
        key = str(random.choice(list(place)))
    place[key] = _any(random)
    raw = json.dumps(manifest).encode()
    act: Damage = lambda folder: _write(folder / runs.MANIFEST, raw)  # noqa: E731
    return f"manifest {key} = {ascii(place[key])[:60]}", damaged(act, random.random() < 0.3, False)


def metrics_case(random: Random) -> tuple[str, Call]:
    """Put odd values into the metrics, without checksums."""
    rows = [json.loads(line) for line in (good() / runs.METRICS).read_text().splitlines()]
    row = rows[int(random.integers(len(rows)))]
    key = str(random.choice(list(row)))
    row[key] = _any(random)
    raw = "".join(json.dumps({k: v for k, v in each.items() if k != "crc32"}) + "\n" for each in rows).encode()
    act: Damage = lambda folder: _write(folder / runs.METRICS, raw)  # noqa: E731
    return f"metrics {key} = {ascii(row[key])[:60]}", damaged(act, random.random() < 0.3, False)


def config_case(random: Random) -> tuple[str, Call]:
    """Write another config, with code in it or odd values, and nothing that records the old one."""
    table = configs.dump(configs.parse(BASES[0]))
    section = str(random.choice([key for key, value in table.items() if isinstance(value, dict)]))
    key = str(random.choice(list(table[section])))
    code = random.random() < 0.5
    table[section][key] = str(random.choice(FOREIGN)) if code else _any(random)
    try:
        raw = toml.dumps(table).encode(errors="replace")
    except (ValueError, RecursionError):
        raw = b""

    def act(folder: Path) -> None:
        for name in FILES[2:]:
            (folder / name).unlink()
        _write(folder / runs.CONFIG, raw)
        _write(folder / runs.MANIFEST, b'{"status": "interrupted", "round": 0}')

    return f"{section}.{key} = {ascii(table[section][key])[:60]}", damaged(act, random.random() < 0.2, False)


def link_case(random: Random) -> tuple[str, Call]:
    """Put a link, a pipe, a folder or a device in the place of a file."""
    name = str(random.choice([*FILES, ".lock", *(f"{name}.partial" for name in FILES), "report.html"]))
    kind = str(random.choice(["link", "loop", "nowhere", "hard", "pipe", "folder", "zero"]))

    def act(folder: Path) -> None:
        path = folder / name
        path.unlink(missing_ok=True)
        targets = {"link": folder.parent / "precious", "loop": path, "nowhere": Path("/no"), "zero": Path("/dev/zero")}
        if kind == "pipe":
            os.mkfifo(path)
        elif kind == "folder":
            path.mkdir()
        elif kind == "hard":
            os.link(folder.parent / "precious", path)
        else:
            path.symlink_to(targets[kind])

    return f"{kind} at {name}", damaged(act, False, False)


TARGETS: Mapping[str, MakeCase] = {
    "bytes": bytes_case,
    "manifest": manifest_case,
    "metrics": metrics_case,
    "config": config_case,
    "links": link_case,
}


def kept() -> Iterator[tuple[str, str, Call]]:
    """Yield the undamaged run."""
    yield "bytes", "nothing changed", damaged(lambda folder: None, True, True)  # noqa: ARG005
