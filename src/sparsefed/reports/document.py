"""The report as one HTML file: the verdict first, then what it rests on, then everything needed to do it again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from sparsefed.core.types import RunRecord
from sparsefed.reports import partitions
from sparsefed.reports import reproduction as again
from sparsefed.reports.attack_section import attack
from sparsefed.reports.class_accuracy import classes
from sparsefed.reports.heat import matrix_part
from sparsefed.reports.markup import Html, element, foldable, folded, joined, note, table
from sparsefed.reports.pareto import SAID as PARETO
from sparsefed.reports.pareto import numbers, worst_cases
from sparsefed.reports.run_charts import charts, check
from sparsefed.reports.shell import Section, figure, figures, page, section
from sparsefed.results.matrix import Matrix, matrices
from sparsefed.results.numbers import curve, duration, percent, perplexity, picked, times
from sparsefed.results.summary import SummaryRow, labels, progress, summary
from sparsefed.results.twins import compare
from sparsefed.results.verdict import preliminary, told

if TYPE_CHECKING:
    import altair as alt

HEAD = (
    *("Run", "Test accuracy", "Attack accuracy", "Attack, mean of last epoch", "Attack, max of last epoch"),
    *("Attacker norm / honest norm", "Updates dropped", "Rounds", "Time"),
)
PERPLEXITY = "Test perplexity"  # a column of its own, where a run was on text
RULES = (
    "Test and attack accuracy are those of the last evaluated round. Attack accuracy is the share of the attackers' "
    "targets on which the model gives the answer they want. The last epoch is the last rounds in which as many devices "
    "were asked as there are, or, where a run is no longer than that, the last tenth of its evaluations. The "
    "norm ratio is the median, over rounds with attackers, of the l2 norm they sent "
    "over the median norm of the honest devices. Dropped are updates that were not finite. DNC: did not converge, "
    "that is, the test loss is not finite at the end, or the accuracy at most 1.2 times that of always naming the most "
    "frequent class. Each row is one run with one seed: a difference of a few points can be chance."
)
PARTS = {  # which charts stand under which heading, by how their names begin
    "Curves": ("test-", "attack-accuracy"),
    "Pareto front": ("pareto-",),
    "What k and L cost and buy": ("k-", "clip-norm-"),
    "Norms": ("norm", "attack-landed", "clipped"),
}
SAID = {  # what a chart is read for, under it
    "test-accuracy": "Higher is better: the share of test data that the model gets right.",
    "test-perplexity": "Lower is better: e to the mean loss a token, as many tokens as the model hesitates between.",
    "attack-accuracy": "Lower is better: the share of the attackers' targets on which the model says what they want.",
    "attack-landed": "The share of what attackers sent, by squared length, on coordinates that the server changed.",
    "clipped": "The share of a round's updates that were longer than the server allows and so were cut to that length.",
    "norms-": "Lengths of updates before the server clips, on a logarithmic scale. Dashed: the limit it enforces.",
    "norm-ratio": "Attackers' updates over honest ones, before the server clips, on a logarithmic scale.",
    "pareto-": PARETO,
    "k-": "Runs that differ in k alone. Means over the seeds; bars from the lowest to the highest.",
    "clip-norm-": "Runs that differ in L alone. Means over the seeds; bars from the lowest to the highest.",
}
TABULATED = {"test-accuracy": "test_accuracy", "attack-accuracy": "attack_accuracy"}
MOST_ROWS = 11  # of the table behind a chart
MOST_RUNS = 20  # in a table that is not folded
MOST_NAMED = 12  # runs in the title


def html(runs: Sequence[RunRecord]) -> str:
    """The whole page."""
    check(runs)
    names = labels(runs)
    whose = ", ".join(names) if len(names) <= MOST_NAMED else f"{len(names)} runs"
    return page(f"SparseFed: {whose}", joined(_lead(runs)), sections(runs), heading="SparseFed report")


def sections(runs: Sequence[RunRecord]) -> list[Section]:
    """The parts of the page, in order; those that these runs have nothing for are empty."""
    drawn, found, compared = charts(runs), matrices(runs), compare(runs)
    parts = {title: figures(list(_figures(drawn, begins, runs, found))) for title, begins in PARTS.items()}
    return [
        section("Summary", *_summary(runs, found)),
        section("Curves", parts["Curves"] if drawn else _no_charts()),
        section("Pareto front", parts["Pareto front"]),
        section("What k and L cost and buy", parts["What k and L cost and buy"]),
        section("What the attack did", attack(runs, compared)),
        section("Class by class", classes(runs, compared)),
        section("Who owns what", partitions.portraits(runs)),
        section("Norms", parts["Norms"]),
        section("Configs and versions", again.configs(runs), again.versions(runs)),
        section("How to run it again", again.again(runs)),
    ]


def _lead(runs: Sequence[RunRecord]) -> Iterator[str]:
    created = sorted(str(run.manifest["created"]) for run in runs if run.manifest.get("created"))
    names = labels(runs)
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    yield f"{len(runs)} run{'s' if len(runs) > 1 else ''}: {', '.join(names[:MOST_NAMED])}{more}"
    if created:
        yield f". Started {created[0].replace('T', ' ')[:16]}"
    yield "."


def _summary(runs: Sequence[RunRecord], found: Sequence[Matrix]) -> Iterator[Html]:
    rows = summary(runs)
    if unfinished := preliminary(rows):
        yield element("p", unfinished, class_="warning", role="note")
    yield element("p", " ".join(told(found)), class_="verdict")
    yield matrix_part(found)
    yield foldable("What each run came to", joined([_summary_table(rows), note(RULES)]), fold=len(rows) > MOST_RUNS)
    yield from _privacy(runs)


def _privacy(runs: Sequence[RunRecord]) -> Iterator[Html]:
    for name, run in zip(labels(runs), runs, strict=True):
        if run.manifest.get("privacy"):
            yield note(f"Differential privacy of {name}: {run.manifest['privacy']}.")


def _summary_table(rows: Sequence[SummaryRow]) -> Html:
    cells = list(map(_summary_cells, rows))
    if all(row.test_perplexity is None for row in rows):
        return table("What each run came to", HEAD, cells, class_="numbers")
    wider = ((*cell, perplexity(row.test_perplexity)) for cell, row in zip(cells, rows, strict=True))
    return table("What each run came to", (*HEAD, PERPLEXITY), wider, class_="numbers")


def _summary_cells(row: SummaryRow) -> tuple[str, ...]:
    badge = [] if row.finished else [" ", element("span", row.status, class_="badge")]
    return (
        joined([row.name, *badge]),
        row.told_accuracy,
        percent(row.attack_accuracy),
        percent(row.attack_mean),
        percent(row.attack_max),
        times(row.norm_ratio),
        f"{row.dropped:,}",
        str(row.rounds) if row.finished else progress(row).removesuffix(" rounds"),
        duration(row.seconds),
    )


def _no_charts() -> Html:
    return element("p", "There is nothing to draw yet: no round has been evaluated.")


def _figures(
    drawn: Mapping[str, alt.LayerChart], begins: tuple[str, ...], runs: Sequence[RunRecord], found: Sequence[Matrix]
) -> Iterator[Html]:
    """The charts whose names begin so, each with what it is read for and the numbers behind it."""
    points = [cases for matrix in found if (cases := worst_cases(matrix))]
    for name, chart in drawn.items():
        if name.startswith(begins):
            said = next(text for begin, text in SAID.items() if name.startswith(begin))
            behind = [_numbers(chart.title["text"], runs, TABULATED[name])] if name in TABULATED else []
            behind += [numbers(points[int(name.split("-")[1]) - 1])] if name.startswith("pareto-") else []
            yield figure(name, chart, said, *behind)


def _numbers(title: str, runs: Sequence[RunRecord], key: str) -> Html:
    """A few of the measured values as a table, for those who cannot see the curves."""
    at = [dict(curve(run.rows, key)) for run in runs]
    rounds = [t for t, _ in picked([(t, 0.0) for t in sorted({t for values in at for t in values})], MOST_ROWS)]
    rows = ((label, *(percent(values.get(t)) for t in rounds)) for label, values in zip(labels(runs), at, strict=True))
    return folded("Numbers", table(title, ("Run", *(f"Round {t}" for t in rounds)), rows, class_="numbers"))
