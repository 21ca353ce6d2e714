"""The part of a page that tells what attackers achieved: damage, reach, distances."""

from __future__ import annotations

from collections.abc import Sequence

from sparsefed.core.types import RunRecord
from sparsefed.reports.markup import Html, foldable, joined, note, table
from sparsefed.results.numbers import length, percent, points, shown
from sparsefed.results.summary import SummaryRow, attacked, summary
from sparsefed.results.twins import Comparison

HEAD = (
    *("Run", "Test error", "Accuracy lost, points", "Attack accuracy without attackers", "Outsized impact"),
    *("Landed", "Share of the change", "l1 to unattacked", "l2 to unattacked", "l1 to plain", "l2 to plain"),
)
MOST_ROWS = 20  # of a table that is not folded
RULES = (
    "Test error is 1 minus test accuracy. Accuracy lost is against the same run without attackers; attack accuracy "
    "without attackers is what they would get for nothing. Outsized impact (the paper's OIF) is the number of points "
    "that were poisoned, over the share of devices that are compromised times all training examples: 1 where attackers "
    "move as many points as they own. Landed is the share of what attackers sent (its squared length) on coordinates "
    "that the server changed; share of the change is how much of the applied update was this round's attackers' (their "
    "part along it, over its length): both are medians over the rounds with attackers. Distances are between the final "
    "models: to that of the same run without attackers, and to the plain one, without attackers and defense. "
)


def attack(runs: Sequence[RunRecord], compared: Sequence[Comparison]) -> Html:
    """What the attackers did to each run that they were part of; nothing where nobody attacked."""
    hit = [row for run, row in zip(runs, summary(runs), strict=True) if attacked(run)]
    if not hit:
        return Html("")
    beside = {each.name: each for each in compared}
    rows = [_cells(row, beside.get(row.name)) for row in hit]
    filled = [i for i in range(len(HEAD)) if any(row[i] != "–" for row in rows)]  # no column without a number
    told = table("Runs under attack", [HEAD[i] for i in filled], ([row[i] for i in filled] for row in rows), "numbers")
    lone = (
        ""
        if beside
        else "Add the runs without attackers (`sparsefed run CONFIG.toml --twins`) for what is lost against them."
    )
    return foldable("Runs under attack", joined([told, note(RULES + lone)]), fold=len(hit) > MOST_ROWS)


def _cells(row: SummaryRow, beside: Comparison | None) -> tuple[str, ...]:
    error = None if row.test_accuracy is None else 1 - row.test_accuracy
    apart = [beside.to_unattacked, beside.to_plain] if beside else [None, None]
    return (
        row.name,
        percent(error),
        points(beside.drop if beside else None),
        percent(beside.learned_anyway if beside else None),
        shown(row.impact, lambda impact: f"{impact:.3g}"),
        percent(row.landed),
        percent(row.share),
        *(length(norm) for pair in apart for norm in (pair or (None, None))),
    )
