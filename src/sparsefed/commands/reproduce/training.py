"""Whether runs were long enough to tell: a verdict on a hardly trained model is about the training, not the rule.

Two rules, which need nothing but the results and the exhibit's configs:

- *undertrained*: the runs have fewer rounds than the paper's, and the best model of their data set in the results
  (without attackers, or before they had an effect: the largest of all evaluations) is more than `FAR` below what a
  model that nobody attacks reaches at the end of the paper's schedule, `REACHED`. Nothing is told by its runs. A model
  that had all of the paper's rounds is where its schedule ends: if it learned little, that is not for want of time.
- *early*: in less than half of the paper's rounds no attack got `LITTLE` of its points. An attack grows from round to
  round (on CIFAR-10 6 % of the points at round 400, 28 % at 1000, all at 1600, against the same clipping; on
  Fashion-MNIST see exhibit training-length), so one that has not succeeded yet was not resisted either. Nothing is told
  by it about attacks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from sparsefed.commands.reproduce.exhibit import Exhibit
from sparsefed.commands.reproduce.grid import ExhibitPlan, combinations
from sparsefed.config import Config
from sparsefed.sweeps.ledger import Row
from sparsefed.sweeps.plan import CellGroup

FAR = 0.1
LITTLE = 0.1
# Test accuracy at the end of the paper's 2400 rounds, at least: a ResNet9 of width 16 on CIFAR-10 (clipping alone, one
# seed, under attack); the `cnn` on Fashion-MNIST is there after 300 rounds already.
REACHED = {"cifar10": 0.793, "fmnist": 0.894}

Values = tuple[tuple[str, str], ...]  # of a combination


class TrainingLength(NamedTuple):
    """How far the runs of one combination got."""

    undertrained: bool = False
    early: bool = False  # less than half of the paper's rounds


def trainings(plan: ExhibitPlan, rows: Sequence[Row]) -> dict[Values, TrainingLength]:
    """Return how far the runs of every combination got, by the values of its axes."""
    if plan.exhibit.kind == "formula":
        return {}
    configs = {tuple(group.values.items()): _first(group) for group in plan.sweep.groups}
    sets = {values: config.data.name for values, config in configs.items()}
    short = {name for name in set(sets.values()) if _undertrained(name, sets, rows)}
    full = _paper_rounds(plan.exhibit)
    return {
        each: TrainingLength(sets[each] in short and config.rounds < full, 2 * config.rounds < full)
        for each, config in configs.items()
    }


def _first(group: CellGroup) -> Config:
    slots = group.trials or group.outcomes(None)
    return slots[0].cell.config


def _undertrained(name: str, sets: Mapping[Values, str], rows: Iterable[Row]) -> bool:
    """Return whether no model of a data set came near to what it reaches; False if that or all models are unknown."""
    own = [row["metrics"] for row in rows if sets.get(tuple(row["cell"].items())) == name and row["role"] == "result"]
    best = [metrics[key] for metrics in own for key in ("unattacked", "test_max") if metrics.get(key) is not None]
    return bool(best) and name in REACHED and max(best) < REACHED[name] - FAR


def _paper_rounds(exhibit: Exhibit) -> int:
    """Return the rounds of the paper's longest run; 0 if the exhibit is not the paper's."""
    every = combinations(exhibit, "paper") if "paper" in exhibit.scales else []
    return max((each.result(0).config.rounds for each in every), default=0)
