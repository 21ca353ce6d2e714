"""An exhibit as a document: verdicts first, our numbers next to the paper's, charts, and what was run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sparsefed.commands.reproduce.claims import HOLDS, NOT, PART, Judged
from sparsefed.commands.reproduce.comparison import (
    ExhibitResult,
    body,
    columns,
    grounds,
    rules,
    summary,
    what_was_scaled,
)
from sparsefed.commands.reproduce.exhibit import Exhibit, ScaleName
from sparsefed.commands.reproduce.exhibit_charts import SAID, charts, together
from sparsefed.commands.reproduce.grid import combinations
from sparsefed.commands.reproduce.load import load, names
from sparsefed.core import toml
from sparsefed.core.dtypes import has_bfloat16
from sparsefed.reports import document as doc
from sparsefed.reports.pictures import picture
from sparsefed.results.numbers import duration

MOST_SHOWN = 6  # of the comparisons behind a verdict
LEVELS: Mapping[str, doc.Level] = {HOLDS: "good", PART: "fair", NOT: "poor"}
HOURS = 100  # from so many minutes on times are shown in hours
SLOWER = "Minutes are those of a processor with bfloat16. This one has none: expect twice as long, or more."


def document(outcome: ExhibitResult) -> doc.Document:
    """Return the result of an exhibit as a document."""
    exhibit = outcome.exhibit
    drawn = charts(exhibit, outcome.rows, outcome.paper)
    notes = outcome.paper.notes
    parts = (
        doc.section("Summary", _summary(outcome), terminal=True),
        doc.section("Charts", [doc.Figure(name, chart, SAID) for name, chart in drawn.items()]),
        doc.section("What was run", _configs(outcome), terminal=True),
        doc.section("Notes on the paper's numbers", [doc.Bullets(tuple(notes))] if notes else []),
        doc.section("How to run it again", _again(outcome)),
    )
    lead = f"{exhibit.question} Scale: {outcome.scale}."
    return doc.Document(f"SparseFed: {exhibit.title}", lead, parts, heading=f"{exhibit.where}: {exhibit.title}")


def _summary(outcome: ExhibitResult) -> Iterator[doc.Block]:
    yield doc.paragraph(summary(outcome), kind="verdict")
    if outcome.judged:
        lines = ((each.claim.text, each.claim.where, _verdict(each), _comparisons(each)) for each in outcome.judged)
        yield doc.table("What the paper says", ("Claim", "Where", "Here", "Comparisons"), lines, "lines")
    yield _numbers(outcome)
    yield from map(doc.note, rules(outcome))


def _verdict(judged: Judged) -> doc.TableCell:
    return doc.TableCell(judged.verdict, level=LEVELS.get(judged.verdict, ""), strong=True)


def _comparisons(judged: Judged) -> doc.TableCell:
    """Return the comparisons behind a verdict, folded if it holds everywhere."""
    many = len(judged.comparisons)
    everywhere = judged.verdict == HOLDS and many > 1
    return doc.TableCell("\n".join(grounds(judged, MOST_SHOWN)), fold=f"at all {many}" if everywhere else "")


def _numbers(outcome: ExhibitResult) -> doc.Table:
    """Return our numbers next to the paper's; a terminal omits names that are equal in every row."""
    heads, lines = columns(outcome), body(outcome)
    same = [head.ours is None and len({line[i] for line in lines}) == 1 < len(lines) for i, head in enumerate(heads)]
    every = [
        doc.Head(head.title, left=head.ours is None, page_only=same[i], below=head.ours is False)
        for i, head in enumerate(heads)
    ]
    return doc.table("Our numbers beside the paper's", every, lines)


def _configs(outcome: ExhibitResult) -> Iterator[doc.Block]:
    changed = what_was_scaled(outcome)
    if changed:
        yield doc.Heading(f"What scale {outcome.scale} changes")
        yield doc.Bullets(tuple(changed))
    if not outcome.exact:
        first = combinations(outcome.exhibit, outcome.scale)[0]
        name = ", ".join(first.values.values())
        text = toml.dumps(first.result(0, next(iter(first.variants), None)).table)
        yield from doc.fold(f"Config of the first combination: {name}", doc.Listing(text))


def _again(outcome: ExhibitResult) -> Iterator[doc.Block]:
    yield doc.Listing(f"sparsefed reproduce {outcome.exhibit.name} --scale {outcome.scale}")
    cells = len({row["key"] for row in outcome.rows if row["key"]})
    took = "" if outcome.seconds is None else f" They took {duration(outcome.seconds)} of one worker's time."
    yield doc.paragraph(f"{cells} runs.{took}" if cells else "A formula: nothing is run.")


def files(outcome: ExhibitResult) -> dict[str, str | bytes]:
    """Return the page and, if there is a chart, its picture as PNG and SVG."""
    whole = together(charts(outcome.exhibit, outcome.rows, outcome.paper))
    pictures = {} if whole is None else {f"{outcome.name}.{kind}": picture(whole, kind) for kind in ("png", "svg")}
    return {f"{outcome.name}.html": outcome.to_html(), **pictures}


def records(outcome: ExhibitResult) -> list[dict[str, Any]]:
    """Return the runs: their place in the grid, their role and their metrics."""
    kept = ("role", "status", "seed", "attack", "key")
    return [
        {**row["cell"], **{name: row[name] for name in kept if name in row}, **(row.get("metrics") or {})}
        for row in outcome.rows
    ]


def listing() -> doc.Table:
    """Return a table of what can be reproduced, and its cost."""
    scales: tuple[ScaleName, ...] = ("laptop", "schedule")
    head = ("Name", "In the paper", "What it is", *(f"At scale {scale}" for scale in scales))
    rows = (
        (exhibit.name, exhibit.where, exhibit.title, *(_cost(exhibit, scale) for scale in scales))
        for exhibit in map(load, names())
    )
    return doc.table("" if has_bfloat16() else SLOWER, head, rows, "prose")


def _cost(exhibit: Exhibit, scale: ScaleName) -> str:
    if exhibit.kind == "formula":
        return "a formula"
    if scale not in exhibit.scales:
        return "not at this scale"
    minutes = exhibit.scales[scale].est_minutes
    if minutes is None:
        return ""
    return f"about {minutes:.0f} min on 2 cores" if minutes < HOURS else f"about {minutes / 60:.0f} h on 2 cores"
