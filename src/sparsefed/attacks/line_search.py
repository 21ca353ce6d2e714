"""A search for the strength of an attack that moves the actual server farthest from its step without attackers.

It is for attackers who are granted the server's rule and can try it (Shejwalkar and Houmansadr 2021 tailor attacks to a
rule this way).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Annotated

import torch
from torch import Tensor

from sparsefed.attacks.base import granted
from sparsefed.core.errors import ConfigError
from sparsefed.core.threat import Knowledge

DECADES = 4  # spanned by a search below the largest strength
GOLDEN = (math.sqrt(5) - 1) / 2
FEWEST_TRIES = 6  # three on a grid, the usual strength, and two in between

Most = Annotated[float, "the largest strength to try; the smallest is a ten-thousandth of it"]
Tries = Annotated[int, "strengths to try; each costs one step of the server's rule"]


def check_search(name: str, most: float, tries: int) -> None:
    """Raise ConfigError for a search without a range or without enough tries."""
    if not 0 < most < math.inf or tries < FEWEST_TRIES:
        raise ConfigError(
            f"{name}: most = {most}, tries = {tries}; most must be positive, and tries at least {FEWEST_TRIES}"
        )


def strongest(
    knowledge: Knowledge, craft: Callable[[float], Tensor], usual: float, most: float, tries: int
) -> Tensor:  # [d]
    """Return the update `craft` makes at the strength that moves the server farthest; never weaker than the usual."""
    honest, serve = granted(knowledge.honest, "honest updates"), granted(knowledge.serve, "defense")
    everybody = torch.cat([honest, honest.new_full((knowledge.attackers, honest.shape[1]), math.nan)])
    # NaN rows, because a server drops them and keeps the cohort's size, whereas some rules refuse a smaller cohort.
    undisturbed = serve(everybody)
    if not bool(torch.isfinite(undisturbed).all()):
        undisturbed = serve(honest)

    def deviation(strength: float) -> float:
        everybody[len(honest) :] = craft(strength)
        moved = float(torch.linalg.vector_norm(serve(everybody) - undisturbed, dtype=torch.float64))
        return moved if math.isfinite(moved) else 0.0

    return craft(maximiser(deviation, usual, most, tries))


def maximiser(f: Callable[[float], float], usual: float, most: float, tries: int) -> float:
    """Return where f is largest among `tries` places; ties take the smallest.

    Half of the places are a geometric grid, the rest a golden section search around its best one. Rules that select
    make f jump, so that golden section alone would miss the maximum.

    >>> round(maximiser(lambda x: -abs(x - 7), 1.0, 1000.0, 30), 2)
    7.0
    """
    grid = tries // 2
    places = sorted({most * 10 ** (-DECADES * i / (grid - 1)) for i in range(grid)} | {usual})
    tried = {place: f(place) for place in places}
    best = places.index(_best(tried))
    low, high = places[max(best - 1, 0)], places[min(best + 1, len(places) - 1)]
    return _best(tried | _golden(f, low, high, tries - len(tried)))


def _golden(f: Callable[[float], float], low: float, high: float, tries: int) -> dict[float, float]:
    """Search for the largest f between two places by golden section; each try but the first narrows them by 0.618."""
    left, right = high - GOLDEN * (high - low), low + GOLDEN * (high - low)
    tried = {left: f(left), right: f(right)}
    for _ in range(tries - 2):
        if tried[left] >= tried[right]:
            high, right = right, left
            place = left = high - GOLDEN * (high - low)
        else:
            low, left = left, right
            place = right = low + GOLDEN * (high - low)
        tried[place] = f(place)
    return tried


def _best(tried: dict[float, float]) -> float:
    return max(sorted(tried), key=lambda place: tried[place])
