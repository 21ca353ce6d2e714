"""A small run folder, and whether a damaged copy of it is noticed or harmless."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from sparsefed import config as configs
from sparsefed import runs
from sparsefed.core.errors import SparseFedError
from sparsefed.core.round import ServerState
from tests.support.configs import BASE

TABLE = BASE | {"rounds": 6, "checkpoint_every": 2, "evaluate_every": 3}
FILES = (runs.CONFIG, runs.MANIFEST, runs.METRICS, runs.CHECKPOINT)


def make(folder: Path, **changes: Any) -> Path:
    """Run a small config into a folder and return the folder."""
    config = configs.parse(TABLE | changes)
    runs.run(folder, configs.dump(config), lambda: configs.build(config), checkpoint_every=config.checkpoint_every)
    return folder


def same(one: ServerState | None, other: ServerState | None) -> bool:
    """Return whether two states are equal to the bit."""
    if one is None or other is None or one.round != other.round or one.defense.keys() != other.defense.keys():
        return one is other
    pairs = [(one.theta, other.theta), *((one.defense[name], other.defense[name]) for name in one.defense)]
    return all(torch.equal(a, b) for a, b in pairs)


def unharmed(folder: Path, whole: Path) -> bool:
    """Return whether a folder reads as the undamaged one does, or is refused by one sentence."""
    try:
        record, state = runs.load_run(folder), runs.load_state(folder)
    except SparseFedError as error:
        return "\n" not in str(error)
    truth, before = runs.load_run(whole), runs.load_state(whole)
    if record.config != truth.config or record.rows != truth.rows or dict(record.manifest) != dict(truth.manifest):
        return False
    return same(state, before) or (state is not None and before is not None and state.round < before.round)


def flipped(content: bytes, bit: int) -> bytes:
    """Return the content with one bit flipped."""
    changed = bytearray(content)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)
