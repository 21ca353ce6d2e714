"""What is measured in a cell, by the name that exhibits use; how each is titled and written."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from sparsefed.results.numbers import length, percent, perplexity, points, times

Write = Callable[[float | None], str]


class Measure(NamedTuple):
    """One metric."""

    title: str
    write: Write
    about: str
    share: bool = False  # whether an axis of it goes from 0 to 1


def _whole(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}"


def _plain(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}"


MEASURES: dict[str, Measure] = {
    "test_accuracy": Measure("Test accuracy", percent, "at the last evaluation, without the attackers' points", True),
    "test_error": Measure("Test error", percent, "1 - test accuracy", True),
    "test_max": Measure("Best test accuracy", percent, "the largest of all evaluations", True),
    "test_mean": Measure("Mean test accuracy", percent, "over all evaluations: the sooner it rises, the larger", True),
    "test_loss": Measure("Test loss", _plain, "at the last evaluation"),
    "test_perplexity": Measure("Test perplexity", perplexity, "of text, at the last evaluation"),
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
    "attack_anyway": Measure("Attack for nothing", percent, "attack accuracy of the run without attackers", True),
    "l1": Measure("l1 to unattacked", length, "distance between the models with and without attackers"),
    "l2": Measure("l2 to unattacked", length, "distance between the models with and without attackers"),
    "l1_plain": Measure("l1 to plain", length, "distance to the model without attackers and without a defense"),
    "l2_plain": Measure("l2 to plain", length, "distance to the model without attackers and without a defense"),
    "upload_bytes": Measure("Bytes up", _whole, "of a device in a round"),
    "download_bytes": Measure("Bytes down", _whole, "of a device in a round"),
}


def measure(name: str) -> Measure:
    """The metric of that name; one that only a formula knows is written plainly.

    >>> measure("attack_mean").title, measure("largest_m").title
    ('Attack accuracy, mean', 'Largest m')
    """
    unlisted = Measure(name.replace("_", " ").capitalize(), _share if name.endswith("share") else _formulas, "")
    return MEASURES.get(name, unlisted)


def _share(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.3g}%"


def _formulas(value: float | None) -> str:
    return _whole(value) if value is not None and float(value).is_integer() else _plain(value)
