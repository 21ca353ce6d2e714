"""Which runs an exhibit needs, in the order in which its results are told, and which attack a search settles on.

For each combination of the axes: the trials of the search, a variant of the attack each; then, for each seed, the run
that is reported and its twins. What is reported depends on the search, so it is known only once that is done.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from sparsefed.experiments.grid import Cell, Combination, combinations, twin
from sparsefed.experiments.reading import ROUND, scale_of
from sparsefed.experiments.record import Exhibit, Scale, Table, Twin

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
class Slot:
    """One line of the results: a run, and what it is there for."""

    values: Mapping[str, str]
    role: Role
    attack: str | None  # the variant, or that it is fixed; None where nobody attacks
    seed: int
    cell: Cell
    twins: Mapping[Twin, Cell] = field(default_factory=dict)


@dataclass(frozen=True)
class Group:
    """All runs of one combination."""

    values: Mapping[str, str]
    trials: tuple[Slot, ...]
    outcomes: Callable[[str | None], tuple[Slot, ...]]  # for the variant that is reported; None: there was no search
    coming: int  # how many those are


@dataclass(frozen=True)
class Plan:
    """An exhibit at a scale; one that was made in memory has none."""

    exhibit: Exhibit
    scale: str
    groups: tuple[Group, ...]

    @property
    def name(self) -> str:
        return f"{self.exhibit.name}.{self.scale}" if self.scale else self.exhibit.name

    @property
    def curves(self) -> tuple[str, ...]:
        """The metrics whose way through the rounds belongs to the results."""
        chart = self.exhibit.chart
        return chart.y if chart is not None and chart.x == ROUND else ()


def plan(exhibit: Exhibit, scale: str) -> Plan:
    """The runs of an exhibit at a scale; every config is checked on the way."""
    if exhibit.kind == "formula":
        return Plan(exhibit, scale, ())
    chosen = scale_of(exhibit, scale)
    return Plan(exhibit, scale, tuple(_group(exhibit, chosen, each) for each in combinations(exhibit, scale)))


def _group(exhibit: Exhibit, scale: Scale, each: Combination) -> Group:
    kinds = exhibit.twins if scale.twins is None else scale.twins
    search = exhibit.search
    return group(each, scale.seeds_at(each.values), kinds, *((search.seed, search.set) if search else ()))


def group(
    each: Combination, seeds: Sequence[int], kinds: tuple[Twin, ...], search_seed: int = 0, search_set: Table = NOTHING
) -> Group:
    """The runs of one combination: a trial for each variant of its attack, then what is reported with its twins."""
    trials = tuple(
        Slot(each.values, "search", variant, search_seed, each.trial(search_seed, variant, search_set))
        for variant in each.variants
    )

    @functools.cache
    def outcomes(variant: str | None) -> tuple[Slot, ...]:
        return tuple(slot for seed in seeds for slot in _outcome(each, seed, variant, kinds))

    first = next(iter(each.variants), None)
    return Group(each.values, trials, outcomes, len(outcomes(first)))


def _outcome(each: Combination, seed: int, variant: str | None, kinds: tuple[Twin, ...]) -> Iterator[Slot]:
    """The run that is reported and its twins."""
    cell = each.result(seed, variant)
    found = {kind: twin(cell, kind) for kind in kinds}
    twins = {kind: other for kind, other in found.items() if other is not None}
    attack = (variant or FIXED) if cell.attacked else None
    yield Slot(each.values, "result", attack, seed, cell, twins)
    for kind, other in twins.items():
        yield Slot(each.values, ROLES[kind], attack, seed, other)


def strongest(trials: Mapping[str, Metrics]) -> str | None:
    """The variant that a search settles on, see STRONGEST; of equals the first, and None if there is none.

    >>> strongest({"a": {"attack_mean": 0.5, "converged": True}, "b": {"attack_mean": 0.9, "converged": False}})
    'a'
    """
    if all(metrics.get("attack_mean") is None for metrics in trials.values()):
        return min(trials, key=lambda name: trials[name].get("test_accuracy") or 0.0, default=None)
    converged = {name: metrics for name, metrics in trials.items() if metrics.get("converged")} or trials
    return max(converged, key=lambda name: converged[name].get("attack_mean") or 0.0)
