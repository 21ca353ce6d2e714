"""How strong an attack should be: so that the actual server ends farthest from what it would do without attackers.

For attackers who are granted the server's rule, so that they can try it (Shejwalkar and Houmansadr 2021 tailor attacks
to a rule this way).
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

DECADES = 4  # that a search spans below the largest strength
GOLDEN = (math.sqrt(5) - 1) / 2
FEWEST_TRIES = 6  # three of a grid, the usual one, and two between

Most = Annotated[float, "the largest strength to try; the smallest is a ten-thousandth of it"]
Tries = Annotated[int, "strengths to try; each costs one step of the server's rule"]


def check_search(name: str, most: float, tries: int) -> None:
    """Refuse a search that has nowhere to look."""
    if not 0 < most < math.inf or tries < FEWEST_TRIES:
        raise ConfigError(
            f"{name}: most = {most}, tries = {tries}; most must be positive, and tries at least {FEWEST_TRIES}"
        )


def strongest(
    knowledge: Knowledge, craft: Callable[[float], Tensor], usual: float, most: float, tries: int
) -> Tensor:  # [d]
    """What `craft` makes of the strength that moves the server's answer farthest; never weaker than the usual one."""
    honest, serve = granted(knowledge.honest, "honest updates"), granted(knowledge.serve, "defense")
    everybody = torch.cat([honest, honest.new_full((knowledge.attackers, honest.shape[1]), math.nan)])
    # A server drops what is not finite and goes on as for a whole cohort, whereas some rules refuse a smaller one.
    undisturbed = serve(everybody)
    if not bool(torch.isfinite(undisturbed).all()):
        undisturbed = serve(honest)

    def deviation(strength: float) -> float:
        everybody[len(honest) :] = craft(strength)
        moved = float(torch.linalg.vector_norm(serve(everybody) - undisturbed, dtype=torch.float64))
        return moved if math.isfinite(moved) else 0.0

    return craft(maximiser(deviation, usual, most, tries))


def maximiser(f: Callable[[float], float], usual: float, most: float, tries: int) -> float:
    """Where f is largest, of `tries` places: half of them a grid by equal factors, the rest golden section around its
    best place. Rules that select make f jump, so that golden section alone would miss; of equals, the smallest.

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
    """Golden section for the largest f between two places: each try but the first narrows them by 0.618."""
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
