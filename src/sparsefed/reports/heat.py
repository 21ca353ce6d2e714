"""Tables with cells coloured by value: defenses against attacks, and test accuracy class by class.

The number is always shown too; colour is never the only information. Hot always means bad.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from sparsefed.core.types import RunRecord
from sparsefed.reports.document import Block, Level, Side, Table, TableCell, fold, note, table
from sparsefed.results.matrix import FELL, Entry, Judgement, Matrix, judged
from sparsefed.results.numbers import percent, points
from sparsefed.results.summary import NOT_LEARNED, labels
from sparsefed.results.twins import Comparison, class_accuracies

RULE = (
    "Attack accuracy: the share of the attackers' targets on which the model says what they want; test accuracy, and "
    "the points lost; both at the last evaluation, and means where there are several seeds. Held: attackers get at "
    "most 10 points more than the baseline, and at most 5 points of test accuracy are lost; fell: 50 points, or 20, or "
    "the model learned nothing; in part: between. The baseline is the same defense without attackers where there is "
    "such a run, else an attack accuracy of 0 and the best test accuracy that there is."
)
LEVELS: Mapping[Judgement | None, Level] = {"held": "good", "in part": "fair", "fell": "poor"}
MOST_ROWS = 20  # of a table that is not folded
WRONG = "Colour: the share of the class that the model gets wrong."
LOST = "Below: the points lost against the same run without attackers."
NOTHING = TableCell("–")


def matrix_part(matrices: Sequence[Matrix]) -> Iterator[Block]:
    """Yield all matrices that compare something, and the rule of judgement; nothing if no run has attackers."""
    hostile = [matrix for matrix in matrices if matrix.attacked]
    yield from (Side(tuple(_tables(matrix))) for matrix in hostile if len(matrix.entries) > 1)
    if hostile:
        yield note(RULE, page_only=False)


def _tables(matrix: Matrix) -> Iterator[Table]:
    """Yield a matrix as heat maps: the attackers' accuracy, and the model's."""
    of = f" ({matrix.setting})" if matrix.setting else ""
    measured = {pair for pair, entry in matrix.entries.items() if entry.attack is not None}
    aimed = [attack for attack in matrix.attacks if any((d, attack) in measured for d in matrix.defenses)]
    for what, cell, attacks in (("Attack", _attack_cell, aimed), ("Test", _test_cell, matrix.attacks)):
        if attacks:
            rows = [(d, *(cell(matrix, d, attack) for attack in attacks)) for d in matrix.defenses]
            yield table(f"{what} accuracy{of}", ("Defense", *attacks), rows)
    if any(entry.error is not None for entry in matrix.entries.values()):
        rows = [(d, *(_error_cell(matrix, d, attack) for attack in matrix.attacks)) for d in matrix.defenses]
        yield table(f"Mean absolute error{of}", ("Defense", *matrix.attacks), rows)


def _attack_cell(matrix: Matrix, defense: str, attack: str) -> TableCell:
    entry = matrix.entries.get((defense, attack))
    if entry is None or entry.attack is None:
        return NOTHING
    judgement = judged(matrix, defense, attack) if (defense, attack) in matrix.attacked else None
    return TableCell(percent(entry.attack), entry.attack, entry.attack, LEVELS.get(judgement, ""), judgement or "")


def _test_cell(matrix: Matrix, defense: str, attack: str) -> TableCell:
    entry = matrix.entries.get((defense, attack))
    if entry is None:
        return NOTHING
    text = percent(entry.test) if entry.converged else f"{percent(entry.test)} {NOT_LEARNED}"
    if (defense, attack) not in matrix.attacked:
        return TableCell(text, entry.test, _warmth(matrix.behind(defense, attack), entry))
    lost, judgement = matrix.lost(defense, attack), judged(matrix, defense, attack)
    under = lost_text(lost)
    if entry.attack is None:  # an untargeted attack is judged here, by its damage
        under = ", ".join(filter(None, [judgement or "", under]))
    return TableCell(text, entry.test, _warmth(lost, entry), LEVELS.get(judgement, ""), under)


def lost_text(lost: float | None) -> str:
    """Return how many points were lost; '' if that is unknown.

    >>> lost_text(0.222), lost_text(-0.01), lost_text(0.0)
    ('22.2 pt lost', '1.0 pt gained', 'none lost')
    """
    if lost is None or not round(1000 * lost):
        return "" if lost is None else "none lost"
    return f"{points(abs(lost))} pt {'lost' if lost > 0 else 'gained'}"


def _error_cell(matrix: Matrix, defense: str, attack: str) -> TableCell:
    """Return the error in the unit of the targets, and what the attack added to it, coloured like the score."""
    entry = matrix.entries.get((defense, attack))
    if entry is None or entry.error is None:
        return NOTHING
    added = matrix.error_added(defense, attack) if (defense, attack) in matrix.attacked else None
    heat = _test_cell(matrix, defense, attack).heat
    return TableCell(f"{entry.error:.3g}", entry.error, heat, under="" if added is None else f"{added:+.3g}")


def _warmth(lost: float | None, entry: Entry) -> float | None:
    """Return points lost as a heat: the threshold of a fall is half of it, as it is for attack accuracy."""
    if not entry.converged:
        return 1.0
    return None if lost is None else lost / (2 * FELL[1])


def class_part(runs: Sequence[RunRecord], compared: Sequence[Comparison]) -> Iterator[Block]:
    """Yield classes against runs, the more numerous in rows; nothing if no run measured it."""
    named = zip(labels(runs), runs, strict=True)
    measured = {label: accuracies for label, run in named if (accuracies := class_accuracies(run))}
    names = list(dict.fromkeys(name for classes in measured.values() for name in classes))
    if not names:
        return
    lost = {each.name: each.class_drops for each in compared if each.class_drops}
    cells = {
        (run, name): _class_cell(measured[run].get(name), lost.get(run, {}).get(name))
        for run in measured
        for name in names
    }
    caption, few = "Test accuracy by class, at the last evaluation", len(measured) <= len(names)
    down, across = (names, list(measured)) if few else (list(measured), names)
    rows = [(each, *(cells[(other, each) if few else (each, other)] for other in across)) for each in down]
    by_class = table(caption, ("Class" if few else "Run", *across), rows)
    yield from fold(caption, by_class, when=len(rows) > MOST_ROWS)
    yield note(f"{WRONG} {LOST}" if lost else WRONG)


def _class_cell(accuracy: float | None, drop: float | None) -> TableCell:
    if accuracy is None:
        return NOTHING
    return TableCell(percent(accuracy), accuracy, 1 - accuracy, under=lost_text(drop))
