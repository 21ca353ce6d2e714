"""Cells: runs identified by their config alone, the combinations of settings that they are made from, and their events.

Plans, exhibits and roles share equal cells; a changed config is a different cell.
"""

from __future__ import annotations

import errno
import functools
import hashlib
import json
import time
import traceback
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from sparsefed import config as configs
from sparsefed import data, runs
from sparsefed.config import Config, Named
from sparsefed.config import templates as bases
from sparsefed.core.errors import RunError, SparseFedError
from sparsefed.core.round import RoundReport
from sparsefed.core.signatures import parameters
from sparsefed.core.types import Arrays

Table = dict[str, Any]  # a part of a config
Twin = Literal["unattacked", "plain"]
Load = Callable[[data.DataSet], Arrays]
KEY = 16  # hex digits: among a million cells two keys collide in one of 10^7 projects
PATIENCE = 20.0  # seconds that a cell's last owner may take to die
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
PROCESS = uuid.uuid4().hex  # in the keys of cells with live objects: unique to this process


@dataclass(frozen=True)
class SweepCell:
    """One run: its config without a name, and the key derived from it."""

    key: str
    config: Config

    @property
    def table(self) -> dict[str, Any]:
        return configs.dump(self.config)


@dataclass(frozen=True)
class Combination:
    """One value of each axis, the config they make, and how its attack is chosen."""

    values: Mapping[str, Any]
    table: Table  # of a config, without the seed
    variants: Mapping[str, Table]  # of the attack; none: the attack as given
    source: str  # what error messages call it

    def result(self, seed: int, variant: str | None = None) -> SweepCell:
        """Return the cell of a reported run."""
        return self.trial(seed, variant, {})

    def trial(self, seed: int, variant: str | None, part: Table) -> SweepCell:
        """Return the cell of a trial of the search, which replaces a part of the config."""
        attack = {} if variant is None else {"attack": self.variants[variant]}
        table = bases.over(self.table, {**bases.over(attack, part), "seed": seed})
        return cell(configs.parse(table, source=self.source))


def cell(config: Config) -> SweepCell:
    """Return the cell of a config, regardless of its name and its base.

    >>> table = {"rounds": 2, "model": {"name": "cnn"}, "data": {"name": "digits"}}
    >>> cell(configs.parse(table)) == cell(configs.parse({**table, "name": "mine"}))
    True
    """
    nameless = config.model_copy(update={"name": ""})
    table = configs.dump(nameless)
    canonical = json.dumps(table, sort_keys=True, separators=(",", ":"))
    canonical += PROCESS if configs.is_live(config) else ""
    return SweepCell(hashlib.sha256(canonical.encode()).hexdigest()[:KEY], nameless)


def twin(attacked: SweepCell, which: Twin) -> SweepCell | None:
    """Return the run's twin without attackers, or also without a defense; None if the run has no attackers."""
    if not attacked.config.is_attacked:
        return None
    twins = configs.twins(attacked.config)
    return cell(_idle(twins.get(which, twins["unattacked"])))  # without a defense, the first is the second


def _idle(config: Config) -> Config:
    """Drop the attack's optional parameters except its goal's, so that all its variants share one twin."""
    if config.attack is None:
        return config
    attacker = configs.attacker(config.attack)
    spared = {p.name for p in parameters(attacker.method, 1) if not p.required}
    spared -= {p.name for p in parameters(attacker.goal, 1)}
    kept = {key: value for key, value in config.attack.params.items() if key not in spared}
    return config.model_copy(update={"attack": Named(name=config.attack.name, **kept)})


# --- running one -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Event:
    """An event of a cell: a round, its end, or why it failed."""

    kind: str  # 'round', 'done' or 'failed'
    key: str
    round: int = 0
    seconds: float = 0.0
    error: str = ""
    trace: str = ""
    disk: str | None = None  # the reason, where the disk is to blame


def cached_load() -> Load:
    """Return a loader that keeps the last data sets."""
    return functools.lru_cache(maxsize=4)(data.load)


def attempt(
    key: str, folder: Path, table: Mapping[str, Any], load: Load, on_round: Callable[[RoundReport], None]
) -> Event:
    """Run what remains of a cell and return how it ended: a failing cell must not stop the others."""
    began = time.monotonic()
    try:
        _await(folder)
        config = configs.parse(table)
        every = config.checkpoint_every
        runs.run(folder, table, lambda: configs.build(config, load), checkpoint_every=every, on_round=on_round)
    except SparseFedError as error:
        return Event("failed", key, error=str(error), disk=_disk(error))
    except Exception as error:
        sentence = f"{type(error).__name__}: {error}"
        return Event("failed", key, error=sentence, trace=traceback.format_exc(), disk=_disk(error))
    return Event("done", key, seconds=round(time.monotonic() - began, 3))


def _disk(error: Exception) -> str | None:
    """Return the reason if the disk is to blame, which is not the cell's fault and affects all others."""
    cause = error.__cause__ if isinstance(error, RunError) else error
    if isinstance(cause, OSError) and (isinstance(error, RunError) or cause.errno in FULL):
        return cause.strerror or str(cause)
    return None


def _await(folder: Path) -> None:
    """Wait for a cell's last owner, which may be about to die, to release its lock."""
    until = time.monotonic() + PATIENCE
    while folder.is_dir():
        try:
            with runs.locked(folder):
                return
        except SparseFedError as error:
            if time.monotonic() > until or error.__cause__ is not None:
                raise
            time.sleep(0.1)
