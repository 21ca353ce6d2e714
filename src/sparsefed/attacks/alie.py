"""A Little Is Enough: hide inside the spread of the honest updates (Baruch, Baruch and Goldberg 2019).

    u = mean - z * std,  in each coordinate, over the honest updates
    z_max = Phi^-1((n - f - s) / (n - f)),   s = floor(n / 2 + 1) - f   (n devices, f of them attackers)

s is how many honest devices must stand farther out than the attackers for these to be in the majority on that side, so
that a median believes them. `alie_searched` chooses z by trying: the one that moves the server's answer farthest from
what it would be without attackers, as Shejwalkar and Houmansadr 2021 tailor an attack to a rule they know.

With few attackers z_max is hardly an attack (0.05 for 3 of 30 devices, 0.2 for 6); the search mostly is. But
how far a server is moved is not how much its model suffers: a median moved farther along -std may learn as well.

*Departures.* The paper estimates mean and std from the clean updates of the attackers' own devices; here the honest
updates of the round are known, and are seen as the server sees them: clipped. std divides by the number of updates.
Where the formula would make z_max negative it is 0 (the mean itself), and where attackers are a majority the share is
kept half a device below 1. Some implementations take (n - s) / n for the share.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import NormalDist
from typing import Annotated

import torch
from torch import Tensor

from sparsefed.attacks.base import Attack, Knowledge, granted, project
from sparsefed.attacks.goals import Goal
from sparsefed.errors import ConfigError
from sparsefed.vectors.distances import COLUMNS
from sparsefed.vectors.rows import row_norms

DECADES = 4  # that a search spans below the largest strength
GOLDEN = (math.sqrt(5) - 1) / 2
FEWEST_TRIES = 6  # three of a grid, the usual one, and two between

Most = Annotated[float, "the largest strength to try; the smallest is a ten-thousandth of it"]
Tries = Annotated[int, "strengths to try; each costs one step of the server's rule"]


def alie(
    goal: Goal | None,  # noqa: ARG001
    *,
    z: Annotated[float | None, "standard deviations away from the mean; by default the paper's z_max"] = None,
) -> Attack:
    """All attackers send the honest mean less z standard deviations."""
    if z is not None and not 0 <= z < math.inf:
        raise ConfigError(f"alie: z is {z}, but it is a number of standard deviations: choose z >= 0")

    def craft(knowledge: Knowledge) -> Tensor:
        return _shifted(knowledge)(z_max(knowledge.cohort, knowledge.attackers) if z is None else z)

    return Attack(craft, frozenset({"honest updates"}))


def alie_searched(goal: Goal | None, *, most: Most = 1000.0, tries: Tries = 16) -> Attack:  # noqa: ARG001
    """The same with the z that moves the actual server farthest."""
    check_search("alie_searched", most, tries)

    def craft(knowledge: Knowledge) -> Tensor:
        usual = z_max(knowledge.cohort, knowledge.attackers)
        return strongest(knowledge, _shifted(knowledge), usual, most, tries)

    return Attack(craft, frozenset({"honest updates", "defense", "server state"}))


def z_max(n: int, f: int) -> float:
    """How many standard deviations f attackers of n devices can go with a majority still beyond them; at least 0.

    >>> round(z_max(50, 24), 2), z_max(30, 1)
    (1.43, 0.0)
    """
    honest = n - f
    if honest < 1:
        raise ConfigError(f"all {n} devices of the round are attackers: A Little Is Enough hides among honest ones")
    outside = n // 2 + 1 - f
    share = min((honest - outside) / honest, 1 - 1 / (2 * honest))
    return NormalDist().inv_cdf(share) if share > 0.5 else 0.0


def received(knowledge: Knowledge) -> Tensor:
    """The honest updates as the server will see them [m, d]: without the unusable ones, and clipped."""
    honest = granted(knowledge.honest, "honest updates")
    norms = row_norms(honest)
    usable = torch.isfinite(norms)
    if not bool(usable.any()):
        return honest.new_zeros(1, honest.shape[1])
    if not bool(usable.all()):
        honest, norms = honest[usable], norms[usable]
    if not bool((norms > knowledge.budget).any()):
        return honest
    factors = torch.where(norms > knowledge.budget, knowledge.budget / norms, 1.0)
    return honest * factors.to(honest.dtype)[:, None]


def standard_deviations(rows: Tensor) -> Tensor:
    """Of each column [d], dividing by the number of rows; some columns at a time, for the sake of the cache."""
    parts = torch.split(rows, COLUMNS, dim=1)
    return torch.cat([(part - part.mean(0)).square_().mean(0).sqrt_() for part in parts])


def _shifted(knowledge: Knowledge) -> Callable[[float], Tensor]:
    rows = received(knowledge)
    mean, std = rows.mean(0), standard_deviations(rows)
    return lambda z: project(mean - z * std, knowledge.budget)


# --- strength against the actual server ------------------------------------------------------------------------------


def check_search(name: str, most: float, tries: int) -> None:
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
