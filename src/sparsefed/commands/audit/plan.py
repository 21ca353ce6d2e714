"""The runs of an audit, as plans for `sweeps`.

    calibration   no defense: unattacked, and under each attack; from the first follow the others' parameters
    audit         every defense: unattacked, and under each attack
    sensitivity   some defenses with other k and L: unattacked, and under the attack that does them most harm

Without attackers the goal stays, as in `run --twins`: attack accuracy is then the baseline.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sparsefed import config as configs
from sparsefed.commands.audit.attack_specs import AttackSpec, AttackSpecs, foes
from sparsefed.commands.audit.defense_specs import DefenseSpec
from sparsefed.commands.audit.options import AuditOptions
from sparsefed.commands.audit.variants import GIVEN, variants
from sparsefed.config import Config
from sparsefed.results.matrix import NO_ATTACK
from sparsefed.results.numbers import significant
from sparsefed.sweeps.cells import Combination, twin
from sparsefed.sweeps.plan import CellGroup, CellSlot, SweepPlan, group

DEFENSE, ATTACK, DIAL = "defense", "attack", "dial"
DIALS = ("k", "clip_norm")
FACTORS = (0.25, 0.5, 2.0, 4.0)
ALWAYS_VARIED = ("sparsefed", "clipping")

Variants = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Grid:
    """The attacks and variants that every plan of an audit is made of."""

    asked: AuditOptions
    foes: AttackSpecs
    variants: Mapping[str, Variants]  # by attack


def grid(asked: AuditOptions) -> Grid:
    """Return the attacks and their variants."""
    found = foes(asked)
    seed, config = asked.search_seed, asked.config
    return Grid(asked, found, {foe.name: variants(config, foe, asked.trials, seed) for foe in found.chosen})


def pairs(of: Grid, name: str, members: Sequence[DefenseSpec]) -> SweepPlan:
    """Return a plan of these defenses, each unattacked and under every attack."""
    return SweepPlan(name, tuple(each for member in members for each in _rows(of, member)))


def _rows(of: Grid, member: DefenseSpec) -> Iterator[CellGroup]:
    asked = of.asked
    yield _calm(
        {DEFENSE: member.name, ATTACK: NO_ATTACK}, asked.config, member.table, of.foes.chosen[0], asked.reported
    )
    for foe in of.foes.chosen:
        several = of.variants[foe.name]
        each = _combination({DEFENSE: member.name, ATTACK: foe.name}, asked.config, member.table, foe, several)
        yield group(each, asked.reported, (), asked.search_seed)


def sensitivity(of: Grid, name: str, d: int, varied: Sequence[tuple[DefenseSpec, AttackSpec, str]]) -> SweepPlan:
    """Return a plan of these defenses with other k and L, each under one variant of one attack; at the first seed."""
    first = of.asked.reported[:1]
    groups: list[CellGroup] = []
    for member, foe, variant in varied:
        stronger = AttackSpec(foe.name, with_variant(of, foe, variant), foe.aimed)
        for told, table in turned(member.table, d):
            named = {DEFENSE: member.name, DIAL: told}
            groups.append(_calm({**named, ATTACK: NO_ATTACK}, of.asked.config, table, of.foes.chosen[0], first))
            each = _combination({**named, ATTACK: foe.name}, of.asked.config, table, stronger, {})
            groups.append(group(each, first, ()))
    return SweepPlan(name, tuple(groups))


def with_variant(of: Grid, foe: AttackSpec, variant: str) -> dict[str, Any]:
    """Return the [attack] table of a variant."""
    return {**foe.table, **of.variants[foe.name].get(variant, {})}


def turned(table: Mapping[str, Any], d: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield a defense with k, then L, at a quarter, half, twice and four times its value.

    >>> [told for told, _ in turned({"name": "sparsefed", "k": 3, "clip_norm": 1.0}, d=10)]
    ['k = 1', 'k = 2', 'k = 6', 'k = 10', 'clip_norm = 0.25', 'clip_norm = 0.5', 'clip_norm = 2', 'clip_norm = 4']
    """
    for dial in DIALS:
        if table.get(dial) is None:
            continue
        own = table[dial]
        values = (min(max(round(own * by), 1), d) if dial == "k" else significant(own * by) for by in FACTORS)
        for value in dict.fromkeys(values):
            if value != own:
                yield f"{dial} = {value:g}", {**table, dial: value}


def _combination(
    values: Mapping[str, str], config: Config, defense: Mapping[str, Any], foe: AttackSpec, several: Variants
) -> Combination:
    whole = {key: item for key, item in configs.dump(config).items() if key not in ("name", "seed")}
    table = {**whole, "defense": dict(defense), "attack": dict(foe.table)}
    searched = {name: dict(part) for name, part in several.items()} if len(several) > 1 else {}
    return Combination(values, table, searched, f"audit, {', '.join(values.values())}")


def _calm(
    values: Mapping[str, str], config: Config, defense: Mapping[str, Any], foe: AttackSpec, seeds: Sequence[int]
) -> CellGroup:
    attacked = _combination(values, config, defense, foe, {})
    slots = tuple(_calm_slot(values, attacked, seed) for seed in seeds)
    return CellGroup(values, (), lambda _: slots, len(slots))


def _calm_slot(values: Mapping[str, str], attacked: Combination, seed: int) -> CellSlot:
    calm = twin(attacked.result(seed), "unattacked")
    assert calm is not None  # ensured by `options.attacked`
    return CellSlot(values, "result", None, seed, calm)


def variant_of(attack: str | None) -> str:
    """Return the variant that a line of results reports."""
    return attack if attack is not None and attack.startswith("variant") else GIVEN
