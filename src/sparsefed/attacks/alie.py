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

from torch import Tensor

from sparsefed.attacks.attack import HONEST, SERVER, attack
from sparsefed.attacks.base import project
from sparsefed.attacks.goals import Goal
from sparsefed.attacks.honest import received, standard_deviations
from sparsefed.attacks.line_search import Most, Tries, check_search, strongest
from sparsefed.core.errors import ConfigError
from sparsefed.core.threat import Attack, Knowledge

PAPER = "Baruch et al. 2019, A Little Is Enough: Circumventing Defenses For Distributed Learning"


@attack(paper=PAPER, needs=HONEST, place=11, search={"z": "0.1:10"})
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


@attack(paper=PAPER, needs=SERVER, place=7)
def alie_searched(goal: Goal | None, *, most: Most = 1000.0, tries: Tries = 16) -> Attack:  # noqa: ARG001
    """A Little Is Enough with the z that moves the actual server farthest."""
    check_search("alie_searched", most, tries)

    def craft(knowledge: Knowledge) -> Tensor:
        usual = z_max(knowledge.cohort, knowledge.attackers)
        return strongest(knowledge, _shifted(knowledge), usual, most, tries)

    return Attack(craft, frozenset({"honest updates", "defense", "server state"}))


def z_max(n: int, f: int) -> float:
    """Return how many standard deviations f of n devices can move with a majority still beyond them; at least 0.

    >>> round(z_max(50, 24), 2), z_max(30, 1)
    (1.43, 0.0)
    """
    honest = n - f
    if honest < 1:
        raise ConfigError(f"all {n} devices of the round are attackers: A Little Is Enough hides among honest ones")
    outside = n // 2 + 1 - f
    share = min((honest - outside) / honest, 1 - 1 / (2 * honest))
    return NormalDist().inv_cdf(share) if share > 0.5 else 0.0


def _shifted(knowledge: Knowledge) -> Callable[[float], Tensor]:
    rows = received(knowledge)
    mean, std = rows.mean(0), standard_deviations(rows)
    return lambda z: project(mean - z * std, knowledge.budget)
