"""Summaries of runs in numbers: records in, values out; draws nothing.

The rules, repeated under the table of the report:
- *final* is the last evaluated round;
- the *last epoch* is the last rounds that together sample as many devices as there are; if a run is no longer than
  that, or it is unknown, the last ceil(n / 10) of the n rounds in which the attack was evaluated;
- the *norm ratio* is the median, over the rounds with attackers, of what they sent over what honest devices computed;
- a run has *not learned* (the paper's DNC, did not converge) if its test loss is not finite in its last evaluated
  round, or if it is finished and has learned nothing by either measure: its score is not better than CHANCE times that
  of a model that ignores its inputs (where that is high: than half way from it to 1), and its test loss is not below
  LEARNED times that of a model that predicts the shares of the classes, which alone can tell where a class is frequent;
- *landed* and *share* are medians over the rounds with attackers, see `core.metrics.reach`;
- the *outsized impact* is `outsized_impact` at the last evaluation.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

from sparsefed.core.threat import WHO
from sparsefed.core.types import RunRecord
from sparsefed.results.numbers import Curve, curve, finite, middle, percent

EVALUATED = ("test_accuracy", "test_loss", "attack_accuracy")
ACCURACY = "test accuracy"
NOT_LEARNED = "not learned"  # beside the number of a model that learned nothing
CHANCE = 1.2
DIVERGED = 10.0  # times the loss of the class shares: a model that is sure of what is wrong
LEARNED = 0.95  # of the loss of the class shares


@dataclass(frozen=True)
class SummaryRow:
    """One run in one line; accuracies are fractions, None where nothing was measured.

    `test_accuracy` is the score of the task (`data.scores`): the accuracy, or the metric that `scored_by` names.
    """

    name: str  # unique among the runs of one summary
    status: str  # 'finished', 'running' or 'interrupted'
    rounds: int
    planned: int | None
    converged: bool
    test_accuracy: float | None
    attack_accuracy: float | None
    attack_mean: float | None  # over the last epoch
    attack_max: float | None
    norm_ratio: float | None
    dropped: int
    seconds: float | None
    by_chance: bool = False  # did not converge, though its loss is finite
    landed: float | None = None  # the share of what attackers sent that was applied
    share: float | None = None  # the attackers' part of what was applied
    impact: float | None = None  # the paper's OIF
    test_perplexity: float | None = None  # of text
    scored_by: str = ACCURACY
    absolute_error: float | None = None  # of regression, in the unit of the targets

    @property
    def finished(self) -> bool:
        return self.status == "finished"

    @property
    def accuracy_text(self) -> str:
        """Return the test accuracy as text, marked if the run did not converge."""
        if self.by_chance:
            return f"{percent(self.test_accuracy)} {NOT_LEARNED}"
        return percent(self.test_accuracy) if self.converged else NOT_LEARNED


def labels(runs: Sequence[RunRecord]) -> list[str]:
    """Return a unique name for each run: its own, its folder's where names repeat, or else one with a number."""
    names = [run.name for run in runs]
    folders = [run.folder.name if run.folder and names.count(run.name) > 1 else run.name for run in runs]
    names = folders if len(set(folders)) == len(runs) else names
    taken: list[str] = []
    for name in names:
        tries = (name if i == 1 else f"{name} ({i})" for i in range(1, len(runs) + 1))
        taken.append(next(label for label in tries if label not in taken))
    return taken


def summary(runs: Sequence[RunRecord]) -> list[SummaryRow]:
    """Return a row for each run, in the order given."""
    return [
        summarise(
            run.rows,
            run.manifest.get("task", {}),
            name=label,
            status=str(run.manifest.get("status", "unknown")),
            planned=run.manifest.get("rounds"),
            attacked=attacked(run),
        )
        for label, run in zip(labels(runs), runs, strict=True)
    ]


def attacked(run: RunRecord) -> bool:
    """Return whether a run has attackers, according to its config."""
    threat = run.config.get("threat", {})
    return "attack" in run.config and any(threat.get(who) for who in WHO)


def last_epoch(points: Curve, rounds: int | None) -> list[float]:
    """Return the values of the last epoch of `rounds` rounds; if that is unknown, of the last ceil(n / 10) points.

    >>> last_epoch([(10, 0.1), (20, 0.2), (30, 0.3), (40, 0.4)], rounds=20)
    [0.3, 0.4]
    >>> last_epoch([(10, 0.1), (20, 0.2)], rounds=None)
    [0.2]
    """
    if rounds and points and rounds < points[-1][0]:
        return [value for round, value in points if round > points[-1][0] - rounds]
    return [value for _, value in points[len(points) - math.ceil(len(points) / 10) :]]


def summarise(
    rows: Sequence[Mapping[str, Any]],
    facts: Mapping[str, Any],
    *,
    name: str = "",
    status: str = "unknown",
    planned: int | None = None,
    attacked: bool = False,
) -> SummaryRow:
    """Summarise a run from the metrics of its rounds and the known `facts` of its task.

    Only a 'finished' run can be judged no better than chance; without attackers there is no outsized impact.
    """
    keys = ("test_accuracy", "attack_accuracy", "test_perplexity")
    lines = {key: curve(rows, score_key(facts) if key == "test_accuracy" else key) for key in keys}
    last = {key: line[-1][1] if line else None for key, line in lines.items()}
    tail, seconds = last_epoch(lines["attack_accuracy"], facts.get("epoch")), curve(rows, "seconds")
    by_chance = status == "finished" and _by_chance(facts, last["test_accuracy"], last_loss(rows))
    return SummaryRow(
        **last,
        name=name,
        status=status,
        rounds=max((int(row["round"]) for row in rows), default=0),
        planned=planned,
        converged=_converged(rows) and not by_chance,
        attack_mean=fmean(tail) if tail else None,
        attack_max=max(tail, default=None),
        norm_ratio=_norm_ratio(rows),
        dropped=sum(int(value) for _, value in curve(rows, "dropped")),
        seconds=math.fsum(value for _, value in seconds) if seconds else None,
        by_chance=by_chance,
        landed=middle(rows, "attack_landed"),
        share=middle(rows, "attack_share"),
        impact=_impact(facts, last["attack_accuracy"]) if attacked else None,
        scored_by=str(facts.get("score_title", ACCURACY)),
        absolute_error=errors[-1][1] if (errors := curve(rows, "test_mean_absolute_error")) else None,
    )


def measured_key(run: RunRecord, key: str) -> str:
    """Return the key under which a run's rows have a metric: for test accuracy, that of the task's score."""
    return score_key(run.manifest.get("task", {})) if key == "test_accuracy" else key


def score_key(facts: Mapping[str, Any]) -> str:
    """Return the key of the metric, in the rows of a run, that the run is judged by."""
    return str(facts.get("score", "test_accuracy"))


def last_loss(rows: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the test loss of the last evaluation; None if there is none, or it is not finite."""
    return next((finite(row["test_loss"]) for row in reversed(rows) if "test_loss" in row), None)


def diverged(run: RunRecord) -> str:
    """Return a sentence on a run whose test loss is far above that of the class shares, or not finite; '' if it is not.

    Accuracy can hide it: the sizes of a model's outputs do not matter for which one is largest.
    """
    loss, of_shares = last_loss(run.rows), finite(run.manifest.get("task", {}).get("chance_loss"))
    evaluated = any("test_loss" in row for row in run.rows)
    if not evaluated or (loss is not None and (of_shares is None or loss <= DIVERGED * of_shares)):
        return ""
    lr = run.config.get("train", {}).get("lr")
    beside = "" if of_shares is None else f", where predicting the shares of the classes gives {of_shares:.3g}"
    ends = "is not finite" if loss is None else f"ends at {loss:.3g}"
    return f"its test loss {ends}{beside}; unless attackers did that, lower train.lr (it is {lr})."


def _by_chance(facts: Mapping[str, Any], accuracy: float | None, loss: float | None) -> bool:
    chance, of_shares = finite(facts.get("chance")), finite(facts.get("chance_loss"))
    if chance is None or accuracy is None:
        return False
    if loss is not None and of_shares is not None and loss < LEARNED * of_shares:
        return False
    return accuracy <= min(CHANCE * chance, (1 + chance) / 2)  # where one class is frequent, half way to perfect


def _impact(facts: Mapping[str, Any], accuracy: float | None) -> float | None:
    influence, points, examples = (facts.get(key) for key in ("influence", "attack_points", "examples"))
    if accuracy is None or not (influence and points and examples):
        return None
    return outsized_impact(accuracy, influence, points, examples)


def _converged(rows: Iterable[Mapping[str, Any]]) -> bool:
    """Return whether the last evaluated loss is finite; a measured loss that is None was NaN before it became JSON."""
    evaluated = [row for row in rows if any(row.get(key) is not None for key in EVALUATED)]
    return not evaluated or "test_loss" not in evaluated[-1] or finite(evaluated[-1]["test_loss"]) is not None


def _norm_ratio(rows: Iterable[Mapping[str, Any]]) -> float | None:
    pairs = ((finite(row.get("attacker_norm")), finite(row.get("honest_norm"))) for row in rows)
    ratios = [sent / honest for sent, honest in pairs if sent is not None and honest]
    return median(ratios) if ratios else None


def progress(row: SummaryRow) -> str:
    """Return how many rounds the run has completed, as text."""
    return f"{row.rounds} rounds" if row.planned is None else f"{row.rounds} of {row.planned} rounds"


def outsized_impact(learned: float, influence: float, points: int, examples: int) -> float:
    """Return the paper's OIF, |X_m| / (I n): points poisoned over the attackers' influence times the data.

    `learned` is the attack accuracy on the `points`, `influence` the share of devices that are compromised (I), and
    `examples` the size n of the training set: 1 means that attackers moved as many points as they own data.

    >>> outsized_impact(0.5, 0.02, 500, 50_000)
    0.25
    """
    return learned * points / (influence * examples)
