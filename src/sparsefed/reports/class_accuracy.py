"""Test accuracy by class: where the damage is, as a heat map; against the run without attackers where there is one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sparsefed.core.types import RunRecord
from sparsefed.reports.heat import heat, heat_table
from sparsefed.reports.markup import Cell, Html, foldable, joined, note
from sparsefed.results.numbers import percent, points
from sparsefed.results.summary import labels
from sparsefed.results.twins import Comparison, class_accuracies

MOST_ROWS = 20  # of a table that is not folded
WRONG = "Colour: the share of the class that the model gets wrong."
LOST = "Below: the points lost against the same run without attackers."


def classes(runs: Sequence[RunRecord], compared: Sequence[Comparison]) -> Html:
    """Classes against runs, whichever are more in rows; nothing where no run measured it."""
    named = zip(labels(runs), runs, strict=True)
    measured = {label: found for label, run in named if (found := class_accuracies(run))}
    names = list(dict.fromkeys(name for by_class in measured.values() for name in by_class))
    if not names:
        return Html("")
    lost = {each.name: each.class_drops for each in compared if each.class_drops}
    caption = "Test accuracy by class, at the last evaluation"
    if len(measured) > len(names):
        rows = [(run, *(_cell(measured, lost, run, name) for name in names)) for run in measured]
        told = heat_table(caption, "Run", names, rows)
    else:
        rows = [(name, *(_cell(measured, lost, run, name) for run in measured)) for name in names]
        told = heat_table(caption, "Class", list(measured), rows)
    return joined([foldable(caption, told, fold=len(rows) > MOST_ROWS), note(f"{WRONG} {LOST}" if lost else WRONG)])


def _cell(
    measured: Mapping[str, Mapping[str, float]], lost: Mapping[str, Mapping[str, float]], run: str, name: str
) -> Cell:
    accuracy = measured[run].get(name)
    drop = lost.get(run, {}).get(name)
    if accuracy is None:
        return heat("–", None)
    return heat(percent(accuracy), 1 - accuracy, "" if drop is None else f"{points(-drop)} pt")
