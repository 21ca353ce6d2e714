"""Tables whose cells are coloured by what they say; the number is always there too, and colour alone says nothing.

A colour is a mixture of the page's own: none of `--hot` at 0, all of it at 1, so that one table serves light, dark and
paper, and text keeps its contrast. Hot is always bad.
"""

from __future__ import annotations

from collections.abc import Sequence

from sparsefed.reports.markup import Cell, Html, element, joined, note, table
from sparsefed.results.matrix import FELL, Entry, Matrix, judged
from sparsefed.results.numbers import percent, points

RULE = (
    "Attack accuracy: the share of the attackers' targets on which the model says what they want; test accuracy, and "
    "the points lost; both at the last evaluation, and means where there are several seeds. Held: attackers get at "
    "most 10 points more than they get for nothing, and at most 5 points of test accuracy are lost; fell: 50 points, "
    "or 20, or the model did not converge; in part: between. Both against the same defense without attackers where "
    "there is such a run, else against nothing and against the best test accuracy that there is."
)


def heat(text: str, share: float | None, under: str = "") -> Cell:
    """A cell coloured by a share between 0 and 1, with a second, smaller line where there is more to say.

    >>> heat("42%", 0.42)
    '<td style="--heat:42%">42%</td>'
    """
    filled = {} if share is None else {"style": f"--heat:{100 * min(1.0, max(0.0, share)):.0f}%"}
    children = [text, *([element("span", under, class_="under")] if under else [])]
    return Cell(element("td", *children, **filled))


def heat_table(caption: str, corner: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Html:
    """Rows of heat under named columns; the first of each row is its name."""
    return table(caption, (corner, *columns), rows, class_="numbers heat")


def matrix_tables(matrix: Matrix) -> Html:
    """A matrix as heat maps: what attackers got, and what was left of the model."""
    of = f" ({matrix.setting})" if matrix.setting else ""
    aimed = [attack for attack in matrix.attacks if any(_gets(matrix, d, attack) for d in matrix.defenses)]
    body = [(d, *(_attack_cell(matrix, d, attack) for attack in aimed)) for d in matrix.defenses]
    first = [heat_table(f"Attack accuracy{of}", "Defense", aimed, body)] if aimed else []
    rows = [(d, *(_test_cell(matrix, d, attack) for attack in matrix.attacks)) for d in matrix.defenses]
    second = heat_table(f"Test accuracy{of}", "Defense", matrix.attacks, rows)
    return element("div", *first, second, class_="side")


def matrix_part(matrices: Sequence[Matrix]) -> Html:
    """All matrices that compare something, and the rule by which they do; nothing where nobody attacked."""
    told = [matrix for matrix in matrices if matrix.attacked]
    tables = [matrix_tables(matrix) for matrix in told if len(matrix.entries) > 1]
    return joined([*tables, note(RULE)]) if told else Html("")


def _gets(matrix: Matrix, defense: str, attack: str) -> bool:
    entry = matrix.entries.get((defense, attack))
    return entry is not None and entry.attack is not None


def _attack_cell(matrix: Matrix, defense: str, attack: str) -> Cell:
    entry = matrix.entries.get((defense, attack))
    if entry is None or entry.attack is None:
        return heat("–", None)
    hostile = (defense, attack) in matrix.attacked
    return heat(percent(entry.attack), entry.attack, (judged(matrix, defense, attack) or "") if hostile else "")


def _test_cell(matrix: Matrix, defense: str, attack: str) -> Cell:
    entry = matrix.entries.get((defense, attack))
    if entry is None:
        return heat("–", None)
    said = " ".join([percent(entry.test), *([] if entry.converged else ["DNC"])])
    if (defense, attack) not in matrix.attacked:
        return heat(said, _warmth(matrix.behind(defense, attack), entry))
    lost = matrix.lost(defense, attack)
    under = "" if lost is None else f"{points(-lost)} pt" if round(1000 * lost) else "none lost"
    if entry.attack is None:  # an attack without targets is judged here, where its damage stands
        under = ", ".join(filter(None, [judged(matrix, defense, attack) or "", under]))
    return heat(said, _warmth(lost, entry), under)


def _warmth(lost: float | None, entry: Entry) -> float | None:
    """Points lost as a colour: what a defense falls at is half of it, as it is for attack accuracy."""
    if not entry.converged:
        return 1.0
    return None if lost is None else lost / (2 * FELL[1])
