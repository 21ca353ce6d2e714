"""The tuning of a defense, for the page and for programs: what was found, its price, and the moves on the way."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from sparsefed.commands.audit.defense_specs import UNDEFENDED
from sparsefed.commands.audit.findings import AuditResult
from sparsefed.reports import document as doc
from sparsefed.results.matrix import NO_ATTACK, Entry
from sparsefed.results.numbers import points
from sparsefed.results.verdict import counted

HOW = (
    "Rules and their parameters (clip_norm fixed, times the learning rate or by a quantile, k, f, radius) against "
    "every attack as given; then the attackers try new variants against the best, those that do more harm stay, and "
    "the defender moves again, until neither side gains or the budget is used up. All of it at one seed that is not "
    "reported; the numbers of the matrix are of other seeds."
)


def tuning(result: AuditResult) -> Iterator[doc.Block]:
    """Yield what the tuning found and how; nothing if no defense was tuned."""
    found = result.tuned
    if found is None:
        return
    given = ", ".join(f"{key} = {value}" for key, value in found.spec.table.items() if key != "name")
    runs, answers = found.moves[-1].runs if found.moves else 0, sum(map(len, found.answers.values()))
    ended = "neither side gained any more" if found.settled else f"the budget of {found.budget} runs was used up"
    yield doc.paragraph(
        f"Tuned: {found.spec.table['name']} with {given}. Its price without attackers is {points(price(result))} "
        f"points of test accuracy. {counted(runs, 'run')} at seed {found.seed}, {counted(answers, 'answer')} by the "
        f"attackers; it ended because {ended}."
    )
    rows = (
        (each.who, each.defense, each.attack, points(each.harm), points(each.cost), str(each.runs))
        for each in found.moves
    )
    head = ("Move", "Best defense after it", "Its worst attack", "Harm, points", "Price, points", "Runs so far")
    yield doc.table("The moves of the search", head, rows, "facts", page_only=True)
    yield doc.note(HOW)


def price(result: AuditResult) -> float:
    """Return the test accuracy that the tuned defense costs without attackers, at the reported seeds."""
    name = result.tuned.spec.name if result.tuned else UNDEFENDED
    bare, own = (result.matrix.entries.get((each, NO_ATTACK), Entry(())).test or 0.0 for each in (UNDEFENDED, name))
    return bare - own


def tuning_numbers(result: AuditResult) -> dict[str, Any] | None:
    """Return the tuning as numbers; None if no defense was tuned."""
    found = result.tuned
    if found is None:
        return None
    moves = [asdict(move) for move in found.moves]
    return {"defense": dict(found.spec.table), "price": price(result), "settled": found.settled, "moves": moves}
