"""The report as one HTML file that works offline: summary first, then curves, then everything needed to do it again.

The page carries the chart library once, each chart as a JSON specification, and a content policy that forbids the
browser every request. All text that comes from a run is escaped by `markup.element`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib.resources import files
from string import Template
from typing import TYPE_CHECKING, Any

from sparsefed import toml
from sparsefed.report.attack import attack
from sparsefed.report.charts import charts, check
from sparsefed.report.markup import Html, element, folded, joined, table
from sparsefed.report.numbers import curve, duration, percent, perplexity, picked, times
from sparsefed.report.summary import SummaryRow, labels, progress, summary, verdict
from sparsefed.types import RunRecord

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
SAID = {  # what a chart is read for, under it
    "test-accuracy": "Higher is better: the share of test data that the model gets right.",
    "test-perplexity": "Lower is better: e to the mean loss a token, as many tokens as the model hesitates between.",
    "attack-accuracy": "Lower is better: the share of the attackers' targets on which the model says what they want.",
    "attack-landed": "The share of what attackers sent, by squared length, on coordinates that the server changed.",
    "clipped": "The share of a round's updates that were longer than the server allows and so were cut to that length.",
    "norms": "Lengths of updates before the server clips, on a logarithmic scale. Dashed: the limit it enforces.",
}
TABULATED = {"test-accuracy": "test_accuracy", "attack-accuracy": "attack_accuracy"}
MOST_ROWS = 11  # of the table behind a chart
FACTS = ("status", "created", "seed", "rounds", "parameters", "commit")


def html(runs: Sequence[RunRecord]) -> str:
    """The whole page."""
    check(runs)
    rows, names = summary(runs), labels(runs)
    drawn = charts(runs)
    return sheet(
        title=f"SparseFed: {', '.join(names)}",
        heading="SparseFed report",
        lead=joined(_lead(runs)),
        summary=joined(
            [
                *_sentences(rows),
                _summary_table(rows),
                element("p", RULES, class_="note"),
                *_privacy(runs),
                *attack(runs),
            ]
        ),
        pictured="Curves",
        charts=joined(_figure(name, chart, runs) for name, chart in drawn.items()) or _no_charts(),
        configs=joined(_configs(runs)),
        again=joined(_again(runs)),
        provenance=joined(_provenance(runs)),
    )


def sheet(**parts: str) -> str:
    """A page from its parts (the names in page.html), with all that it needs to be drawn offline."""
    part = Template(files(__package__).joinpath("page.html").read_text(encoding="utf-8"))
    style = files(__package__).joinpath("page.css").read_text(encoding="utf-8")
    return part.substitute({name: joined([content]) for name, content in parts.items()}, style=style, library=library())


def figure(name: str, chart: alt.LayerChart, said: str, *behind: Html) -> Html:
    """A chart with its title as a heading that wraps, a text alternative, what it is read for and what is behind."""
    spec = chart.to_dict()
    title = spec.pop("title")
    told = " ".join([title["subtitle"]] if isinstance(title["subtitle"], str) else title["subtitle"])
    # The page decides the width; a chart on its own has one of its own.
    spec |= {"width": "container", "autosize": {"type": "fit-x", "contains": "padding"}}
    picture = element("div", class_="chart", id=f"chart-{name}", role="img", aria_label=f"{title['text']}. {told}")
    data = element("script", script_json(spec), type="application/json", data_chart=name)
    return element("figure", element("h3", title["text"]), picture, data, element("figcaption", said), *behind)


def script_json(value: Any) -> Html:
    """JSON that may stand inside a script element: nothing in it can end the element or open a comment."""
    text = json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    return Html(text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029"))


@cache
def library() -> str:
    """Vega, Vega-Lite (the version that Altair writes for) and Vega-Embed as one script."""
    import altair as alt
    import vl_convert

    version = ".".join(alt.SCHEMA_VERSION.lstrip("v").split(".")[:2])
    return str(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", vl_version=version))


def _lead(runs: Sequence[RunRecord]) -> Iterator[str]:
    created = sorted(str(run.manifest["created"]) for run in runs if run.manifest.get("created"))
    yield f"{len(runs)} run{'s' if len(runs) > 1 else ''}: {', '.join(labels(runs))}"
    if created:
        yield f". Started {created[0].replace('T', ' ')[:16]}"
    yield "."


def _sentences(rows: Sequence[SummaryRow]) -> Iterator[Html]:
    if any(not row.finished for row in rows):
        yield element("p", "Preliminary: not every run is finished.", class_="warning", role="note")
    yield element("p", " ".join(verdict(rows)), class_="verdict")


def _privacy(runs: Sequence[RunRecord]) -> Iterator[Html]:
    for name, run in zip(labels(runs), runs, strict=True):
        if run.manifest.get("privacy"):
            yield element("p", f"Differential privacy of {name}: {run.manifest['privacy']}.", class_="note")


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


def _figure(name: str, chart: alt.LayerChart, runs: Sequence[RunRecord]) -> Html:
    """A chart of runs, with the numbers behind it."""
    said = SAID[name.split("-")[0] if name.startswith("norms") else name]
    behind = [_numbers(chart.title["text"], runs, TABULATED[name])] if name in TABULATED else []
    return figure(name, chart, said, *behind)


def _numbers(title: str, runs: Sequence[RunRecord], key: str) -> Html:
    """A few of the measured values as a table, for those who cannot see the curves."""
    at = [dict(curve(run.rows, key)) for run in runs]
    rounds = [t for t, _ in picked([(t, 0.0) for t in sorted({t for values in at for t in values})], MOST_ROWS)]
    body = ((str(t), *(percent(values.get(t)) for values in at)) for t in rounds)
    return folded("Numbers", table(title, ("Round", *labels(runs)), body, class_="numbers"))


def _configs(runs: Sequence[RunRecord]) -> Iterator[Html]:
    flat = [dict(_flat(run.config)) for run in runs]
    if len(runs) > 1:
        yield _facts("Where the configs differ", runs, _differing(flat)) or element(
            "p", "All runs have the same config."
        )
    for label, run in zip(labels(runs), runs, strict=True):
        yield folded(f"Config of {label}", element("pre", element("code", toml.dumps(run.config))))


def _flat(config: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, str]]:
    for key, item in config.items():
        if isinstance(item, Mapping):
            yield from _flat(item, f"{path}{key}.")
        elif item is not None:
            yield f"{path}{key}", toml.value(item)


def _differing(facts: Sequence[Mapping[str, str]]) -> list[Mapping[str, str]]:
    different = [key for key in _keys(facts) if len({each.get(key) for each in facts}) > 1]
    return [{key: each.get(key, "–") for key in different} for each in facts]


def _again(runs: Sequence[RunRecord]) -> Iterator[Html]:
    yield element(
        "p",
        "Check out the commit named below, install the versions named below, save a config from above as a file and "
        "give it to ",
        element("code", "sparsefed run CONFIG.toml"),
        ". The same seed makes the same choices. The commands that made these runs:",
    )
    commands = dict.fromkeys(str(run.manifest["command"]) for run in runs if run.manifest.get("command"))
    yield from (element("pre", element("code", command)) for command in commands)


def _provenance(runs: Sequence[RunRecord]) -> Iterator[Html]:
    facts = [{key: str(run.manifest[key]) for key in FACTS if run.manifest.get(key) is not None} for run in runs]
    yield _facts("The runs", runs, facts)
    yield _facts("Versions", runs, [_texts(run.manifest.get("versions")) for run in runs])
    yield _facts("Machine", runs, [_texts(run.manifest.get("machine")) for run in runs])


def _texts(facts: Any) -> dict[str, str]:
    return {str(key): str(item) for key, item in facts.items()} if isinstance(facts, Mapping) else {}


def _facts(caption: str, runs: Sequence[RunRecord], facts: Sequence[Mapping[str, str]]) -> Html:
    """A table of named facts, a column a run, or one column where the runs agree on all of them."""
    keys = _keys(facts)
    if not keys:
        return Html("")
    agree = all(each == facts[0] for each in facts)
    heads, columns = (["all runs"], facts[:1]) if agree and len(runs) > 1 else (labels(runs), facts)
    return table(
        caption, ("", *heads), ((key, *(each.get(key, "–") for each in columns)) for key in keys), class_="facts"
    )


def _keys(facts: Iterable[Mapping[str, str]]) -> list[str]:
    return list(dict.fromkeys(key for each in facts for key in each))
