"""Comparison of an attacked run with its twins: itself without attackers, and also without a defense.

Twins are found among the runs of one report by their configs, which are alike in everything but name, threat, how often
a run is evaluated or saved, and, for the second, the defense. The paper measures how far a poisoned model is from the
unattacked one, its authors' code how far it is from the unattacked and undefended one: both are reported.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sparsefed import runs
from sparsefed.core.types import RunRecord
from sparsefed.results.numbers import finite
from sparsefed.results.summary import SummaryRow, attacked, summary

BESIDE = ("name", "evaluate_every", "checkpoint_every", "threat", "attack")  # where twins may differ


class Distances(NamedTuple):
    """The distances between two models as flat vectors."""

    l1: float
    l2: float


@dataclass(frozen=True)
class Comparison:
    """The changes caused by an attack; each is None if a twin or its model is missing."""

    name: str  # of the attacked run, as in the summary
    unattacked: str | None  # the label of its twin
    drop: float | None  # of test accuracy: the twin's minus its own
    class_drops: Mapping[str, float]  # by class, where both runs measured it
    learned_anyway: float | None  # attack accuracy of the twin: the baseline
    to_unattacked: Distances | None
    to_plain: Distances | None  # to the model without attackers and without a defense


def compare(records: Sequence[RunRecord]) -> list[Comparison]:
    """Return a comparison for each attacked run that has a twin among the others, in the order given."""
    rows = summary(records)
    compared = (_compared(i, records, rows) for i, run in enumerate(records) if attacked(run))
    return [each for each in compared if each is not None]


def _compared(i: int, records: Sequence[RunRecord], rows: Sequence[SummaryRow]) -> Comparison | None:
    run, own = records[i], rows[i]
    same, plain = (_twin(run, records, undefended) for undefended in (False, True))
    to_plain = None if plain is None else _apart(run, records[plain])
    if same is None:
        return None if plain is None else Comparison(own.name, None, None, {}, None, None, to_plain)
    other, twin = rows[same], records[same]
    classes, twins = class_accuracies(run), class_accuracies(twin)
    drops = {name: twins[name] - classes[name] for name in classes if name in twins}
    drop = None
    if own.test_accuracy is not None and other.test_accuracy is not None:
        drop = other.test_accuracy - own.test_accuracy
    return Comparison(own.name, other.name, drop, drops, other.attack_accuracy, _apart(run, twin), to_plain)


def _twin(run: RunRecord, records: Sequence[RunRecord], undefended: bool) -> int | None:
    """Return the first equal run without attackers, preferably with the goal: it has the same test examples."""
    beside = {*BESIDE, *(("defense",) if undefended else ())}
    wanted = _without(run, beside)
    alike = [i for i, other in enumerate(records) if not attacked(other) and _without(other, beside) == wanted]
    if undefended:
        alike = [i for i in alike if records[i].config.get("defense", {}).get("name") == "undefended"]
    return min(alike, key=lambda i: ("attack" not in records[i].config, i), default=None)


def _without(run: RunRecord, keys: Container[str]) -> dict[str, Any]:
    return {key: value for key, value in run.config.items() if key not in keys}


def class_accuracies(run: RunRecord) -> dict[str, float]:
    """Return the accuracy on each class at the last evaluation, by the class's name."""
    names = run.manifest.get("task", {}).get("classes", [])
    measured = [row["class_accuracy"] for row in run.rows if row.get("class_accuracy")]
    if not measured or len(measured[-1]) != len(names):
        return {}
    pairs = zip(names, map(finite, measured[-1]), strict=True)
    return {name: value for name, value in pairs if value is not None}


def _apart(run: RunRecord, other: RunRecord) -> Distances | None:
    """Return how far apart two models are; None if one has not been saved, or they are not of one round."""
    if run.folder is None or other.folder is None:
        return None
    one, two = runs.load_state(run.folder), runs.load_state(other.folder)
    if one is None or two is None or one.round != two.round or one.theta.shape != two.theta.shape:
        return None
    return distances(one.theta, two.theta)


def distances(theta: Tensor, other: Tensor) -> Distances:
    """Return |theta - other| in both norms.

    >>> distances(torch.tensor([1.0, 1.0]), torch.tensor([4.0, -3.0]))
    Distances(l1=7.0, l2=5.0)
    """
    difference = theta.double() - other.double()
    return Distances(float(difference.abs().sum()), float(torch.linalg.vector_norm(difference)))
