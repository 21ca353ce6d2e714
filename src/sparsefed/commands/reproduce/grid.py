"""From an exhibit and a scale to cells: the combinations of its axes, and the config of each run that they need.

Parts of a config are put on top of each other in this order, each as a config on its base (`bases.over`): `common`, the
axes' values in the order of the axes, the scale's `set`, the scale's own parts for single values, the attack's variant,
the seed. A `base` stays below everything, wherever it stands; the last one named counts. `attack = false` stays, unless
a later part names an attack.

A cell is one run, known by its config alone: exhibits, scales and roles share what is equal, and a changed config is
another cell.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sparsefed import config as configs
from sparsefed.commands.reproduce.exhibit import Exhibit, ExhibitScale, Pick, Table, Twin
from sparsefed.commands.reproduce.load import scale_of
from sparsefed.config import Config, Named
from sparsefed.config import templates as bases
from sparsefed.core import toml
from sparsefed.core.errors import ConfigError
from sparsefed.core.signatures import parameters
from sparsefed.core.threat import WHO

BESIDE = ("epochs", "checkpoint_every")  # said by the rounds already, and of no consequence
KEY = 16  # hex digits: two of a million cells are alike by chance in one of 10^7 projects


@dataclass(frozen=True)
class SweepCell:
    """One run."""

    key: str
    config: Config

    @property
    def table(self) -> dict[str, Any]:
        return configs.dump(self.config)

    @property
    def attacked(self) -> bool:
        """Whether anybody attacks."""
        threat = self.config.threat
        return self.config.attack is not None and any(getattr(threat, who) for who in WHO)


@dataclass(frozen=True)
class Combination:
    """One value of each axis, with the config that they make, and how its attack is chosen."""

    values: Mapping[str, str]
    table: Table  # of a config, without the seed
    variants: Mapping[str, Table]  # of the attack; none: the attack as given
    source: str  # for a sentence about it

    def result(self, seed: int, variant: str | None = None) -> SweepCell:
        """A run that is reported."""
        return self._cell({**self._attack(variant), "seed": seed})

    def trial(self, search_seed: int, variant: str, part: Table) -> SweepCell:
        """A run of the search."""
        return self._cell({**bases.over(self._attack(variant), part), "seed": search_seed})

    def _attack(self, variant: str | None) -> Table:
        return {} if variant is None else {"attack": self.variants[variant]}

    def _cell(self, part: Table) -> SweepCell:
        return cell(configs.parse(bases.over(self.table, part), source=self.source))


def cell(config: Config) -> SweepCell:
    """The cell of a config; names and what came before it make no difference.

    >>> table = {"rounds": 2, "model": {"name": "cnn"}, "data": {"name": "digits"}}
    >>> cell(configs.parse(table)) == cell(configs.parse({**table, "name": "mine"}))
    True
    """
    nameless = config.model_copy(update={"name": ""})
    canonical = json.dumps(configs.dump(nameless), sort_keys=True, separators=(",", ":"), allow_nan=False)
    return SweepCell(hashlib.sha256(canonical.encode()).hexdigest()[:KEY], nameless)


def twin(attacked: SweepCell, which: Twin) -> SweepCell | None:
    """The same run without attackers, or without a defense as well; None where nobody attacks."""
    if not attacked.attacked:
        return None
    twins = configs.twins(attacked.config)
    return cell(_idle(twins.get(which, twins["unattacked"])))  # without a defense, the first is the second


def _idle(config: Config) -> Config:
    """Where nobody attacks, it matters what they would be after, but not how: variants of an attack share a twin."""
    if config.attack is None:
        return config
    attacker = configs.attacker(config.attack)
    how = [p for p in parameters(attacker.method, 1) if not p.required]
    spared = {p.name for p in how} - {p.name for p in parameters(attacker.goal, 1)}
    kept = {key: value for key, value in config.attack.params.items() if key not in spared}
    return config.model_copy(update={"attack": Named(name=config.attack.name, **kept)})


def combinations(exhibit: Exhibit, scale: str) -> list[Combination]:
    """What is run at a scale, in the exhibit's order; every config is parsed, so that none fails later."""
    chosen = scale_of(exhibit, scale)
    found = [_combination(exhibit, chosen, values, scale) for values in _values(exhibit, chosen)]
    if not found:
        raise ConfigError(f"exhibit {exhibit.name}: nothing is left at scale '{scale}'; look at skip and only")
    return found


def _values(exhibit: Exhibit, scale: ExhibitScale) -> Iterator[dict[str, str]]:
    for values in itertools.product(*exhibit.axes.values()):
        each = dict(zip(exhibit.axes, values, strict=True))
        if matches(each, scale.only) and not any(matches(each, skipped) for skipped in exhibit.skip):
            yield each


def matches(values: Mapping[str, str], pick: Pick) -> bool:
    """Whether every axis that is picked has one of the picked values.

    >>> matches({"data": "FMNIST", "defense": "Krum"}, {"defense": ("Krum", "Bulyan")})
    True
    """
    return all(values.get(axis) in allowed for axis, allowed in pick.items())


def _combination(exhibit: Exhibit, scale: ExhibitScale, values: dict[str, str], name: str) -> Combination:
    source = f"exhibit {exhibit.name} at scale {name}, {', '.join(values.values())}"
    parts = [exhibit.axes[axis][value] for axis, value in values.items()]
    own = [scale.axes.get(axis, {}).get(value, {}) for axis, value in values.items()]
    table: Table = {}
    for part in (exhibit.common, *parts, scale.set, *own):
        table = _over(table, part)
    if "seed" in table:
        raise ConfigError(f"{source}: `seed` stands in a part of a config; seeds belong to the scales and to [search]")
    combined = Combination(values, table, _variants(exhibit, scale), source)
    first = combined.result(scale.seeds[0], next(iter(combined.variants), None) if table.get("attack", True) else None)
    if not first.attacked:
        return Combination(values, table, {}, source)
    for variant in combined.variants:
        combined.trial(0, variant, exhibit.search.set if exhibit.search else {})
    return combined


def _over(table: Table, part: Table) -> Table:
    """The part on top; where nobody attacks, parameters of an attack that are set for all have nobody to tell."""
    if table.get("attack") is False and "name" not in (part.get("attack") or {}):
        part = {key: item for key, item in part.items() if key not in ("attack", "threat")}
    return bases.over(table, part)


def _variants(exhibit: Exhibit, scale: ExhibitScale) -> dict[str, Table]:
    if exhibit.search is None or scale.search is False:
        return {}
    wanted = exhibit.search.attacks if scale.search is True else scale.search
    return {name: exhibit.search.attacks[name] for name in wanted}


# --- what was scaled -------------------------------------------------------------------------------------------------


def scaled(exhibit: Exhibit, scale: str) -> list[str]:
    """How the configs differ from those of scale `paper`, a line a key; nothing where there is no such scale."""
    if scale == "paper" or "paper" not in exhibit.scales:
        return []
    full = {_id(each): each for each in combinations(exhibit, "paper")}
    ours = {_id(each): each for each in combinations(exhibit, scale)}
    changes: dict[str, dict[tuple[str, str], None]] = {}
    for values, each in ours.items():
        if values in full:
            for key, before, now in _differences(_flat(full[values]), _flat(each)):
                changes.setdefault(key, {})[before, now] = None
    lines = [f"{key}: {_told(list(pairs))}" for key, pairs in changes.items()]
    seeds = [len(scale_of(exhibit, each).seeds) for each in ("paper", scale)]
    left_out = [f"combinations: {len(ours)} instead of {len(full)}"] if len(ours) < len(full) else []
    return lines + left_out + ([f"seeds: {seeds[1]} instead of {seeds[0]}"] if seeds[0] != seeds[1] else [])


def _id(combination: Combination) -> tuple[str, ...]:
    return tuple(combination.values.values())


def _flat(combination: Combination) -> dict[str, str]:
    told = dict(_leaves(combination.result(0).table))
    return {key: item for key, item in told.items() if key not in BESIDE}


def _leaves(table: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, str]]:
    for key, item in table.items():
        if isinstance(item, Mapping):
            yield from _leaves(item, f"{path}{key}.")
        else:
            yield f"{path}{key}", toml.value(item)


def _differences(before: Mapping[str, str], now: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    for key in dict.fromkeys((*before, *now)):
        if before.get(key) != now.get(key):
            yield key, before.get(key, "not given"), now.get(key, "not given")


def _told(pairs: list[tuple[str, str]]) -> str:
    shown = "; ".join(f"{now} instead of {before}" for before, now in pairs[:4])
    return shown + (f"; and {len(pairs) - 4} more" if len(pairs) > 4 else "")
