"""The part of a page that tells what attackers achieved: damage, reach, distances, class by class."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from sparsefed.report.markup import Html, element, folded, table
from sparsefed.report.numbers import length, percent, points, shown
from sparsefed.report.summary import SummaryRow, attacked, labels, summary
from sparsefed.report.twins import Comparison, class_accuracies, compare
from sparsefed.types import RunRecord

HEAD = (
    *("Run", "Test error", "Accuracy lost, points", "Attack accuracy without attackers", "Outsized impact"),
    *("Landed", "Share of the change", "l1 to unattacked", "l2 to unattacked", "l1 to plain", "l2 to plain"),
)
RULES = (
    "Test error is 1 minus test accuracy. Accuracy lost is against the same run without attackers; attack accuracy "
    "without attackers is what they would get for nothing. Outsized impact (the paper's OIF) is the number of points "
    "that were poisoned, over the share of devices that are compromised times all training examples: 1 where attackers "
    "move as many points as they own. Landed is the share of what attackers sent (its squared length) on coordinates "
    "that the server changed; share of the change is how much of the applied update was this round's attackers' (their "
    "part along it, over its length): both are medians over the rounds with attackers. Distances are between the final "
    "models: to that of the same run without attackers, and to the plain one, without attackers and defense. "
)


def attack(runs: Sequence[RunRecord]) -> Iterator[Html]:
    """What the attackers did to each run that they were part of; nothing where nobody attacked."""
    hit = [row for run, row in zip(runs, summary(runs), strict=True) if attacked(run)]
    if not hit:
        return
    beside = {each.name: each for each in compare(runs)}
    yield element("h3", "What the attack did")
    yield table("Runs under attack", HEAD, (_cells(row, beside.get(row.name)) for row in hit), class_="numbers")
    lone = "" if beside else " Add the runs without attackers (`sparsefed run CONFIG.toml --twins`) to fill the gaps."
    yield element("p", RULES + lone, class_="note")
    yield _classes(runs, beside)


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


def _classes(runs: Sequence[RunRecord], beside: Mapping[str, Comparison]) -> Html:
    """Test accuracy by class, with the points lost against the unattacked run where there is one."""
    named = [(label, class_accuracies(run)) for label, run in zip(labels(runs), runs, strict=True)]
    measured = [(label, by_class) for label, by_class in named if by_class]
    names = list(dict.fromkeys(name for _, by_class in measured for name in by_class))
    if not names:
        return Html("")
    heads = ["Class"]
    for label, _ in measured:
        heads += [label, f"{label}: lost, points"] if label in beside else [label]

    def cells(name: str) -> Iterator[str]:
        yield name
        for label, by_class in measured:
            yield percent(by_class.get(name))
            if label in beside:
                yield points(beside[label].class_drops.get(name))

    caption = "Test accuracy by class, at the last evaluation"
    return folded("By class", table(caption, heads, (tuple(cells(name)) for name in names), class_="numbers"))
