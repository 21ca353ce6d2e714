"""The moves of a search for a defense: which rules and parameters it opens with, and what lies next to one of them.

rule       all whose parameters follow from the task, or those that were named
clip_norm  L at 1 and 1/4 of the derived one, for every rule; then halves and doubles
clip       L fixed, times the learning rate (FedAvg mode), or following a quantile of the updates' norms
k          the derived one and a third of all coordinates; then a quarter and four times
f          what a round expects and twice that, up to what the rule is defined for; then half as much again
radius     half and double
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from sparsefed import config as configs
from sparsefed.commands.audit.defense_specs import ROOM, UNDEFENDED, DefenseSpec, Facts, smallest_cohort
from sparsefed.config import Config
from sparsefed.core.errors import SparseFedError
from sparsefed.kernels.topk import coordinates
from sparsefed.results.numbers import significant

OPENING = (1.0, 0.25)  # of the derived L
QUANTILES = (0.1, 0.5)  # of updates that stay unclipped
BY_QUANTILE = ("clipping", "sparsefed")  # rules that open with these, too
COMPRESSION = ("fetchsgd", "local_topk")  # rules that save bytes: not opened with
DIGITS = 3

Params = Mapping[str, Any]


def opening(specs: Iterable[DefenseSpec], config: Config, facts: Facts) -> list[DefenseSpec]:
    """Return the defenses that a search begins with: every rule at several clipping norms."""
    usual = significant(ROOM * facts.in_rates, DIGITS)
    several: list[DefenseSpec] = []
    for spec in specs:
        if spec.table["name"] == UNDEFENDED or spec.name in COMPRESSION:
            continue
        own = float(spec.table.get("clip_norm") or usual)
        clip = {"clip": "adaptive"} if config.train.mode == "fedavg" else {}
        norms = [significant(factor * own, DIGITS) for factor in OPENING]
        for other in [{}, *_larger(spec.table, config, facts.d)]:
            several += (named({**spec.table, **other, **clip, "clip_norm": norm}) for norm in norms)
        for quantile in QUANTILES if spec.name in BY_QUANTILE else ():
            started = significant(facts.norm, DIGITS)
            several.append(named({**spec.table, "clip": "quantile", "clip_norm": started, "quantile": quantile}))
    return [each for each in {each.name: each for each in several}.values() if possible(each.table, config)]


def _larger(table: Params, config: Config, d: int) -> Iterator[dict[str, Any]]:
    """Yield a larger k and a larger f, where the rule has them."""
    if "k" in table:
        yield {"k": max(coordinates(table["k"], d), d // 3)}
    if "f" in table:
        yield {"f": min(2 * table["f"], configs.rule(str(table["name"])).largest_f(smallest_cohort(config)))}


def neighbours(spec: DefenseSpec, config: Config, d: int) -> list[DefenseSpec]:
    """Return the defenses one move away: another value of one parameter."""
    moves = [{**spec.table, **move} for move in _moves(spec.table, config, d)]
    near = {each.name: each for each in map(named, moves) if each.name != spec.name}
    return [each for each in near.values() if possible(each.table, config)]


def _moves(table: Params, config: Config, d: int) -> Iterator[dict[str, Any]]:
    if table.get("clip") == "quantile":
        yield from ({"quantile": significant(min(0.95, table["quantile"] * by), DIGITS)} for by in (0.5, 2.0))
    elif table.get("clip_norm") is not None:
        yield from ({"clip_norm": significant(table["clip_norm"] * by, DIGITS)} for by in (0.5, 2.0))
    if "k" in table:
        own = coordinates(table["k"], d)
        yield from ({"k": min(max(round(own * by), 1), d)} for by in (0.25, 4.0))
    if "f" in table:
        most = configs.rule(str(table["name"])).largest_f(smallest_cohort(config))
        yield {"f": min(math.ceil(table["f"] * 1.5), most)}
    if "radius" in table:
        yield from ({"radius": significant(table["radius"] * by, DIGITS)} for by in (0.5, 2.0))


def named(table: Params) -> DefenseSpec:
    """Return a defense under a name that says all of its parameters.

    >>> named({"name": "sparsefed", "k": 100, "clip_norm": 0.5}).name
    'sparsefed (k = 100, clip_norm = 0.5)'
    """
    given = ", ".join(f"{key} = {value}" for key, value in table.items() if key != "name")
    return DefenseSpec(f"{table['name']} ({given})" if given else str(table["name"]), dict(table), "by the search")


def possible(table: Params, config: Config) -> bool:
    """Return whether the config takes this defense."""
    try:
        configs.parse({**configs.dump(config), "defense": dict(table)})
    except SparseFedError:
        return False
    return True
