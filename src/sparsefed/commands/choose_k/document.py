"""What a choice leaves behind: a page with the charts and tables, and a JSON beside it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from sparsefed import config as configs
from sparsefed import runs
from sparsefed.commands.choose_k.choice import ChooseKResult
from sparsefed.commands.choose_k.k_charts import curve_chart, probe_chart
from sparsefed.commands.choose_k.probes import FOLDER
from sparsefed.commands.choose_k.text import PROBED, as_json, curve_head, curve_rows, probe_rows, sentences
from sparsefed.core import toml
from sparsefed.reports.markup import Html, code, element, folded, joined, table
from sparsefed.reports.shell import figure, figures, page, section

PAGE, NUMBERS = "choose-k.html", "choose-k.json"
CURVE = (
    "The lower, the more of a round's update is applied at once; the further left, the fewer coordinates attackers can "
    "move. The band is the range of the samples; the upright lines are the k chosen, the paper's and the config's own."
)
RUNS = "Where test accuracy is flat, a smaller k costs nothing; attack accuracy says what it buys."


def save(outcome: ChooseKResult, folder: Path) -> list[Path]:
    """Write the page and the numbers; say where."""
    return runs.write_all({folder / PAGE: html(outcome), folder / NUMBERS: as_json(outcome)})


def html(outcome: ChooseKResult) -> str:
    """The outcome as one page that works offline, in the looks of a report."""
    first = 2 if outcome.probes else 1
    name = outcome.config.name or "a config"
    lead = (
        f"{name}: {outcome.config.model.name} with {outcome.d:,} parameters, {outcome.config.data.name}, defense "
        f"{outcome.config.defense.name}."
    )
    said = [element("p", each, class_="verdict" if i < first else "note") for i, each in enumerate(sentences(outcome))]
    parts = [
        section("Summary", *said),
        section("Curves", figures(list(_figures(outcome)))),
        section("Probe runs", *_probes(outcome)),
        section("Config", folded("Config", code(toml.dumps(configs.dump(outcome.config))))),
        section("How to run it again", *_again(outcome)),
    ]
    return page(f"SparseFed: k for {name}", lead, parts, heading="SparseFed: the choice of k")


def _figures(outcome: ChooseKResult) -> Iterator[Html]:
    curve = table("Lost: mean (least–most)", curve_head(outcome), curve_rows(outcome), class_="numbers")
    yield figure("lost", curve_chart(outcome), CURVE, folded("As a table", curve))
    if outcome.probes:
        yield figure("probes", probe_chart(outcome), RUNS)


def _probes(outcome: ChooseKResult) -> Iterator[Html]:
    if outcome.probes:
        yield table("Accuracy against k", PROBED, _marked(outcome), class_="numbers")


def _marked(outcome: ChooseKResult) -> Iterator[tuple[str, ...]]:
    for probe, (k, *cells) in zip(outcome.probes, probe_rows(outcome), strict=True):
        badge = [element("span", "knee", class_="badge")] if probe == outcome.knee else []
        yield joined([k, *badge], "\u00a0"), *cells


def _again(outcome: ChooseKResult) -> Iterator[Html]:
    yield element("p", f"{NUMBERS}, beside this page, has all of the numbers.")
    chosen = f"sparsefed run CONFIG.toml --set defense.k={(outcome.knee.k if outcome.knee else outcome.k)}"
    yield element("p", "A run with what was chosen: ", element("code", chosen), ".")
    if outcome.probes:
        yield element("p", "The probe runs side by side: ", element("code", f"sparsefed report {FOLDER}"), ".")
