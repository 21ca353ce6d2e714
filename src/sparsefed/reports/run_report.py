"""The report on runs: the verdict first, then its evidence, then everything needed to reproduce it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import altair as alt

from sparsefed.core.errors import ConfigError, RunError, unknown
from sparsefed.core.types import RunRecord
from sparsefed.reports import document as doc
from sparsefed.reports import partitions
from sparsefed.reports import reproduction as again
from sparsefed.reports.heat import class_part, matrix_part
from sparsefed.reports.pareto import SAID as PARETO
from sparsefed.reports.pareto import numbers_table, worst_cases
from sparsefed.reports.pictures import FORMATS, picture, write
from sparsefed.reports.result import Report
from sparsefed.reports.run_charts import charts, check
from sparsefed.results.matrix import Matrix, matrices
from sparsefed.results.numbers import curve, duration, length, percent, perplexity, picked, points, shown, times
from sparsefed.results.summary import SummaryRow, attacked, labels, progress, summary
from sparsefed.results.twins import Comparison, compare
from sparsefed.results.verdict import preliminary, told
from sparsefed.runs.folder import find, load_run

RULES = (
    "Test and attack accuracy are those of the last evaluated round. Attack accuracy is the share of the attackers' "
    "targets on which the model gives the answer they want. The last epoch is the last rounds in which as many devices "
    "were asked as there are, or, where a run is no longer than that, the last tenth of its evaluations. The "
    "norm ratio is the median, over rounds with attackers, of the l2 norm they sent "
    "over the median norm of the honest devices. Dropped are updates that were not finite. Each row is one run with "
    "one seed: a difference of a few points can be chance."
)
DNC = (
    "DNC: did not converge, that is, the test loss is not finite at the end, or the accuracy at most 1.2 times that of "
    "always naming the most frequent class."
)
ATTACK_RULES = (
    "Test error is 1 minus test accuracy. Accuracy lost is against the same run without attackers; attack accuracy "
    "without attackers is what they would get for nothing. Outsized impact (the paper's OIF) is the number of points "
    "that were poisoned, over the share of devices that are compromised times all training examples: 1 where attackers "
    "move as many points as they own. Landed is the share of what attackers sent (its squared length) on coordinates "
    "that the server changed; share of the change is how much of the applied update was this round's attackers' (their "
    "part along it, over its length): both are medians over the rounds with attackers. Distances are between the final "
    "models: to that of the same run without attackers, and to the plain one, without attackers and defense. "
)
LONE = "Add the runs without attackers (`sparsefed run CONFIG.toml --twins`) for what is lost against them."
PARTS = {  # the charts of each heading, by the start of their names
    "Curves": ("test-", "attack-accuracy"),
    "Pareto front": ("pareto-",),
    "What k and L cost and buy": ("k-", "clip-norm-"),
    "Norms": ("norm", "attack-landed", "clipped"),
}
SAID = {  # the caption of each chart
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


@dataclass(frozen=True)
class RunsReport(Report, described_by="sparsefed.reports.run_report"):
    """A comparison of runs: their results, what attackers did, curves, configs, and how to run them again."""

    runs: tuple[RunRecord, ...]


def report(*given: str | Path | RunRecord) -> RunsReport:
    """Return the comparison of runs: run folders, folders of run folders, or runs that were read already.

    Raises:
        RunError: A folder holds no run, or a damaged one.
    """
    read = [each for each in given if isinstance(each, RunRecord)]
    folders = [Path(each) for each in given if not isinstance(each, RunRecord)]
    found = [load_run(folder) for folder in find(folders)] if folders or not read else []
    check(records := (*found, *read))
    return RunsReport(records)


def save(runs: Sequence[RunRecord], out: Path, format: str = "html") -> list[Path]:
    """Write the report and return its files: `out` itself for HTML, `out`'s stem plus a chart's name for pictures."""
    if format not in FORMATS:
        raise ConfigError(unknown("report format", format, FORMATS))
    check(runs)
    if format == "html":
        return [write(out, html(runs).encode())]
    pictures = {name: picture(chart, format) for name, chart in charts(runs).items()}
    if not pictures:
        raise RunError(
            "there is nothing to draw yet: no round has an accuracy or a norm; wait for the first evaluation"
        )
    return [write(out.with_name(f"{out.stem}-{name}.{format}"), data) for name, data in pictures.items()]


def html(runs: Sequence[RunRecord]) -> str:
    """Return the report on runs as one page."""
    return RunsReport(tuple(runs)).to_html()


def records(report: RunsReport) -> list[dict[str, Any]]:
    """Return a row for each run, as in `results.summary`."""
    return [asdict(row) for row in summary(report.runs)]


def document(report: RunsReport) -> doc.Document:
    """Return the whole report on runs as a document."""
    runs = report.runs
    check(runs)
    names = labels(runs)
    whose = ", ".join(names) if len(names) <= MOST_NAMED else f"{len(names)} runs"
    return doc.Document(f"SparseFed: {whose}", "".join(_lead(runs)), tuple(_sections(runs)), heading="SparseFed report")


def results(runs: Sequence[RunRecord]) -> doc.Document:
    """Return the results of runs without anything that takes time to draw, for a terminal."""
    compared, found = compare(runs), matrices(runs)
    parts = (
        doc.section("Summary", _summary(runs, found), terminal=True),
        doc.section("What the attack did", _attack(runs, compared), terminal=bool(compared)),
    )
    return doc.Document("Results", "", parts)


def _sections(runs: Sequence[RunRecord]) -> list[doc.Section]:
    drawn, found, compared = charts(runs), matrices(runs), compare(runs)
    parts = {title: list(_figures(drawn, begins, runs, found)) for title, begins in PARTS.items()}
    nothing = doc.paragraph("There is nothing to draw yet: no round has been evaluated.")
    return [
        doc.section("Summary", _summary(runs, found), terminal=True),
        doc.section("Curves", parts["Curves"] if drawn else nothing),
        doc.section("Pareto front", parts["Pareto front"]),
        doc.section("What k and L cost and buy", parts["What k and L cost and buy"]),
        doc.section("What the attack did", _attack(runs, compared), terminal=bool(compared)),
        doc.section("Class by class", class_part(runs, compared)),
        doc.section("Who owns what", partitions.portraits(runs)),
        doc.section("Norms", parts["Norms"]),
        doc.section("Configs and versions", again.configs(runs), again.versions(runs)),
        doc.section("How to run it again", again.again(runs)),
    ]


def _lead(runs: Sequence[RunRecord]) -> Iterator[str]:
    created = sorted(str(run.manifest["created"]) for run in runs if run.manifest.get("created"))
    names = labels(runs)
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    yield f"{len(runs)} run{'s' if len(runs) > 1 else ''}: {', '.join(names[:MOST_NAMED])}{more}"
    if created:
        yield f". Started {created[0].replace('T', ' ')[:16]}"
    yield "."


def _summary(runs: Sequence[RunRecord], found: Sequence[Matrix]) -> Iterator[doc.Block]:
    rows = summary(runs)
    if unfinished := preliminary(rows):
        yield doc.paragraph(unfinished, kind="warning")
    yield doc.paragraph(" ".join(told(found)), kind="verdict")
    yield from matrix_part(found)
    rules = [doc.note(RULES), doc.note(DNC, page_only=all(row.converged for row in rows))]
    yield from doc.fold("What each run came to", _summary_table(rows), *rules, when=len(rows) > MOST_RUNS)
    for row, run in zip(rows, runs, strict=True):
        if run.manifest.get("privacy"):
            yield doc.note(f"Differential privacy of {row.name}: {run.manifest['privacy']}.", page_only=False)


def _summary_table(rows: Sequence[SummaryRow]) -> doc.Table:
    head: list[str | doc.Head] = [
        *("Run", "Test accuracy", "Attack accuracy", "Attack, mean of last epoch", "Attack, max of last epoch"),
        "Attacker norm / honest norm",
        *(doc.Head(each, page_only=True) for each in ("Updates dropped", "Rounds", "Time")),
    ]
    text = any(row.test_perplexity is not None for row in rows)  # a column of its own if any run was on text
    return doc.table(
        "What each run came to", head + ["Test perplexity"] * text, (_summary_cells(row)[: 9 + text] for row in rows)
    )


def _summary_cells(row: SummaryRow) -> tuple[str | doc.TableCell, ...]:
    shares = (row.attack_accuracy, row.attack_mean, row.attack_max)
    return (
        doc.TableCell(row.name, badges=() if row.finished else (row.status,)),
        doc.TableCell(row.told_accuracy, row.test_accuracy),
        *(doc.TableCell(percent(share), share) for share in shares),
        doc.TableCell(times(row.norm_ratio), row.norm_ratio),
        doc.TableCell(f"{row.dropped:,}", row.dropped),
        str(row.rounds) if row.finished else progress(row).removesuffix(" rounds"),
        doc.TableCell(duration(row.seconds), row.seconds),
        doc.TableCell(perplexity(row.test_perplexity), row.test_perplexity),
    )


def _attack(runs: Sequence[RunRecord], compared: Sequence[Comparison]) -> tuple[doc.Block, ...]:
    """Return what the attackers did in each attacked run; nothing if no run has attackers."""
    hit = [row for run, row in zip(runs, summary(runs), strict=True) if attacked(run)]
    if not hit:
        return ()
    beside = {each.name: each for each in compared}
    rows = [list(_attack_cells(row, beside.get(row.name))) for row in hit]
    filled = [i for i in range(len(ATTACK_HEAD)) if any(row[i].text != "–" for row in rows)]  # no empty column
    cells = ([row[i] for i in filled] for row in rows)
    done = doc.table("Runs under attack", [ATTACK_HEAD[i] for i in filled], cells)
    rules = doc.note(ATTACK_RULES if beside else ATTACK_RULES + LONE)
    return doc.fold("Runs under attack", done, rules, when=len(hit) > MOST_RUNS)


ATTACK_HEAD = (
    *(doc.Head("Run"), doc.Head("Test error", page_only=True), doc.Head("Accuracy lost, points")),
    doc.Head("Attack accuracy without attackers"),
    *(doc.Head(each, page_only=True) for each in ("Outsized impact", "Landed", "Share of the change")),
    *map(doc.Head, ("l1 to unattacked", "l2 to unattacked", "l1 to plain")),
    doc.Head("l2 to plain", page_only=True),
)


def _attack_cells(row: SummaryRow, beside: Comparison | None) -> Iterator[doc.TableCell]:
    error = None if row.test_accuracy is None else 1 - row.test_accuracy
    drop, anyway = (beside.drop, beside.learned_anyway) if beside else (None, None)
    yield doc.TableCell(row.name)
    yield doc.TableCell(percent(error), error)
    yield doc.TableCell(points(drop), drop)
    yield doc.TableCell(percent(anyway), anyway)
    yield doc.TableCell(shown(row.impact, lambda impact: f"{impact:.3g}"), row.impact)
    for share in (row.landed, row.share):
        yield doc.TableCell(percent(share), share)
    for pair in (beside.to_unattacked, beside.to_plain) if beside else (None, None):
        yield from (doc.TableCell(length(norm), norm) for norm in pair or (None, None))


def _figures(
    drawn: Mapping[str, alt.LayerChart], begins: tuple[str, ...], runs: Sequence[RunRecord], found: Sequence[Matrix]
) -> Iterator[doc.Figure]:
    """Yield the charts whose names begin so, each with its caption and the numbers behind it."""
    cases = [points for matrix in found if (points := worst_cases(matrix))]
    for name, chart in drawn.items():
        if name.startswith(begins):
            behind = _numbers(chart.title["text"], runs, TABULATED[name]) if name in TABULATED else None
            if name.startswith("pareto-"):
                behind = numbers_table(cases[int(name.split("-")[1]) - 1])
            yield doc.Figure(name, chart, next(text for begin, text in SAID.items() if name.startswith(begin)), behind)


def _numbers(title: str, runs: Sequence[RunRecord], key: str) -> doc.Table:
    """Return some of the measured values, for readers who cannot see the curves."""
    at = [dict(curve(run.rows, key)) for run in runs]
    rounds = [t for t, _ in picked([(t, 0.0) for t in sorted({t for values in at for t in values})], MOST_ROWS)]
    rows = (
        (label, *(doc.TableCell(percent(values.get(t)), values.get(t)) for t in rounds))
        for label, values in zip(labels(runs), at, strict=True)
    )
    return doc.table(title, ("Run", *(f"Round {t}" for t in rounds)), rows)
