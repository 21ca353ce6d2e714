"""The runs of an audit, as plans for `sweeps`.

    calibration   no defense: unattacked, and under each attack; from the first follow the others' parameters
    audit         every defense: unattacked, and under each attack
    sensitivity   some defenses with other k and L: unattacked, and under the attack that does them most harm
    settings      with a suite: no defense and the recommended one with other honest settings (`benign.py`)

Without attackers the goal stays, as in `run --twins`: attack accuracy is then the baseline.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from sparsefed import config as configs
from sparsefed.commands.audit.attack_specs import AttackSpec, Variants
from sparsefed.commands.audit.defense_specs import DefenseSpec
from sparsefed.commands.audit.options import AuditOptions
from sparsefed.kernels.topk import coordinates
from sparsefed.results.matrix import NO_ATTACK
from sparsefed.results.numbers import significant
from sparsefed.sweeps.cells import Combination, twin
from sparsefed.sweeps.plan import CellGroup, SweepPlan, group

DEFENSE, ATTACK, DIAL = "defense", "attack", "dial"
DIALS = ("k", "clip_norm")
FACTORS = (0.25, 0.5, 2.0, 4.0)
NO_VARIANTS: Variants = {}

Table = Mapping[str, Any]


def matrix_plan(
    name: str, options: AuditOptions, defenses: Sequence[DefenseSpec], attacks: Sequence[AttackSpec]
) -> SweepPlan:
    """Return a plan of these defenses, each unattacked and under every attack."""
    groups: list[CellGroup] = []
    for defense in defenses:
        groups.append(_unattacked({DEFENSE: defense.name}, options, defense.table, options.reported_seeds))
        for attack in attacks:
            if attack.other_goal:
                groups.append(unattacked_group(defense.name, options, defense.table, options.reported_seeds, attack))
            values = {DEFENSE: defense.name, ATTACK: attack.name}
            searched = attack.variants if len(attack.variants) > 1 else {}
            combination = _combination(values, options, defense.table, attack.table, searched)
            groups.append(group(combination, options.reported_seeds, (), options.search_seed))
    return SweepPlan(name, tuple(groups))


def sensitivity_plan(
    name: str, options: AuditOptions, d: int, varied: Iterable[tuple[DefenseSpec, AttackSpec, str]]
) -> SweepPlan:
    """Return a plan of these defenses with other k and L, each under one variant of one attack; at the first seed."""
    groups: list[CellGroup] = []
    seeds = options.reported_seeds[:1]
    for defense, attack, variant in varied:
        for dial, table in turned(defense.table, d):
            values = {DEFENSE: defense.name, DIAL: dial}
            groups.append(_unattacked(values, options, table, seeds))
            attacked = _combination({**values, ATTACK: attack.name}, options, table, attack.variant(variant))
            groups.append(group(attacked, seeds, ()))
    return SweepPlan(name, tuple(groups))


def cell_group(
    defense: str, attack: str, options: AuditOptions, table: Table, attack_table: Table, seeds: Sequence[int]
) -> CellGroup:
    """Return the runs of one defense under one attack, as it is."""
    values = {DEFENSE: defense, ATTACK: attack}
    return group(_combination(values, options, table, attack_table), seeds, ())


def unattacked_group(
    defense: str, options: AuditOptions, table: Table, seeds: Sequence[int], attack: AttackSpec | None = None
) -> CellGroup:
    """Return the runs of one defense without attackers, measured by the goal of this attack or of the config's."""
    return _unattacked({DEFENSE: defense}, options, table, seeds, attack)


def baseline(attack: str) -> str:
    """Return what the runs without attackers are called that are the baseline of an attack with another goal."""
    return f"{NO_ATTACK}, {attack}"


def turned(table: Mapping[str, Any], d: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield a defense with k, then L, at a quarter, half, twice and four times its value.

    >>> [dial for dial, _ in turned({"name": "sparsefed", "k": 3, "clip_norm": 1.0}, d=10)]
    ['k = 1', 'k = 2', 'k = 6', 'k = 10', 'clip_norm = 0.25', 'clip_norm = 0.5', 'clip_norm = 2', 'clip_norm = 4']
    """
    for dial in DIALS:
        if table.get(dial) is None:
            continue
        own = coordinates(table[dial], d) if dial == "k" else table[dial]
        values = (min(max(round(own * by), 1), d) if dial == "k" else significant(own * by) for by in FACTORS)
        for value in dict.fromkeys(values):
            if value != own:
                yield f"{dial} = {value:g}", {**table, dial: value}


def _combination(
    values: Mapping[str, str],
    options: AuditOptions,
    defense: Mapping[str, Any],
    attack: Mapping[str, Any],
    variants: Variants = NO_VARIANTS,
) -> Combination:
    config = {key: item for key, item in configs.dump(options.config).items() if key not in ("name", "seed")}
    table = {**config, "defense": dict(defense), "attack": dict(attack)}
    searched = {name: dict(part) for name, part in variants.items()}
    return Combination(values, table, searched, f"audit, {', '.join(values.values())}")


def _unattacked(
    values: Mapping[str, str],
    options: AuditOptions,
    defense: Mapping[str, Any],
    seeds: Sequence[int],
    attack: AttackSpec | None = None,
) -> CellGroup:
    """Return the runs without attackers: the twins of those under the config's own attack, or under this one."""
    own = configs.dump(options.config)["attack"] if attack is None else attack.table
    name = NO_ATTACK if attack is None else baseline(attack.name)
    attacked = _combination({**values, ATTACK: name}, options, defense, own)
    calm = twin(attacked.result(seeds[0]), "unattacked")
    assert calm is not None  # AuditOptions takes no config without attackers
    table = {key: item for key, item in calm.table.items() if key != "seed"}
    return group(replace(attacked, table=table), seeds, ())
