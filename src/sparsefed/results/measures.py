"""The measures of a finished run by name: how each is titled, formatted and computed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from statistics import fmean
from typing import Any, NamedTuple

from sparsefed.core.types import RunRecord
from sparsefed.results import numbers
from sparsefed.results.numbers import curve, finite, length, middle, percent, picked, points, significant, times, whole
from sparsefed.results.summary import measured_key, summary
from sparsefed.results.twins import compare

DIGITS = 6  # significant digits in the results: a few seeds support no more, and the files stay small
LATE = 5  # evaluations
MOST_POINTS = 50  # of a curve
TASK_METRICS = (
    *("test_balanced_accuracy", "test_auc", "test_rare_recall", "test_f1"),
    *("test_mean_absolute_error", "test_mean_squared_error"),
)
MEDIANS = ("honest_norm", "attacker_norm", "upload_bytes", "download_bytes")  # over the rounds


class Measure(NamedTuple):
    """A metric: its title, its format and what it means."""

    title: str
    write: Callable[[float | None], str]
    about: str
    share: bool = False  # whether its axis goes from 0 to 1


MEASURES: dict[str, Measure] = {
    "test_accuracy": Measure("Test accuracy", percent, "at the last evaluation, without the attackers' points", True),
    "test_error": Measure("Test error", percent, "1 - test accuracy", True),
    "test_max": Measure("Best test accuracy", percent, "the largest of all evaluations", True),
    "test_mean": Measure("Mean test accuracy", percent, "over all evaluations: the sooner it rises, the larger", True),
    "test_late": Measure("Test accuracy, late", percent, "the mean of the last five evaluations", True),
    "test_loss": Measure("Test loss", numbers.plain, "at the last evaluation"),
    "test_perplexity": Measure("Test perplexity", numbers.perplexity, "of text, at the last evaluation"),
    "test_balanced_accuracy": Measure("Balanced accuracy", percent, "the mean over the classes of each's", True),
    "test_auc": Measure("AUC", percent, "area under the ROC curve, at the last evaluation", True),
    "test_rare_recall": Measure("Recall of the rarest class", percent, "at the last evaluation", True),
    "test_f1": Measure("F1", percent, "harmonic mean of precision and recall, at the last evaluation", True),
    "test_mean_absolute_error": Measure("Mean absolute error", numbers.plain, "in the unit of the targets"),
    "test_mean_squared_error": Measure("Mean squared error", numbers.plain, "in the squared unit of the targets"),
    "attack_accuracy": Measure("Attack accuracy", percent, "at the last evaluation", True),
    "attack_mean": Measure("Attack accuracy, mean", percent, "over the last epoch", True),
    "attack_max": Measure("Attack accuracy, max", percent, "over the last epoch", True),
    "converged": Measure("Converged", percent, "share of the runs that did", True),
    "oif": Measure("Outsized impact", times, "the paper's OIF at the last evaluation"),
    "honest_norm": Measure("Honest norm", length, "median over rounds, before the server clips"),
    "attacker_norm": Measure("Attacker norm", length, "median over rounds with attackers"),
    "norm_ratio": Measure("Attacker norm / honest norm", times, "median over rounds with attackers"),
    "landed": Measure("Landed", percent, "of what attackers sent, median over rounds with attackers", True),
    "lost": Measure("Accuracy lost, points", points, "test accuracy of the run without attackers minus its own"),
    "unattacked": Measure("Test accuracy, unattacked", percent, "of the same run without attackers", True),
    "class_lost_most": Measure("Lost by one class, points", points, "the class that lost most by the attack"),
    "attack_anyway": Measure("Baseline", percent, "attack accuracy of the run without attackers", True),
    "l1": Measure("l1 to unattacked", length, "distance between the models with and without attackers"),
    "l2": Measure("l2 to unattacked", length, "distance between the models with and without attackers"),
    "l1_plain": Measure("l1 to plain", length, "distance to the model without attackers and without a defense"),
    "l2_plain": Measure("l2 to plain", length, "distance to the model without attackers and without a defense"),
    "upload_bytes": Measure("Bytes up", whole, "of a device in a round"),
    "download_bytes": Measure("Bytes down", whole, "of a device in a round"),
}

OF_TWINS = {  # what is measured by comparison with each twin
    "unattacked": ("lost", "unattacked", "class_lost_most", "attack_anyway", "l1", "l2"),
    "plain": ("l1_plain", "l2_plain"),
}


def measure(name: str) -> Measure:
    """Return the metric of that name; one that is not in `MEASURES` (a formula's) gets a plain format.

    >>> measure("attack_mean").title, measure("largest_m").title, measure("share").write(0.1234)
    ('Attack accuracy, mean', 'Largest m', '12.3%')
    """
    write = numbers.NumberFormat("{:.3g}%", scale=100) if name.endswith("share") else numbers.plain
    return MEASURES.get(name, Measure(name.replace("_", " ").capitalize(), write, ""))


# --- of one run -------------------------------------------------------------------------------------------------------


def metrics(record: RunRecord) -> dict[str, Any]:
    """Return what was measured in a run, under the names of `MEASURES`."""
    (row,) = summary([record])
    last: Mapping[str, Any] = next((each for each in reversed(record.rows) if "test_loss" in each), {})
    tests = [value for _, value in curve(record.rows, measured_key(record, "test_accuracy"))]
    values = {
        **{key: finite(last.get(key)) for key in TASK_METRICS},
        **asdict(row),
        **{key: middle(record.rows, key) for key in MEDIANS},
        "test_error": None if row.test_accuracy is None else 1 - row.test_accuracy,
        "test_max": max(tests, default=None),
        "test_mean": fmean(tests) if tests else None,
        "test_late": fmean(tests[-LATE:]) if len(tests) > LATE else None,
        "test_loss": finite(last.get("test_loss")),
        "oif": row.impact,
    }
    return _rounded({name: values.get(name) for name in MEASURES})


def versus(record: RunRecord, twins: Mapping[str, RunRecord]) -> dict[str, Any]:
    """Return what the attack changed, by comparing the run with its twins `unattacked` and `plain`."""
    if not twins:
        return {}
    (compared, *_) = compare([record, *twins.values()])
    near = compared.to_unattacked if "unattacked" in twins else None
    far = compared.to_plain if "plain" in twins else None
    return _rounded(
        {
            "lost": compared.drop,
            "unattacked": summary([twins["unattacked"]])[0].test_accuracy if "unattacked" in twins else None,
            "class_lost_most": max(compared.class_drops.values(), default=None),
            "attack_anyway": compared.learned_anyway,
            "l1": near and near.l1,
            "l2": near and near.l2,
            "l1_plain": far and far.l1,
            "l2_plain": far and far.l2,
        }
    )


def beside(own: Mapping[str, Any], twins: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return what the measures of a run and of its twins alone say of the attack, without their models.

    >>> beside({"test_accuracy": 0.5}, {"unattacked": {"test_accuracy": 0.75, "attack_accuracy": 0.01}})
    {'lost': 0.25, 'unattacked': 0.75, 'attack_anyway': 0.01}
    """
    near = twins.get("unattacked", {})
    accuracy, reached = own.get("test_accuracy"), near.get("test_accuracy")
    lost = None if accuracy is None or reached is None else reached - accuracy
    return _rounded({"lost": lost, "unattacked": reached, "attack_anyway": near.get("attack_accuracy")})


def curves(record: RunRecord, names: tuple[str, ...]) -> dict[str, list[tuple[int, float]]]:
    """Return some metrics by round, thinned to `MOST_POINTS`."""
    thin = {name: picked(curve(record.rows, name), MOST_POINTS) for name in names}
    return {name: [(t, significant(value, DIGITS)) for t, value in line] for name, line in thin.items()}


def _rounded(values: Mapping[str, Any]) -> dict[str, Any]:
    kept = {name: value for name, value in values.items() if value is not None}
    return {n: v if isinstance(v, bool) else significant(float(v), DIGITS) for n, v in kept.items()}
