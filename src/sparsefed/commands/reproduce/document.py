"""An exhibit as a document: verdicts first, our numbers next to the paper's, charts, and what was run."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from sparsefed.commands.reproduce.claims import (
    HOLDS,
    NOT,
    PART,
    RULE,
    SHORT,
    TOO_SHORT,
    UNTESTED,
    Judged,
    MetricEntry,
    entries,
)
from sparsefed.commands.reproduce.estimate import IN_FLOAT32, stated_minutes
from sparsefed.commands.reproduce.exhibit import Exhibit, Paper, PaperRow, ScaleName
from sparsefed.commands.reproduce.exhibit_charts import caption, charts, together
from sparsefed.commands.reproduce.grid import combinations, matches, scaled
from sparsefed.commands.reproduce.load import load, names
from sparsefed.commands.reproduce.run import ExhibitResult
from sparsefed.core import toml
from sparsefed.core.dtypes import has_bfloat16
from sparsefed.reports import document as doc
from sparsefed.reports.pictures import picture
from sparsefed.results.measures import measure
from sparsefed.results.numbers import duration
from sparsefed.results.summary import NOT_LEARNED
from sparsefed.sweeps.plan import FIXED, STRONGEST

if TYPE_CHECKING:
    import altair as alt

MOST_SHOWN = 6  # of the comparisons behind a verdict
LEVELS: Mapping[str, doc.Level] = {HOLDS: "good", PART: "fair", NOT: "poor"}
HOURS = 100  # from so many minutes on times are shown in hours
TIMES = "How long each takes on 2 cores, at each scale. –: not at this scale. ?: not measured."
SLOWER = f"This processor has no bfloat16, and runs that ask for it take {IN_FLOAT32} times as long."
MEANS = "Mean ± standard deviation over the seeds."  # of a sweep of one's own
OURS = (
    "Ours: mean ± standard deviation over the seeds. Not learned (the paper's DNC): in at least half of the runs the "
    "test loss is not finite at the end, or the accuracy at most 1.2 times that of always naming the most frequent "
    "class (and, in later versions, the test loss hardly below that of the shares of the classes). Paper: as printed "
    "there."
)
SMOKE = (
    "Scale smoke: small generated data and a few rounds, to see that everything works. Names of data sets stand for "
    "generated data of their shape; nothing here says anything about them or about the paper, so its numbers are left "
    "out and its claims are not judged."
)
NOTHING_RUN = "Nothing was run: all of these results were there already, in {file}."
OF_OTHERS = ("converged", "unattacked", "attack_anyway")  # known, whether or not the run itself converged
FIXED_ATTACK = "Fixed attack: its parameters are as given, not tuned for each defense."
COUNTED = {  # a verdict on one claim, and on several
    HOLDS: ("holds", "hold"),
    PART: ("holds in part", "hold in part"),
    NOT: ("does not hold here", "do not hold here"),
    TOO_SHORT: ("is too short to tell", "are too short to tell"),
    UNTESTED: ("was not tested", "were not tested"),
}
MARKS = {True: "✓", False: "✗", None: "?"}


def document(outcome: ExhibitResult) -> doc.Document:
    """Return the result of an exhibit as a document."""
    exhibit = outcome.exhibit
    drawn = charts(exhibit, outcome.rows, Paper() if outcome.generated else outcome.paper)
    notes = outcome.paper.notes
    parts = (
        doc.section("Summary", _summary(outcome), terminal=True),
        doc.section("Charts", [doc.Figure(name, chart, caption(chart)) for name, chart in drawn.items()]),
        doc.section("What was run", _configs(outcome), terminal=True),
        doc.section("Notes on the paper's numbers", [doc.Bullets(tuple(notes))] if notes else []),
        doc.section("How to run it again", _again(outcome)),
    )
    origin = "" if exhibit.in_paper or not exhibit.where else f"{exhibit.where[:1].upper()}{exhibit.where[1:]}."
    lead = " ".join(filter(None, (exhibit.question, origin, f"Scale: {outcome.scale}." if outcome.scale else "")))
    heading = f"{exhibit.where}: {exhibit.title}" if exhibit.in_paper else exhibit.title
    return doc.Document(f"SparseFed: {exhibit.title}", lead, parts, heading=heading)


def files(outcome: ExhibitResult) -> dict[str, str | bytes]:
    """Return the page and, if there is a chart, its picture as PNG and SVG, unless the exhibit is one's own."""
    if outcome.exhibit.file:
        return {f"{outcome.name}.html": outcome.to_html()}
    blocks = (block for section in outcome.document().sections for block in section.blocks)
    figures = {block.name: block.chart for block in blocks if isinstance(block, doc.Figure)}
    whole = together(cast("dict[str, alt.LayerChart]", figures))
    pictures = {} if whole is None else {f"{outcome.name}.{kind}": picture(whole, kind) for kind in ("png", "svg")}
    return {f"{outcome.name}.html": outcome.to_html(), **pictures}


def _summary(outcome: ExhibitResult) -> Iterator[doc.Block]:
    if outcome.ran == 0 and not outcome.exact:
        yield doc.paragraph(NOTHING_RUN.format(file=f"{outcome.name}.jsonl"))
    yield from map(doc.note, incomplete(outcome))
    if outcome.generated:
        yield doc.paragraph(SMOKE, kind="warning")
    elif outcome.judged or not outcome.exhibit.file:
        yield doc.paragraph(fared(each.verdict for each in outcome.judged), kind="verdict")
    if outcome.judged and outcome.exhibit.file:
        own = ((each.claim.text, *_verdict(each)) for each in outcome.judged)
        yield doc.table("The claims of the file", ("Claim", "Here", "Comparisons"), own, "lines")
    elif outcome.judged and not outcome.generated:
        lines = ((each.claim.text, each.claim.where, *_verdict(each)) for each in outcome.judged)
        ours = "What the paper says" if outcome.exhibit.in_paper else "The claims"
        says = "What is to be found again" if outcome.exhibit.external else ours
        yield doc.table(says, ("Claim", "Where", "Here", "Comparisons"), lines, "lines")
    yield _numbers(outcome)
    yield from map(doc.note, (*rules(outcome), *arithmetic(outcome)))


def _verdict(judged: Judged) -> tuple[doc.TableCell, doc.TableCell]:
    """Return a verdict and the comparisons behind it, folded if it holds everywhere."""
    many = len(judged.comparisons)
    fold = f"at all {many}" if judged.verdict == HOLDS and many > 1 else ""
    verdict = doc.TableCell(verdict_text(judged), level=LEVELS.get(judged.verdict, ""), strong=True)
    return verdict, doc.TableCell("\n".join(grounds(judged, MOST_SHOWN)), fold=fold)


def _numbers(outcome: ExhibitResult) -> doc.Table:
    """Return our numbers next to the paper's; a terminal omits names that are equal in every row."""
    heads, lines = columns(outcome), body(outcome)
    same = [len({line[i] for line in lines}) == 1 < len(lines) for i in range(len(heads))]
    heads = [replace(head, page_only=head.left and alike) for head, alike in zip(heads, same, strict=True)]
    beside = "Our numbers beside the paper's" if outcome.exhibit.in_paper else "Numbers"
    return doc.table("Our numbers beside theirs" if outcome.exhibit.external else beside, heads, lines)


def _configs(outcome: ExhibitResult) -> Iterator[doc.Block]:
    if outcome.exact:
        return
    exhibit, scale = outcome.exhibit, outcome.scale
    notes = [each.note for name, each in exhibit.scales.items() if name == scale and each.note]
    if changes := (*notes, *scaled(exhibit, scale)):
        yield doc.Heading(f"What scale {scale} changes")
        yield doc.Bullets(changes)
    first = combinations(exhibit, scale)[0]
    name = ", ".join(first.values.values())
    text = toml.dumps(first.result(0, next(iter(first.variants), None)).table)
    yield from doc.fold(f"Config of the first combination: {name}", doc.Listing(text))


def _again(outcome: ExhibitResult) -> Iterator[doc.Block]:
    exhibit = outcome.exhibit
    own, ours = f"sparsefed sweep {shlex.quote(exhibit.file)}", f"sparsefed reproduce {exhibit.name}"
    yield doc.Listing(own if exhibit.file else f"{ours} --scale {outcome.scale}")
    cells = len({row["key"] for row in outcome.rows if row["key"]})
    took = "" if outcome.seconds is None else f" They took {duration(outcome.seconds)} of one worker's time."
    yield doc.paragraph(f"{cells} runs.{took}" if cells else "A formula: nothing is run.")


# --- our numbers and the paper's -------------------------------------------------------------------------------------


def columns(outcome: ExhibitResult) -> list[doc.Head]:
    """Return the columns: the axes, the attack if there is one, and for each metric ours and the paper's if any."""
    axes = list(dict.fromkeys(axis for row in outcome.rows for axis in row["cell"]))
    attack = ["variant" if "attack" in axes else "attack"] if _attacks(outcome) else []
    heads = [doc.Head(name, left=True) for name in (*axes, *attack)]
    for metric in outcome.exhibit.metrics:
        title = measure(metric).title
        theirs = f"{title}, {'theirs' if outcome.exhibit.external else 'paper'}"
        paper = [doc.Head(theirs, below=True)] if _printed(outcome, metric) else []
        heads += [doc.Head(title), *paper]
    return heads


def body(outcome: ExhibitResult) -> list[list[str]]:
    """Return the cells under the columns, one row per combination."""
    by_metric = [entries(outcome.rows, metric, outcome.exact) for metric in outcome.exhibit.metrics]
    return [_line(outcome, line) for line in zip(*by_metric, strict=True)]


def _line(outcome: ExhibitResult, line: Sequence[MetricEntry]) -> list[str]:
    values = line[0].values
    cells = [*values.values(), *([line[0].attack or "none"] if _attacks(outcome) else [])]
    for metric, entry in zip(outcome.exhibit.metrics, line, strict=True):
        cells.append(_ours(metric, entry))
        if printed := _printed(outcome, metric):
            cells.append(next((row.as_printed for row in printed if matches(values, row.pick)), "–"))
    return cells


def _ours(metric: str, entry: MetricEntry) -> str:
    """Format one of our numbers with its spread.

    >>> _ours("attack_mean", MetricEntry({}, (0.5, 0.7), runs=2))
    '60.0% ± 14.1'
    >>> _ours("attack_mean", MetricEntry({}, (0.1, 0.1), runs=2, lost=2))
    '10.0% ± 0.0 (not learned)'
    """
    if not entry.numbers:
        return "–"
    lost = 0 if metric in OF_OTHERS else entry.lost
    write = measure(metric).write
    around = "" if entry.spread is None or entry.exact else f" ± {write(entry.spread).rstrip('%×')}"
    how_many = "" if lost == entry.runs else f"{lost} of {entry.runs} "
    return f"{write(entry.mean)}{around}" + (f" ({how_many}{NOT_LEARNED})" if lost else "")


def _attacks(outcome: ExhibitResult) -> set[str]:
    """Return the variants of the attack that are reported."""
    return {row["attack"] for row in outcome.rows if row["role"] == "result"} - {None}


def _printed(outcome: ExhibitResult, metric: str) -> list[PaperRow]:
    return [] if outcome.generated else [row for row in outcome.paper.rows if row.metric == metric]


# --- sentences -------------------------------------------------------------------------------------------------------


def fared(verdicts: Iterable[str], where: str = "") -> str:
    """Return how several claims fared, in a sentence.

    >>> fared([HOLDS, NOT, NOT], " in two tables"), fared([PART])
    ('Of 3 claims in two tables, 1 holds, 2 do not hold here.', 'Of 1 claim, 1 holds in part.')
    """
    count = Counter(verdicts)
    if not count:
        return "No claim is attached to this exhibit."
    parts = (
        f"{count[each]} {one if count[each] == 1 else many}" for each, (one, many) in COUNTED.items() if count[each]
    )
    return f"Of {count.total()} claim{'s' if count.total() > 1 else ''}{where}, {', '.join(parts)}."


def verdict_text(judged: Judged) -> str:
    """Return a verdict, with how many of the comparisons it holds in if that is some of them."""
    if judged.verdict != PART:
        return judged.verdict
    holding = sum(each.holds is True for each in judged.comparisons)
    return f"holds in {holding} of {len(judged.comparisons)}"


def incomplete(outcome: ExhibitResult) -> Iterator[str]:
    """Yield sentences about runs that are still missing, and about what was lost between machines."""
    if outcome.missing:
        done = sum(row["status"] == "done" for row in outcome.rows)
        yield f"Partial: {done} of {done + outcome.missing} runs are done, so the verdicts are not final."
    compared = [row["metrics"] for row in outcome.rows if row["role"] == "result" and "unattacked" in row["twins"]]
    if apart := sum("l1" not in metrics for metrics in compared):
        yield (
            f"{apart} of {len(compared)} attacked runs were not on one machine with their unattacked twins: their "
            "distances and the class that lost most are not known."
        )


def arithmetic(outcome: ExhibitResult) -> Iterator[str]:
    """Yield a sentence about the floating-point type of the runs whose lines record one."""
    done = [row for row in outcome.rows if row["status"] == "done"]
    if not any("dtype" in row for row in done):
        return
    used = Counter(row.get("dtype", "a type that was not recorded") for row in done)
    parts = [f"{count} in {name}" for name, count in used.most_common()]
    yield f"Computed in {next(iter(used))}." if len(used) == 1 else f"Of {len(done)} runs, {', '.join(parts)}."


def grounds(judged: Judged, most: int) -> list[str]:
    """Return the comparisons behind a verdict, one line each, failures first."""
    ordered = sorted(judged.comparisons, key=lambda each: bool(each.holds))
    shown = [f"{MARKS[each.holds]} {each.text}" for each in ordered[:most]]
    return [*shown, f"and {len(ordered) - most} more"] if len(ordered) > most else shown


def rules(outcome: ExhibitResult) -> Iterator[str]:
    """Yield the rules behind the numbers and verdicts."""
    attacks = _attacks(outcome)
    if not outcome.exact:
        yield MEANS if outcome.exhibit.file else OURS
        yield from [FIXED_ATTACK] if FIXED in attacks else []
        yield from [STRONGEST] if attacks - {FIXED} else []
    if outcome.judged and not outcome.generated:
        yield RULE
    if any(comparison.too_short for judged in outcome.judged for comparison in judged.comparisons):
        yield SHORT


# --- the list --------------------------------------------------------------------------------------------------------


def listing() -> doc.Table:
    """Return a table of what can be reproduced, and how long it takes here at each scale."""
    scales: tuple[ScaleName, ...] = ("laptop", "dense", "schedule")
    rows = (
        (doc.TableCell(each.name, under=f"{each.title} ({each.where})"), *(_cost(each, scale) for scale in scales))
        for each in map(load, names())
    )
    head = ("Name, and what it is (where in the paper)", *scales)
    return doc.table(TIMES if has_bfloat16() else f"{TIMES} {SLOWER}", head, rows, "prose")


def _cost(exhibit: Exhibit, scale: ScaleName) -> str:
    if exhibit.kind == "formula":
        return "a formula"
    minutes = stated_minutes(exhibit, scale) if scale in exhibit.scales else None
    if minutes is None:
        return "?" if scale in exhibit.scales else "–"
    return f"{minutes:.0f} min" if minutes < HOURS else f"{minutes / 60:.0f} h"
