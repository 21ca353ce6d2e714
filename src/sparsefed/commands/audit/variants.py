"""Variants of an attack: as given first, then points spread evenly over the ranges that `tune` searches.

The points are the Kronecker sequence of the powers of 1/g, g the root of g^(n+1) = g + 1 (n = 1: the golden ratio),
from a start drawn by the seed: however many the points, none lie close together, which matters in a search as short as
an audit's. Only numbers are varied; choices stay as given. Every defense meets the same variants.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from sparsefed.commands.audit.attack_specs import AttackSpec
from sparsefed.commands.tune.space import Range, search_space
from sparsefed.config import Config, Named
from sparsefed.core.errors import ConfigError
from sparsefed.core.rng import rng
from sparsefed.results.numbers import significant

GIVEN = "as given"
DIGITS = 3  # of a parameter


def variants(config: Config, foe: AttackSpec, count: int, seed: int) -> dict[str, dict[str, Any]]:
    """Return up to `count` variants by name, as parts of [attack]; fewer if the attack has less to vary."""
    found: dict[str, dict[str, Any]] = {GIVEN: {}}
    ranges = numbers(config, foe)
    start = rng(seed, f"audit {foe.name}").random(len(ranges))
    for i in range(1, count):
        point = [(float(at) + i * step) % 1 for at, step in zip(start, steps(len(ranges)), strict=True)]
        params = {name: placed(ranges[name], u) for name, u in zip(ranges, point, strict=True)}
        if params and params not in found.values():
            found[f"variant {i + 1}"] = params
    return found


def numbers(config: Config, foe: AttackSpec) -> Mapping[str, Range]:
    """Return the parameters of an attack's method that are varied, with their ranges."""
    try:
        space = search_space(config.model_copy(update={"attack": Named(**foe.table)}))
    except ConfigError:  # nothing to search
        return {}
    return {name: found for name, found in space.items() if isinstance(found, Range)}


def steps(n: int) -> list[float]:
    """Return 1/g, 1/g^2, ..., with g^(n+1) = g + 1.

    >>> [round(step, 4) for step in steps(1)], [round(step, 4) for step in steps(2)]
    ([0.618], [0.7549, 0.5698])
    """
    g = 1.5
    for _ in range(60):
        g = (1 + g) ** (1 / (n + 1))
    return [g**-j for j in range(1, n + 1)]


def placed(within: Range, u: float) -> float | int:
    """Return the number at a share u of the range, on the range's own scale.

    >>> placed(Range(0.01, 1.0, True, False), 0.5), placed(Range(1, 20, True, True), 0.99)
    (0.1, 19)
    """
    low, high = within.low, within.high
    value = math.exp(math.log(low) + u * math.log(high / low)) if within.log else low + u * (high - low)
    value = round(value) if within.whole else significant(value, DIGITS)
    return type(value)(min(max(value, low), high))
