"""From an exhibit and a scale to a plan: the combinations of its axes, and the config of each run that they need.

Parts of a config are put on top of each other in this order, each as a config on its base (`templates.over`): `common`,
the axes' values in the order of the axes, the scale's `set`, the scale's own parts for single values, the attack's
variant, the seed. A `base` stays below everything, wherever it appears; the last one named counts. `attack = false`
stays, unless a later part names an attack.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from sparsefed.commands.reproduce.exhibit import ROUND, Exhibit, ExhibitScale, Pick
from sparsefed.commands.reproduce.load import scale_of
from sparsefed.config import templates as bases
from sparsefed.core.errors import ConfigError
from sparsefed.results.groups import differing, flat
from sparsefed.sweeps.cells import Combination, Table
from sparsefed.sweeps.plan import SweepPlan, group

BESIDE = ("epochs", "checkpoint_every")  # implied by the rounds, and without effect on results
MOST_CHANGES = 4  # of one key, in the list of what a scale changes


@dataclass(frozen=True)
class ExhibitPlan:
    """An exhibit with the runs that it needs at a scale; a formula needs none."""

    exhibit: Exhibit
    sweep: SweepPlan


def plan(exhibit: Exhibit, scale: str) -> ExhibitPlan:
    """Return the runs of an exhibit at a scale; every config is checked on the way."""
    if exhibit.kind == "formula":
        return ExhibitPlan(exhibit, SweepPlan(exhibit.name, (), scale))
    chosen, chart = scale_of(exhibit, scale), exhibit.chart
    twins = exhibit.twins if chosen.twins is None else chosen.twins
    search = (exhibit.search.seed, exhibit.search.set) if exhibit.search else ()
    every = combinations(exhibit, scale)
    groups = tuple(group(each, chosen.seeds_at(each.values), twins, *search) for each in every)
    curves = chart.y if chart is not None and chart.x == ROUND else ()
    return ExhibitPlan(exhibit, SweepPlan(exhibit.name, groups, scale, curves))


def combinations(exhibit: Exhibit, scale: str) -> list[Combination]:
    """Return what is run at a scale, in the exhibit's order; every config is parsed, so that none fails later."""
    chosen = scale_of(exhibit, scale)
    every = [_combination(exhibit, chosen, values, scale) for values in _values(exhibit, chosen)]
    if not every:
        raise ConfigError(f"exhibit {exhibit.name}: nothing is left at scale '{scale}'; look at skip and only")
    return every


def _values(exhibit: Exhibit, scale: ExhibitScale) -> Iterator[dict[str, str]]:
    for values in itertools.product(*exhibit.axes.values()):
        each = dict(zip(exhibit.axes, values, strict=True))
        if matches(each, scale.only) and not any(matches(each, skipped) for skipped in exhibit.skip):
            yield each


def matches(values: Mapping[str, str], pick: Pick) -> bool:
    """Return whether every picked axis has one of the picked values.

    >>> matches({"data": "FMNIST", "defense": "Krum"}, {"defense": ("Krum", "Bulyan")})
    True
    """
    return all(values.get(axis) in allowed for axis, allowed in pick.items())


def _combination(exhibit: Exhibit, scale: ExhibitScale, values: dict[str, str], name: str) -> Combination:
    whole = f"exhibit {exhibit.name} at scale {name}" if name else exhibit.file
    source = f"{whole}, {', '.join(values.values())}"
    parts = [exhibit.axes[axis][value] for axis, value in values.items()]
    own = [scale.axes.get(axis, {}).get(value, {}) for axis, value in values.items()]
    table: Table = {}
    for part in (exhibit.common, *parts, scale.set, *own):
        table = _over(table, part)
    if "seed" in table:
        raise ConfigError(f"{source}: `seed` stands in a part of a config; seeds belong to the scales and to [search]")
    combined = Combination(values, table, _variants(exhibit, scale), source)
    first = combined.result(scale.seeds[0], next(iter(combined.variants), None) if table.get("attack", True) else None)
    if not first.config.is_attacked:
        return Combination(values, table, {}, source)
    for variant in combined.variants:
        combined.trial(0, variant, exhibit.search.set if exhibit.search else {})
    return combined


def _over(table: Table, part: Table) -> Table:
    """Put a part on top of a table; if the table has `attack = false`, parameters for attacks are dropped."""
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
    """Return how the configs differ from those of scale `paper`, one line per key; empty without such a scale."""
    if scale == "paper" or "paper" not in exhibit.scales:
        return []
    full, ours = (
        {tuple(each.values.values()): _flat(each) for each in combinations(exhibit, name)} for name in ("paper", scale)
    )
    changes: dict[str, dict[str, None]] = {}
    for values, now in ours.items():
        before = full.get(values, now)
        for key in differing([before, now]):
            change = f"{now.get(key, 'not given')} instead of {before.get(key, 'not given')}"
            changes.setdefault(key, {})[change] = None
    lines = [f"{key}: {_shortened(list(several))}" for key, several in changes.items()]
    counts = {
        "combinations": (len(ours), len(full)),
        "seeds": (len(scale_of(exhibit, scale).seeds), len(scale_of(exhibit, "paper").seeds)),
    }
    return lines + [f"{what}: {now} instead of {before}" for what, (now, before) in counts.items() if now != before]


def _flat(combination: Combination) -> dict[str, str]:
    return {key: item for key, item in flat(combination.result(0).table) if key not in BESIDE}


def _shortened(changes: list[str]) -> str:
    more = [f"and {len(changes) - MOST_CHANGES} more"] if len(changes) > MOST_CHANGES else []
    return "; ".join([*changes[:MOST_CHANGES], *more])
