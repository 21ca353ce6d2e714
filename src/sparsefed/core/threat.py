"""The threat model as a type: who is compromised, when they act, what they know, and what an attack is.

An attack receives one frozen `Knowledge` and nothing else, so that what it uses can be read off its code. It declares
in advance what it must know beyond the public facts (`needs`), and a run whose attackers are not granted that does not
start. What the server does with the updates is up to the defense.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt
from torch import Tensor

from sparsefed.core.errors import ConfigError, unknown
from sparsefed.core.rng import rng
from sparsefed.core.types import Batch, IntArray, State

BoolArray = npt.NDArray[np.bool_]

# Knowledge that attackers may be granted beyond the public facts of a round (the model, the schedule, the norm that the
# server enforces) and the points they chose themselves:
#   own data         the examples of the round's compromised devices
#   defense          the server's rule with its parameters: they can try it on any updates
#   honest updates   the updates of this round's honest devices
#   server state     the server's momentum and memory
Need = Literal["own data", "defense", "honest updates", "server state"]
NEEDS: tuple[Need, ...] = get_args(Need)

# A false report to secure aggregation: a norm that is claimed to be smaller, a square that wraps around, bits that are
# none, shares of different reports, a report sent before, a report cut off, a report with changed bytes.
Forgery = Literal["norm", "wraparound", "bits", "swap", "replay", "truncated", "corrupt"]
FORGERIES: tuple[Forgery, ...] = get_args(Forgery)

WHO = ("share", "count", "ids", "per_round")


@dataclass(frozen=True)
class ThreatModel:
    """The compromised devices, and the rounds in which they act; by default there are none.

    Who: a `share` of the population or a `count`, drawn once from the seed; or fixed `ids`; or `per_round` devices of
    each round's cohort, drawn anew each time.
    Knowing: the public facts of a round and what `knowledge` lists, see `Need`.
    When: rounds `start`, `start + every`, ... up to and including `stop`; without `stop`, to the end.
    """

    share: float | None = None
    count: int | None = None
    ids: tuple[int, ...] | None = None
    per_round: int | None = None
    start: int = 1
    stop: int | None = None
    every: int = 1
    knowledge: tuple[Need, ...] = ("own data",)  # what the attackers are granted beyond the public facts

    def __post_init__(self) -> None:
        _check_who(self)
        for need in self.knowledge:
            if need not in NEEDS:
                raise ConfigError(unknown("knowledge", need, NEEDS))
        if self.start < 1 or self.every < 1:
            raise ConfigError(
                f"attackers act from round start = {self.start} on, once in every = {self.every} rounds; both must be "
                "at least 1"
            )
        if self.stop is not None and self.stop < self.start:
            raise ConfigError(
                f"attackers stop at round {self.stop}, before they start at {self.start}; use stop >= start, or "
                "count = 0 for nobody"
            )


def _check_who(threat: ThreatModel) -> None:
    named = [name for name in WHO if getattr(threat, name) is not None]
    if len(named) > 1:
        raise ConfigError(f"a threat model takes one of {', '.join(WHO)}, but was given {' and '.join(named)}")
    if threat.share is not None and not 0 <= threat.share < 1:
        raise ConfigError(f"the share of attackers is {threat.share}; use 0 to below 1, for instance 0.02 for 2 %")
    for name in ("count", "per_round"):
        value = getattr(threat, name)
        if value is not None and value < 0:
            raise ConfigError(f"the {name} of attackers is {value}; use 0 or more")
    if threat.ids is not None and (min(threat.ids, default=0) < 0 or len(set(threat.ids)) < len(threat.ids)):
        raise ConfigError("the ids of attackers must be different numbers from 0; one is negative or given twice")


def malicious_ids(threat: ThreatModel, devices: int, seed: int) -> IntArray:
    """Return the compromised devices, sorted: the fixed ids, or a draw that depends on the seed alone."""
    if threat.ids is not None:
        if max(threat.ids, default=0) >= devices:
            raise ConfigError(
                f"attacker id {max(threat.ids)} is none of the {devices} devices; use ids from 0 to {devices - 1}"
            )
        return np.array(sorted(threat.ids), np.int64)
    count = _attackers(threat, devices)
    if count > devices:
        raise ConfigError(f"{count} attackers are more than the {devices} devices; use at most {devices}")
    return np.sort(rng(seed, "malicious").choice(devices, count, replace=False))


def _attackers(threat: ThreatModel, devices: int) -> int:
    if not threat.share:
        return threat.count or 0
    count = math.floor(threat.share * devices + 0.5)
    if count == 0:
        raise ConfigError(
            f"a share of {threat.share} of {devices} devices is less than half a device; raise the share to at least "
            f"{1 / devices:g}, or use count = 0 for nobody"
        )
    return count


def acts(threat: ThreatModel, round: int) -> bool:
    """Return whether the compromised devices misbehave in this round; otherwise they are honest.

    >>> [r for r in range(1, 12) if acts(ThreatModel(count=1, start=3, stop=9, every=3), r)]
    [3, 6, 9]
    """
    over = threat.stop is not None and round > threat.stop
    return round >= threat.start and not over and (round - threat.start) % threat.every == 0


def malicious_mask(cohort_ids: IntArray, malicious: IntArray) -> BoolArray:
    """Return a mask of the devices that are among the malicious (sorted), in O(cohort log f).

    >>> malicious_mask(np.array([5, 2, 9]), np.array([2, 7, 9]))
    array([False,  True,  True])
    """
    if len(malicious) == 0:
        return np.zeros(len(cohort_ids), bool)
    nearest = np.minimum(np.searchsorted(malicious, cohort_ids), len(malicious) - 1)
    found: BoolArray = malicious[nearest] == cohort_ids
    return found


@dataclass(frozen=True)
class Knowledge:
    """The attackers' knowledge in a round: public facts, then what they were granted; None if not granted."""

    round: int
    theta: Tensor  # float32 [d], the model that every device of the round downloads
    budget: float  # the l2 norm to which the server clips an update; inf if it does not
    gradient: Callable[[Tensor, Tensor, Tensor], Tensor]  # (theta, x, y) -> gradient of the mean loss [d]
    seed: int
    attackers: int = 1  # compromised devices that take part in this round
    scale: float = 1.0  # factor on an honest device's gradient: 1, or in FedAvg mode the sum of its rates
    cohort: int = 1  # devices that take part, including the attackers
    own: Batch | None = None  # "own data": device after device
    honest: Tensor | None = None  # "honest updates": float32 [m, d]
    serve: Callable[[Tensor], Tensor] | None = None  # "defense": all updates [n, d] -> what the server would subtract
    server: State | None = None  # "server state"; without it, `serve` starts from a server with empty memory
    # Where devices take several local steps: what each attacker would send after honest training on these examples,
    # device after device [a, d]; None where that is `scale` times one gradient.
    train: Callable[[Batch], Tensor] | None = None


Craft = Callable[[Knowledge], Tensor]  # -> [d], sent by all attackers of the round, or [attackers, d], one each


@dataclass(frozen=True)
class Attack:
    """A function that crafts the updates of a round's attackers: `theta_before - theta_after`, as for any device."""

    craft: Craft
    needs: frozenset[Need] = frozenset()
    forgeries: tuple[Forgery, ...] = ()  # under secure aggregation: which false reports carry the updates, in turn

    def __call__(self, knowledge: Knowledge) -> Tensor:
        return self.craft(knowledge)
