"""The runs that a sweep needs, in the order of its results, and the attack that a search settles on.

For each combination: the trials of the search, one per variant of the attack; then, for each seed, the reported run and
its twins. What is reported depends on the search, so it is known only once that is done.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from sparsefed.sweeps.cells import Combination, SweepCell, Table, Twin, twin

Role = Literal["search", "result", "twin", "plain"]
ROLES: dict[Twin, Role] = {"unattacked": "twin", "plain": "plain"}
FIXED = "fixed"  # the attack of a combination without a search
STRONGEST = (
    "Of a search's variants the strongest is reported, run anew with other seeds: the largest mean attack accuracy "
    "over the last epoch among the runs that converged, or, where the attackers want no particular labels, the lowest "
    "test accuracy."
)

NOTHING: Table = {}
Metrics = Mapping[str, Any]


@dataclass(frozen=True)
class CellSlot:
    """One line of the results: a run and its role."""

    values: Mapping[str, str]
    role: Role
    attack: str | None  # the variant, or FIXED; None without attackers
    seed: int
    cell: SweepCell
    twins: Mapping[Twin, SweepCell] = field(default_factory=dict)

    @property
    def keys(self) -> set[str]:
        """Return the keys of the run and of its twins."""
        return {self.cell.key, *(cell.key for cell in self.twins.values())}


@dataclass(frozen=True)
class CellGroup:
    """All runs of one combination."""

    values: Mapping[str, str]
    trials: tuple[CellSlot, ...]
    outcomes: Callable[[str | None], tuple[CellSlot, ...]]  # of the variant that is reported; None: no search
    coming: int  # how many those are


@dataclass(frozen=True)
class SweepPlan:
    """The named runs in the order of their lines, and the file these are written to."""

    name: str  # also the start of every line and of every cell's title
    groups: tuple[CellGroup, ...]
    scale: str = ""  # in every line and in the file's name; '' where the plan has no scales
    curves: tuple[str, ...] = ()  # the metrics whose curves belong to the results


def group(
    each: Combination, seeds: Sequence[int], kinds: tuple[Twin, ...], search_seed: int = 0, search_set: Table = NOTHING
) -> CellGroup:
    """Return the runs of one combination: the trials of the search, then what is reported, with its twins."""
    trials = tuple(
        CellSlot(each.values, "search", variant, search_seed, each.trial(search_seed, variant, search_set))
        for variant in each.variants
    )

    @functools.cache
    def outcomes(variant: str | None) -> tuple[CellSlot, ...]:
        return tuple(slot for seed in seeds for slot in _outcome(each, seed, variant, kinds))

    first = next(iter(each.variants), None)
    return CellGroup(each.values, trials, outcomes, len(outcomes(first)))


def _outcome(each: Combination, seed: int, variant: str | None, kinds: tuple[Twin, ...]) -> Iterator[CellSlot]:
    """Yield the reported run and its twins."""
    cell = each.result(seed, variant)
    possible = {kind: twin(cell, kind) for kind in kinds}
    twins = {kind: other for kind, other in possible.items() if other is not None}
    attack = (variant or FIXED) if cell.config.is_attacked else None
    yield CellSlot(each.values, "result", attack, seed, cell, twins)
    for kind, other in twins.items():
        yield CellSlot(each.values, ROLES[kind], attack, seed, other)


def strongest(trials: Mapping[str, Metrics]) -> str | None:
    """Return the variant that a search settles on, see STRONGEST; the first of equals, None if there is none.

    >>> strongest({"a": {"attack_mean": 0.5, "converged": True}, "b": {"attack_mean": 0.9, "converged": False}})
    'a'
    """
    if all(metrics.get("attack_mean") is None for metrics in trials.values()):
        return min(trials, key=lambda name: trials[name].get("test_accuracy") or 0.0, default=None)
    converged = {name: metrics for name, metrics in trials.items() if metrics.get("converged")} or trials
    return max(converged, key=lambda name: converged[name].get("attack_mean") or 0.0)
