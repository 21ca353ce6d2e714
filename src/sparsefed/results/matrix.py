"""The defense x attack matrix: the result of each pair, and whether the defense held. Numbers only; draws nothing.

Runs that differ in their seed alone are one entry: the mean over the seeds. Both accuracies are those of the last
evaluation, the model that one would use: where attackers gain at the end, a mean over an epoch would hide it. A matrix
has one data set and one model; rows are defenses (and whatever else of the training differs), columns are attacks with
the attackers' number and knowledge.

A defense *held* where attackers gained at most 10 points over the baseline and at most 5 points of test accuracy were
lost; it *fell* where they gained 50 points or the model lost 20 or did not converge; between them it held *in part*.
Both are measured against the same defense without attackers where there is such a run; otherwise the baseline of attack
accuracy is 0, and test accuracy is compared with the best of the matrix.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Literal

from sparsefed.core.types import RunRecord
from sparsefed.results.groups import facts, frozen, grouped, told_apart
from sparsefed.results.summary import SummaryRow, attacked, summary

NO_ATTACK = "no attack"
TASK, THREAT = ("data", "model"), ("attack", "threat")
HELD, FELL = (0.10, 0.05), (0.50, 0.20)  # attack accuracy beyond the baseline, test accuracy lost

Judgement = Literal["held", "in part", "fell"]


@dataclass(frozen=True)
class Entry:
    """The runs of one defense under one attack; accuracies are means over their seeds."""

    rows: tuple[SummaryRow, ...]

    @property
    def seeds(self) -> int:
        return len(self.rows)

    @property
    def converged(self) -> bool:
        return all(row.converged for row in self.rows)

    @property
    def attack(self) -> float | None:
        return mean([row.attack_accuracy for row in self.rows])

    @property
    def test(self) -> float | None:
        return mean([row.test_accuracy for row in self.rows])

    @property
    def error(self) -> float | None:
        """Return the mean absolute error, in the unit of the targets, where numbers are predicted."""
        return mean([row.absolute_error for row in self.rows])

    @property
    def spread(self) -> float:
        """Return the largest difference between two seeds, in attack or in test accuracy."""
        measured = zip(*((row.attack_accuracy, row.test_accuracy) for row in self.rows), strict=True)
        known = [[value for value in values if value is not None] for values in measured]
        return max((max(values) - min(values) for values in known if values), default=0.0)


@dataclass(frozen=True)
class Matrix:
    """All pairs of one setting; `NO_ATTACK`, if there is such a run, is the first attack."""

    setting: str  # what distinguishes it from the other matrices; '' if it is the only one
    defenses: tuple[str, ...]
    attacks: tuple[str, ...]
    entries: Mapping[tuple[str, str], Entry]
    baselines: Mapping[tuple[str, str], Entry] = field(default_factory=dict)  # of attacks with a goal of their own

    @property
    def hostile(self) -> tuple[str, ...]:
        """Return the attacks without `NO_ATTACK`."""
        return tuple(attack for attack in self.attacks if attack != NO_ATTACK)

    @property
    def attacked(self) -> dict[tuple[str, str], Entry]:
        """Return the entries under attack."""
        return {pair: entry for pair, entry in self.entries.items() if pair[1] != NO_ATTACK}

    def lost(self, defense: str, attack: str) -> float | None:
        """Return the test accuracy lost against the same defense without attackers, or else the best of the matrix."""
        own, baseline = self.entries[defense, attack].test, self._baseline(defense, attack).test
        return self.behind(defense, attack) if own is None or baseline is None else baseline - own

    def behind(self, defense: str, attack: str) -> float | None:
        """Return how far test accuracy is below the best of the matrix."""
        own = self.entries[defense, attack].test
        best = max((entry.test for entry in self.entries.values() if entry.test is not None), default=None)
        return None if own is None or best is None else best - own

    def gained(self, defense: str, attack: str) -> float | None:
        """Return the attack accuracy beyond the baseline: that of the same defense without attackers."""
        own = self.entries[defense, attack].attack
        return None if own is None else own - (self._baseline(defense, attack).attack or 0.0)

    def error_added(self, defense: str, attack: str) -> float | None:
        """Return how much the mean absolute error grew against the same defense without attackers, in its unit."""
        own, baseline = self.entries[defense, attack].error, self._baseline(defense, attack).error
        return None if own is None or baseline is None else own - baseline

    def _baseline(self, defense: str, attack: str) -> Entry:
        own = self.baselines.get((defense, attack))
        return self.entries.get((defense, NO_ATTACK), Entry(())) if own is None else own


def judged(matrix: Matrix, defense: str, attack: str) -> Judgement | None:
    """Return whether a defense held against an attack, by the rule above; None if nothing was measured."""
    if not matrix.entries[defense, attack].converged:
        return "fell"
    measured = (matrix.gained(defense, attack), matrix.lost(defense, attack))
    # Rounded to a hundredth of a point, so that floating point does not decide at the thresholds.
    known = [(round(value, 4), i) for i, value in enumerate(measured) if value is not None]
    if not known:
        return None
    if any(value >= FELL[i] for value, i in known):
        return "fell"
    return "held" if all(value <= HELD[i] for value, i in known) else "in part"


def judgements(matrix: Matrix) -> dict[str, Judgement]:
    """Return each defense's judgement under its worst attack."""
    order: tuple[Judgement, ...] = ("fell", "in part", "held")
    several = grouped((defense for defense, _ in matrix.attacked), (judged(matrix, *pair) for pair in matrix.attacked))
    known = {name: [each for each in several.get(name, ()) if each] for name in matrix.defenses}
    return {name: min(each, key=order.index) for name, each in known.items() if each}


def matrices(runs: Sequence[RunRecord]) -> list[Matrix]:
    """Return the runs as matrices, one per setting, in the order given."""
    tasks = [facts(run, only=TASK) for run in runs]
    names = told_apart([(_name(run, "data"), task) for run, task in zip(runs, tasks, strict=True)])
    settings = grouped(map(frozen, tasks), zip(runs, summary(runs), names, strict=True))
    return [_matrix(members, members[0][2] if len(settings) > 1 else "") for members in settings.values()]


def _matrix(members: Sequence[tuple[RunRecord, SummaryRow, str]], setting: str) -> Matrix:
    runs, rows, _ = zip(*members, strict=True)
    defenses = told_apart([(_name(run, "defense"), facts(run, without=(*TASK, *THREAT))) for run in runs])
    hostile = iter(told_apart([(_name(run, "attack"), facts(run, only=THREAT)) for run in runs if attacked(run)]))
    attacks = [next(hostile) if attacked(run) else NO_ATTACK for run in runs]
    together = grouped(zip(defenses, attacks, strict=True), rows)
    columns = sorted(dict.fromkeys(attacks), key=lambda attack: attack != NO_ATTACK)
    entries = {pair: Entry(tuple(own)) for pair, own in together.items()}
    return Matrix(setting, tuple(dict.fromkeys(defenses)), tuple(columns), entries)


def _name(run: RunRecord, kind: str) -> str:
    return str((run.config.get(kind) or {}).get("name", run.name))


def mean(values: Sequence[float | None]) -> float | None:
    """Return the mean of the values that were measured."""
    known = [value for value in values if value is not None]
    return fmean(known) if known else None
