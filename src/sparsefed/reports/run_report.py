"""The report on runs: the verdict first, then its evidence, then everything needed to reproduce it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
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
from sparsefed.results.numbers import curve, duration, length, percent, perplexity, picked, plain, points, times
from sparsefed.results.summary import SummaryRow, attacked, diverged, labels, measured_key, progress, summary
from sparsefed.results.twins import Comparison, compare
from sparsefed.results.verdict import counted, preliminary, verdicts
from sparsefed.runs.folder import find, load_run

RULES = (
    "Test and attack accuracy are those of the last evaluated round. Attack accuracy is the share of the attackers' "
    "targets on which the model gives the answer they want. The last epoch is the last rounds in which as many devices "
    "took part as there are, or, where a run is no longer than that, the last tenth of its evaluations. The "
    "norm ratio is the median, over rounds with attackers, of the l2 norm they sent "
    "over the median norm of the honest devices. Dropped are updates that were not finite. Each row is one run with "
    "one seed: a difference of a few points can be chance."
)
NOT_LEARNED = (
    "Not learned: the test loss is not finite at the end, or the model learned nothing: "
    "the accuracy at most 1.2 times that of always naming the most frequent class, and the test loss hardly below that "
    "of the shares of the classes."
)
ATTACK_RULES = (
    "Test error is 1 minus test accuracy. Accuracy lost is against the same run without attackers; attack accuracy "
    "without attackers is the baseline. Outsized impact (the paper's OIF) is the number of points "
    "that were poisoned, over the share of devices that are compromised times all training examples: 1 where attackers "
    "move as many points as they own. Landed is the share of what attackers sent (its squared length) on coordinates "
    "that the server changed; share of the change is how much of the applied update was this round's attackers' (their "
    "part along it, over its length): both are medians over the rounds with attackers. Distances are between the final "
    "models: to that of the same run without attackers, and to the plain one, without attackers and defense. "
)
LONE = "Add the runs without attackers (`sparsefed run CONFIG.toml --twins`) for what is lost against them."
CAPTIONS = {  # of the charts under each heading, by the start of a chart's name
    "Curves": {
        "test-accuracy": "Higher is better: the share of test data that the model gets right.",
        "test-perplexity": "Lower is better: e to the mean loss a token, the tokens that the model hesitates between.",
        "attack-accuracy": "Lower is better: the share of attackers' targets on which the model says what they want.",
    },
    "Pareto front": {"pareto-": PARETO},
    "What k and clip_norm cost and buy": {
        "k-": "Runs that differ in k alone; of several seeds the mean, and a bar from lowest to highest.",
        "clip-norm-": "Runs that differ in clip_norm alone; of seeds the mean, and a bar from lowest to highest.",
    },
    "Norms": {
        "attack-landed": "The share of what attackers sent, by squared length, on coordinates that the server changed.",
        "norms-": "Lengths of updates before the server clips, on a logarithmic scale. Dashed: the limit it enforces.",
        "norm-ratio": "Attackers' updates over honest ones, before the server clips, on a logarithmic scale.",
        "clipped": "The share of a round's updates that were longer than the server allows and so were cut to that.",
    },
}
PAGE_ONLY = {  # columns for which a terminal has no room
    *("Updates dropped", "Rounds", "Time", "Test error", "Outsized impact", "Landed", "Share of the change"),
    "l2 to plain",
}
ERROR = "Mean absolute error"  # of regression, in the unit of the targets
ALONE = Comparison("", None, None, {}, None, None, None)  # a run that there is nothing to compare with
MOST_ROWS = 11  # of the table behind a chart
MOST_RUNS = 20  # in a table that is not folded
MOST_NAMED = 12  # runs in the title


@dataclass(frozen=True)
class RunsReport(Report, described_by="sparsefed.reports.run_report"):
    """A comparison of runs: their results, what attackers did, curves, configs, and how to run them again."""

    runs: tuple[RunRecord, ...]

    @property
    def score(self) -> str:
        """The name of the metric that all of these runs are judged by; "score" where they differ."""
        names = {row.scored_by for row in summary(self.runs)}
        return names.pop() if len(names) == 1 else "score"


def report(*given: str | Path | RunRecord) -> RunsReport:
    """Return the comparison of runs: run folders, folders of run folders, or runs that were read already.

    Raises:
        RunError: A folder holds no run, or a damaged one.
    """
    read = [each for each in given if isinstance(each, RunRecord)]
    folders = [Path(each) for each in given if not isinstance(each, RunRecord)]
    loaded = [load_run(folder) for folder in find(folders)] if folders or not read else []
    check(records := (*loaded, *read))
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
        raise RunError("there is nothing to draw yet: no round has an accuracy or a norm; wait for an evaluation")
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
    created = sorted(str(run.manifest["created"]) for run in runs if run.manifest.get("created"))
    started = f". Started {created[0].replace('T', ' ')[:16]}" if created else ""
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    lead = f"{counted(len(runs), 'run')}: {', '.join(names[:MOST_NAMED])}{more}{started}."
    title = f"SparseFed: {f'{len(names)} runs' if more else ', '.join(names)}"
    return doc.Document(title, lead, tuple(_sections(runs)), heading="SparseFed report")


def results(runs: Sequence[RunRecord]) -> doc.Document:
    """Return the results of runs without anything that takes time to draw, for a terminal."""
    return doc.Document("Results", "", _results(runs, compare(runs), matrices(runs)))


def _results(
    runs: Sequence[RunRecord], compared: Sequence[Comparison], settings: Sequence[Matrix]
) -> tuple[doc.Section, ...]:
    attack = doc.section("What the attack did", _attack(runs, compared), terminal=bool(compared))
    return doc.section("Summary", _summary(runs, settings), terminal=True), attack


def _sections(runs: Sequence[RunRecord]) -> list[doc.Section]:
    drawn, settings, compared = charts(runs), matrices(runs), compare(runs)
    curves, pareto, tradeoff, norms = (doc.section(each, figures(each, drawn, runs, settings)) for each in CAPTIONS)
    nothing = doc.section("Curves", doc.paragraph("There is nothing to draw yet: no round has been evaluated."))
    results, attack = _results(runs, compared, settings)
    return [
        *(results, curves if drawn else nothing, pareto, tradeoff, attack),
        doc.section("Class by class", class_part(runs, compared)),
        doc.section("Who owns what", partitions.portraits(runs)),
        norms,
        doc.section("Configs and versions", again.configs(runs), again.versions(runs)),
        doc.section("How to run it again", again.again(runs)),
    ]


def _summary(runs: Sequence[RunRecord], settings: Sequence[Matrix]) -> Iterator[doc.Block]:
    rows = summary(runs)
    if unfinished := preliminary(rows):
        yield doc.paragraph(unfinished, kind="warning")
    for row, run in zip(rows, runs, strict=True):
        if sentence := diverged(run):
            yield doc.paragraph(f"{row.name}: {sentence}", kind="warning")
    yield doc.paragraph(" ".join(verdicts(settings)), kind="verdict")
    yield from matrix_part(settings)
    results = _table(
        "What each run came to", [_summary_cells(row) for row in rows], optional={"Test perplexity", ERROR}
    )
    rules = [doc.note(RULES), doc.note(NOT_LEARNED, page_only=all(row.converged for row in rows))]
    yield from doc.fold("What each run came to", results, *rules, when=len(rows) > MOST_RUNS)
    for row, run in zip(rows, runs, strict=True):
        if run.manifest.get("privacy"):
            yield doc.note(f"Differential privacy of {row.name}: {run.manifest['privacy']}.", page_only=False)


def _attack(runs: Sequence[RunRecord], compared: Sequence[Comparison]) -> tuple[doc.Block, ...]:
    """Return what the attackers did in each attacked run; nothing if no run has attackers."""
    hit = [row for run, row in zip(runs, summary(runs), strict=True) if attacked(run)]
    if not hit:
        return ()
    beside = {each.name: each for each in compared}
    rows = [_attack_cells(row, beside.get(row.name, ALONE)) for row in hit]
    rules = doc.note(ATTACK_RULES if beside else ATTACK_RULES + LONE)
    table = _table("Runs under attack", rows, optional={*rows[0]} - {"Run"})
    return doc.fold("Runs under attack", table, rules, when=len(hit) > MOST_RUNS)


Cells = dict[str, doc.TableCell]  # by column


def _table(caption: str, rows: Sequence[Cells], optional: set[str]) -> doc.Table:
    """Return a table of cells by column; an optional column is left out if nothing was measured for it."""
    heads = [head for head in rows[0] if head not in optional or any(row[head].value is not None for row in rows)]
    cells = ([row[head] for head in heads] for row in rows)
    return doc.table(caption, [doc.Head(head, page_only=head in PAGE_ONLY) for head in heads], cells)


def _cell(write: Callable[[float | None], str], value: float | None) -> doc.TableCell:
    return doc.TableCell(write(value), value)


def _summary_cells(row: SummaryRow) -> Cells:
    rounds = str(row.rounds) if row.finished else progress(row).removesuffix(" rounds")
    return {
        "Run": doc.TableCell(row.name, badges=() if row.finished else (row.status,)),
        "Test accuracy": doc.TableCell(row.accuracy_text, row.test_accuracy),
        "Attack accuracy": _cell(percent, row.attack_accuracy),
        "Attack, mean of last epoch": _cell(percent, row.attack_mean),
        "Attack, max of last epoch": _cell(percent, row.attack_max),
        "Attacker norm / honest norm": _cell(times, row.norm_ratio),
        "Updates dropped": doc.TableCell(f"{row.dropped:,}", row.dropped),
        "Rounds": doc.TableCell(rounds),
        "Time": _cell(duration, row.seconds),
        "Test perplexity": _cell(perplexity, row.test_perplexity),
        ERROR: _cell(plain, row.absolute_error),
    }


def _attack_cells(row: SummaryRow, beside: Comparison) -> Cells:
    (l1, l2), (l1_plain, l2_plain) = (pair or (None, None) for pair in (beside.to_unattacked, beside.to_plain))
    return {
        "Run": doc.TableCell(row.name),
        "Test error": _cell(percent, None if row.test_accuracy is None else 1 - row.test_accuracy),
        "Accuracy lost, points": _cell(points, beside.drop),
        "Attack accuracy without attackers": _cell(percent, beside.learned_anyway),
        "Outsized impact": _cell(length, row.impact),
        "Landed": _cell(percent, row.landed),
        "Share of the change": _cell(percent, row.share),
        "l1 to unattacked": _cell(length, l1),
        "l2 to unattacked": _cell(length, l2),
        "l1 to plain": _cell(length, l1_plain),
        "l2 to plain": _cell(length, l2_plain),
    }


def figures(
    heading: str, drawn: Mapping[str, alt.LayerChart], runs: Sequence[RunRecord], settings: Sequence[Matrix] = ()
) -> Iterator[doc.Figure]:
    """Yield the charts under a heading of `CAPTIONS`, each with its caption and the numbers behind it."""
    cases = [points for matrix in settings if (points := worst_cases(matrix))]
    for name, chart in drawn.items():
        for begin, caption in CAPTIONS[heading].items():
            if name.startswith(begin):
                behind = None
                if name.endswith("-accuracy"):
                    behind = _numbers(chart.title["text"], runs, name.replace("-", "_"))
                elif begin == "pareto-":
                    behind = numbers_table(cases[int(name.removeprefix(begin)) - 1])
                yield doc.Figure(name, chart, caption, behind)


def _numbers(title: str, runs: Sequence[RunRecord], key: str) -> doc.Table:
    """Return some of the measured values, for readers who cannot see the curves."""
    at = [dict(curve(run.rows, measured_key(run, key))) for run in runs]
    rounds = [t for t, _ in picked([(t, 0.0) for t in sorted({t for values in at for t in values})], MOST_ROWS)]
    named = zip(labels(runs), at, strict=True)
    rows = ((label, *(_cell(percent, values.get(t)) for t in rounds)) for label, values in named)
    return doc.table(title, ("Run", *(f"Round {t}" for t in rounds)), rows)
