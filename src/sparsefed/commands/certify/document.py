"""The certificate as one page that works offline, in the looks of a report."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

from sparsefed import config as configs
from sparsefed.commands.certify.certificate import Certificate
from sparsefed.commands.certify.radius_charts import charts
from sparsefed.commands.certify.text import (
    ASSUMED,
    LEGEND,
    NAMES,
    accuracy_heads,
    accuracy_rows,
    heads,
    rows,
)
from sparsefed.core import toml
from sparsefed.reports.markup import Html, code, element, folded, joined, note, table
from sparsefed.reports.pictures import write
from sparsefed.reports.shell import figure, figures, page, section

SAID = {
    "accuracy": "Higher is better: the share of test points that are right, and that no attack can make wrong.",
    "radius": "Lower is better: how far attackers can drive the model. Dotted: what clipping promises by itself.",
    "theorem": "The recursion alone. Where it is above the dotted line, it says less than clipping does by itself.",
}


def save(found: Certificate, out: Path) -> Path:
    """Write the page and say where."""
    return write(out, html(found).encode())


def html(found: Certificate) -> str:
    """The whole page."""
    drawn = [figure(name, chart, SAID[name]) for name, chart in charts(found).items()]
    config = toml.dumps(configs.dump(found.source.config))
    parts = [
        section("Summary", *_summary(found)),
        section("Radii" if found.accuracy is None else "Certified accuracy and radii", figures(drawn)),
        section("Config", folded("Config", code(config))),
        section("How to run it again", *_again(found)),
    ]
    return page(f"SparseFed: {found.title}", _lead(found), parts)


def _lead(found: Certificate) -> str:
    source = found.source
    what = f"the run {source.label}" if source.run else f"the config {source.label}"
    return f"{what[0].upper()}{what[1:]}: {len(source.rounds):,} rounds, {source.d:,} parameters."


def _summary(found: Certificate) -> Iterator[Html]:
    _, first, *others = found.verdict
    if found.status == "estimate":
        told = "Estimate, not a certificate: c was only estimated from below, so what needs it is not a bound."
        yield element("p", told, class_="warning", role="note")
    if not found.source.finished:
        yield element("p", "Preliminary: the run is not finished.", class_="warning", role="note")
    yield element("p", first, class_="verdict")
    for sentence in others:
        yield element("p", sentence, class_="warning" if sentence.startswith("Warning") else "")
    yield table(found.title, heads(found), map(_marked, rows(found)), class_="numbers")
    yield note(LEGEND)
    if found.accuracy is not None:
        yield table("Certified accuracy", accuracy_heads(), accuracy_rows(found.accuracy), class_="numbers")
    yield table(ASSUMED, ("About", "What", "Known how"), _assumptions(found), class_="prose")


def _marked(cells: tuple[str, ...]) -> tuple[str, ...]:
    """What is not a bound says so beside its name."""
    name, bound, *others = cells
    badge = element("span", "not a bound", class_="badge") if name == NAMES["paper"] and bound == "NO" else ""
    return joined([name, " ", badge]), bound, *others


def _assumptions(found: Certificate) -> Iterator[tuple[str, ...]]:
    return ((each.about, each.says, each.mark) for each in found.assumptions)


def _again(found: Certificate) -> Iterator[Html]:
    kind = "run folder" if found.source.run else "config"
    yield element("p", f"With the same {kind}, the same numbers come out:")
    yield code(shlex.join(["sparsefed", *sys.argv[1:]]))
