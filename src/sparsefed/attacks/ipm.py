"""Inner product manipulation: turn the mean of all updates against the honest one (Xie, Koyejo and Gupta 2020,
Fall of Empires).

    u = -epsilon * mean,  over the honest updates

so that <mean, what the server makes of it> can be negative and the model climbs. A plain mean of n devices, f of them
attackers, turns round where epsilon > (n - f) / f; rules that select or trim are fooled by a small epsilon, near
the honest updates. `ipm_searched` finds the epsilon that moves the actual server farthest. Farther is not always
worse for the model: against rules that select it did far more harm than the default; against a trimmed mean, a median
or clipping it did about as much, sometimes a little more, sometimes a little less.

*Departures.* The paper fixes epsilon by hand for each rule; without one, it is 2 (n - f) / f here, at which a plain
mean climbs as fast as it would have descended. The honest updates are seen as the server sees them: clipped.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Annotated

from torch import Tensor

from sparsefed.attacks.attack import HONEST, SERVER, attack
from sparsefed.attacks.base import project
from sparsefed.attacks.goals import Goal
from sparsefed.attacks.honest import received
from sparsefed.attacks.line_search import Most, Tries, check_search, strongest
from sparsefed.core.errors import ConfigError
from sparsefed.core.threat import Attack, Knowledge

PAPER = "Xie et al. 2020, Fall of Empires: Breaking Byzantine-tolerant SGD by Inner Product Manipulation"


@attack(paper=PAPER, needs=HONEST, place=3, search={"epsilon": "0.01:100"})
def ipm(
    goal: Goal | None,  # noqa: ARG001
    *,
    epsilon: Annotated[float | None, "times the honest mean; by default what turns a plain mean right round"] = None,
) -> Attack:
    """All attackers send the negated honest mean, epsilon times as long."""
    if epsilon is not None and not 0 <= epsilon < math.inf:
        raise ConfigError(f"ipm: epsilon is {epsilon}, but it is a factor on the reversed mean: choose epsilon >= 0")

    def craft(knowledge: Knowledge) -> Tensor:
        return _reversed(knowledge)(_usual(knowledge) if epsilon is None else epsilon)

    return Attack(craft, frozenset({"honest updates"}))


@attack(paper=PAPER, needs=SERVER, place=2)
def ipm_searched(goal: Goal | None, *, most: Most = 1000.0, tries: Tries = 16) -> Attack:  # noqa: ARG001
    """Inner product manipulation with the epsilon that moves the actual server farthest."""
    check_search("ipm_searched", most, tries)

    def craft(knowledge: Knowledge) -> Tensor:
        return strongest(knowledge, _reversed(knowledge), _usual(knowledge), most, tries)

    return Attack(craft, frozenset({"honest updates", "defense", "server state"}))


def _usual(knowledge: Knowledge) -> float:
    return 2 * (knowledge.cohort - knowledge.attackers) / knowledge.attackers


def _reversed(knowledge: Knowledge) -> Callable[[float], Tensor]:
    mean = received(knowledge).mean(0)
    return lambda epsilon: project(-epsilon * mean, knowledge.budget)
