"""What an exhibit leaves behind beside its results: a page with the verdicts first, and its charts as pictures."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from sparsefed.commands.reproduce.claims import HOLDS, Judged
from sparsefed.commands.reproduce.comparison import (
    ExhibitResult,
    body,
    columns,
    grounds,
    rules,
    summary,
    what_was_scaled,
)
from sparsefed.commands.reproduce.exhibit_charts import SAID, charts, together
from sparsefed.commands.reproduce.grid import combinations
from sparsefed.core import toml
from sparsefed.reports.markup import Html, code, element, folded, joined, table
from sparsefed.reports.pictures import picture, write
from sparsefed.reports.shell import figure, figures, page, section
from sparsefed.results.numbers import duration
from sparsefed.sweeps import ledger as results

MOST_SHOWN = 6  # of the comparisons behind a verdict


def save(outcome: ExhibitResult, out: Path) -> list[Path]:
    """Write the page, and where there is a chart its picture as PNG and SVG; say where."""
    with results.disk(out):
        written = [write(out / f"{outcome.name}.html", html(outcome).encode())]
        whole = together(charts(outcome.exhibit, outcome.rows, outcome.paper))
        if whole is not None:
            formats = ("png", "svg")
            written += [write(out / f"{outcome.name}.{kind}", picture(whole, kind)) for kind in formats]
    return written


def html(outcome: ExhibitResult) -> str:
    """The outcome as one page that works offline, in the looks of a report."""
    exhibit = outcome.exhibit
    drawn = charts(exhibit, outcome.rows, outcome.paper)
    parts = [
        section("Summary", *_summary(outcome)),
        section("Charts", figures([figure(name, chart, SAID) for name, chart in drawn.items()])),
        section("What was run", *_configs(outcome)),
        section("Notes on the paper's numbers", *_notes(outcome)),
        section("How to run it again", *_again(outcome)),
    ]
    lead = f"{exhibit.question} Scale: {outcome.scale}."
    return page(f"SparseFed: {exhibit.title}", lead, parts, heading=f"{exhibit.where}: {exhibit.title}")


def _summary(outcome: ExhibitResult) -> Iterator[Html]:
    yield element("p", summary(outcome), class_="verdict")
    if outcome.judged:
        lines = (
            (each.claim.text, each.claim.where, element("strong", each.verdict), _against(each))
            for each in outcome.judged
        )
        yield table("What the paper says", ("Claim", "Where", "Here", "Comparisons"), lines, class_="facts")
    heads = [column.title for column in columns(outcome)]
    yield table("Our numbers beside the paper's", heads, body(outcome), class_="numbers")
    yield from (element("p", rule, class_="note") for rule in rules(outcome))


def _against(judged: Judged) -> Html:
    """What a verdict rests on; folded where it holds everywhere."""
    shown, many = joined(map(_line, grounds(judged, MOST_SHOWN))), len(judged.comparisons)
    return folded(f"at all {many}", shown) if judged.verdict == HOLDS and many > 1 else shown


def _line(text: str) -> Html:
    return element("div", text)


def _configs(outcome: ExhibitResult) -> Iterator[Html]:
    changed = what_was_scaled(outcome)
    if changed:
        yield element("h3", f"What scale {outcome.scale} changes")
        yield element("ul", *(element("li", line) for line in changed))
    if not outcome.exact:
        first = combinations(outcome.exhibit, outcome.scale)[0]
        name = ", ".join(first.values.values())
        text = toml.dumps(first.result(0, next(iter(first.variants), None)).table)
        yield folded(f"Config of the first combination: {name}", code(text))


def _again(outcome: ExhibitResult) -> Iterator[Html]:
    command = f"sparsefed reproduce {outcome.exhibit.name} --scale {outcome.scale}"
    yield code(command)
    cells = len({row["key"] for row in outcome.rows if row["key"]})
    took = "" if outcome.seconds is None else f" They took {duration(outcome.seconds)} of one worker's time."
    yield element("p", f"{cells} runs.{took}" if cells else "A formula: nothing is run.")


def _notes(outcome: ExhibitResult) -> Iterator[Html]:
    if outcome.paper.notes:
        yield element("ul", *(element("li", note) for note in outcome.paper.notes))
