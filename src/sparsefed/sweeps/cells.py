"""Cells: runs identified by their config alone, and the combinations of settings that cells are made from.

Plans, exhibits and roles share equal cells; a changed config is a different cell.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from sparsefed import config as configs
from sparsefed.config import Config, Named
from sparsefed.config import templates as bases
from sparsefed.core.signatures import parameters

Table = dict[str, Any]  # a part of a config
Twin = Literal["unattacked", "plain"]
KEY = 16  # hex digits: among a million cells two keys collide in one of 10^7 projects
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
        return self._cell({**self._attack(variant), "seed": seed})

    def trial(self, search_seed: int, variant: str, part: Table) -> SweepCell:
        """Return the cell of a trial of the search."""
        return self._cell({**bases.over(self._attack(variant), part), "seed": search_seed})

    def _attack(self, variant: str | None) -> Table:
        return {} if variant is None else {"attack": self.variants[variant]}

    def _cell(self, part: Table) -> SweepCell:
        return cell(configs.parse(bases.over(self.table, part), source=self.source))


def cell(config: Config) -> SweepCell:
    """Return the cell of a config, regardless of its name and its base.

    >>> table = {"rounds": 2, "model": {"name": "cnn"}, "data": {"name": "digits"}}
    >>> cell(configs.parse(table)) == cell(configs.parse({**table, "name": "mine"}))
    True
    """
    nameless = config.model_copy(update={"name": ""})
    canonical = json.dumps(configs.dump(nameless), sort_keys=True, separators=(",", ":"), allow_nan=False)
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
    how = [p for p in parameters(attacker.method, 1) if not p.required]
    spared = {p.name for p in how} - {p.name for p in parameters(attacker.goal, 1)}
    kept = {key: value for key, value in config.attack.params.items() if key not in spared}
    return config.model_copy(update={"attack": Named(name=config.attack.name, **kept)})
