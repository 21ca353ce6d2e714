"""A certificate for a person: the table of radii, the list of assumptions."""

from __future__ import annotations

import math
from collections.abc import Iterator

from rich.markup import escape
from rich.table import Table

from sparsefed.commands.certify.accuracy import Accuracy
from sparsefed.commands.certify.bounds import power, written
from sparsefed.commands.certify.certificate import Certificate, share_down
from sparsefed.theory.radius import Radius

MOST_ROWS = 8  # of the table of certified accuracies

ASSUMED = "What it rests on"
PARTS = "additive + propagation"
NAMES = {  # of a field of `Bounds`
    "softmax": "softmax layer, by l2",
    "capped": "capped recursion",
    "recursion": "recursion",
    "recursion_sqrt_d": "recursion, sqrt(d)",
    "movement": "clipping alone",
    "closed_form": "closed form, sound",
    "paper": "closed form, paper",
}
LEGEND = (
    "Of the l1 distance between the attacked model and the one without attackers, rounded up; in brackets the number "
    "itself. Additive: what the rounds add up to; propagation: the factor by which early differences grow. A bound?: "
    "'if' means under the assumptions that were given or measured. sqrt(d): the additive term over all "
    "coordinates, as the paper has it, instead of the w = min(d, 2k) that count. Clipping alone: no two runs of "
    "updates of this length end further apart, whoever sends them. Capped: the recursion, where no round adds more "
    "than that. By l2: sqrt(d) times the l2 radius of a convex model, which needs no exponential."
)


def rows(found: Certificate) -> Iterator[tuple[str, ...]]:
    """The cells of the table of radii: name, whether it is a bound, and for each protocol the radius and its parts."""
    for field in fields(found):
        name, radii = NAMES[field], [getattr(each, field) for each in found.sides.values()]
        yield name, found.is_bound(field), *(cell for each in radii for cell in _cells(field, each))


def fields(found: Certificate) -> list[str]:
    """The bounds that this certificate has."""
    return [field for field in NAMES if any(getattr(each, field) is not None for each in found.sides.values())]


def _cells(field: str, radius: Radius | None) -> tuple[str, str]:
    if radius is None:
        return "–", "–"
    number = f" ({written(radius.log)})" if radius.log < math.log(1e6) else ""
    parts = "–" if field == "movement" else f"{power(radius.additive)} + {power(radius.propagation)}"
    return power(radius.log) + number, parts


def heads(found: Certificate) -> list[str]:
    """Of the table of radii."""
    described = {"sparse": f"sparse, k = {found.protocols.own.k:,}" if found.sparse else "", "dense": "dense"}
    return ["log10 of", "a bound?", *(cell for kind in found.sides for cell in (described[kind], PARTS))]


def radius_table(found: Certificate) -> Table:
    """Every radius, of the source and of its dense twin."""
    table = Table(title=escape(found.title), title_justify="left", caption=LEGEND, caption_justify="left")
    for i, heading in enumerate(heads(found)):
        table.add_column(heading, justify="left" if i < 2 else "right", overflow="fold")
    best = NAMES["capped" if found.own.best == found.own.capped else "softmax"]
    for cells in rows(found):
        table.add_row(*map(escape, cells), style="bold" if cells[0] == best else "")
    return table


def assumption_table(found: Certificate) -> Table:
    """What it rests on."""
    table = Table(title=ASSUMED, title_justify="left")
    for heading in ("about", "what", "known how"):
        table.add_column(heading, overflow="fold")
    for each in found.assumptions:
        table.add_row(escape(each.about), escape(each.says), each.mark)
    return table


def accuracy_heads() -> list[str]:
    """Of the table of certified accuracies."""
    return ["attackers' share", "certified accuracy", "l1 radius", "l2 radius"]


def accuracy_rows(found: Accuracy) -> Iterator[tuple[str, ...]]:
    """Some of the curve."""
    stride = max(1, len(found.curve) // MOST_ROWS)
    for each in found.curve[::stride] or (found.certified,):
        radii = (written(log) if log < math.inf else "–" for log in each.radii)
        yield f"{100 * each.share:.3g}%", share_down(each.accuracy), *radii


def accuracy_table(found: Accuracy) -> Table:
    """Certified accuracy against the share of attackers."""
    table = Table(title="Certified accuracy", title_justify="left")
    for heading in accuracy_heads():
        table.add_column(heading, justify="right")
    for cells in accuracy_rows(found):
        table.add_row(*cells)
    return table


def tables(found: Certificate) -> list[Table]:
    """All of them."""
    predictions = [] if found.accuracy is None else [accuracy_table(found.accuracy)]
    return [radius_table(found), *predictions, assumption_table(found)]
