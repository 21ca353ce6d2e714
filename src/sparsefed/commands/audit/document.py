"""An audit as one page: verdict and matrix first, then what they rest on."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from sparsefed import config as configs
from sparsefed.commands.audit.findings import AuditResult, ends, recommended
from sparsefed.commands.audit.text import cost_rows, limits, parameters, reasons, rule, verdict, who
from sparsefed.core import toml
from sparsefed.reports import partitions
from sparsefed.reports import reproduction as again
from sparsefed.reports.class_accuracy import classes
from sparsefed.reports.heat import matrix_part
from sparsefed.reports.markup import Html, code, element, folded, joined, note, table
from sparsefed.reports.pareto import SAID as PARETO
from sparsefed.reports.pareto import chart as pareto_chart
from sparsefed.reports.pareto import numbers as pareto_numbers
from sparsefed.reports.pareto import worst_cases
from sparsefed.reports.run_charts import charts
from sparsefed.reports.shell import Section, figure, figures, page, section
from sparsefed.reports.tradeoff import tradeoffs
from sparsefed.results.matrix import NO_ATTACK
from sparsefed.results.numbers import duration, percent
from sparsefed.results.twins import compare
from sparsefed.sweeps.plan import STRONGEST

if TYPE_CHECKING:
    import altair as alt

CURVES = {
    "test-accuracy": "Each defense under the attack that does it most harm, at the first seed: test accuracy.",
    "attack-accuracy": "The same: the share of the attackers' targets on which the model says what they want.",
}
NORMS = {
    "norm-ratio": "Each defense under its worst attack: attackers' updates over honest ones, before the server clips.",
    "norms-": "Under its worst attack: lengths of updates before the server clips. Dashed: the limit it enforces.",
    "clipped": "The share of a round's updates that were longer than the server allows and so were cut.",
}
BY_CLASS = "Each defense under the attack that does it most harm, at the first seed."
VARIED = "One seed. Up to four times more and less than what the rule gave; everything else stays as it was."
TIMES = (
    "Time is that of a whole round, training included, over a round without a defense (the tenth part of the rounds "
    "that were fastest, unattacked): other runs were at work on the same machine, so take it roughly. Bytes are of one "
    "device in one round."
)


def html(outcome: AuditResult, command: Sequence[str] = ()) -> str:
    """The whole page; `command` is what made it."""
    config = outcome.config
    name = config.name or "audit"
    lead = (
        f"{config.model.name} on {config.data.name}, {config.rounds} rounds of {config.train.cohort} devices; "
        f"{who(config)}."
    )
    return page(f"SparseFed audit: {name}", lead, sections(outcome, command), heading=f"Audit of {name}")


def sections(outcome: AuditResult, command: Sequence[str]) -> list[Section]:
    """The parts, in order."""
    found = outcome.measured
    first = [several[0] for several in found.records.values()]
    worst = list(ends(found))
    drawn = charts(worst) if worst else {}
    return [
        section("Summary", *_summary(outcome)),
        section("Recommendation", *_recommendation(outcome)),
        section("Pareto front", *_pareto(outcome)),
        section("Curves", _figures(drawn, CURVES)),
        section("Class by class", *_classes(outcome)),
        section("Norms", _figures(drawn, NORMS)),
        section("Attacks", *_attacks(outcome)),
        section("Defenses and what they cost", *_costs(outcome)),
        section("What k and L cost and buy", _tradeoffs(outcome)),
        section("Certificate", *_certificates(outcome)),
        section("Who owns what", partitions.portraits(first[:1])),
        section("Configs and versions", *_configs(outcome), again.versions(first[:1])),
        section("How to run it again", *_again(outcome, command)),
    ]


def _summary(outcome: AuditResult) -> Iterator[Html]:
    if outcome.problem is not None:
        yield element("p", f"Not all of it could be measured: {outcome.problem}.", class_="warning", role="note")
    yield element("p", " ".join(verdict(outcome)), class_="verdict")
    yield matrix_part([outcome.matrix])


def _recommendation(outcome: AuditResult) -> Iterator[Html]:
    yield element("p", rule(outcome))
    if told := list(reasons(outcome)):
        yield element("h3", "Why not the others")
        yield _list(told)
    yield element("h3", "Limits")
    yield _list(list(limits(outcome)))
    config = recommended(outcome)
    if config is not None:
        said = "The recommended defense under the strongest attack found against it: recommended.toml"
        yield folded(said, code(toml.dumps(configs.dump(config))))


def _list(lines: Sequence[str]) -> Html:
    return element("ul", *(element("li", line) for line in lines))


def _pareto(outcome: AuditResult) -> Iterator[Html]:
    aimed = {foe.name for foe in outcome.grid.foes.chosen if foe.aimed}
    if aimed and (points := worst_cases(outcome.matrix)):
        yield figures([figure("pareto-1", pareto_chart(points, "What can be had"), PARETO, pareto_numbers(points))])


def _figures(drawn: Mapping[str, alt.LayerChart], wanted: Mapping[str, str]) -> Html:
    """The charts whose names begin so, each with what is said of it."""
    said = {name: text for begin, text in wanted.items() for name in drawn if name.startswith(begin)}
    return figures([figure(name, drawn[name], text) for name, text in said.items()])


def _classes(outcome: AuditResult) -> Iterator[Html]:
    found, worst = outcome.measured, list(ends(outcome.measured))
    calm = [several[0] for (_, attack), several in found.records.items() if attack == NO_ATTACK]
    if told := classes(worst, compare([*worst, *calm])):
        yield note(BY_CLASS)
        yield told


def _tradeoffs(outcome: AuditResult) -> Html:
    drawn = tradeoffs(outcome.varied) if outcome.varied else {}
    return figures([figure(name, chart, VARIED) for name, chart in drawn.items()])


def _attacks(outcome: AuditResult) -> Iterator[Html]:
    grid, measured = outcome.grid, outcome.measured
    lines = [(foe.name, parameters(foe.table), _several(grid.variants[foe.name])) for foe in grid.foes.chosen]
    yield table("Who attacked", ("Attack", "As given", "Variants"), lines, class_="facts")
    if measured.tried:
        heads = ("Defense", *(foe.name for foe in grid.foes.chosen))
        body = [
            (defense, *(_strongest(outcome, defense, foe.name) for foe in grid.foes.chosen))
            for defense in outcome.matrix.defenses
        ]
        yield table("The strongest variant against each defense", heads, body, class_="facts")
        yield note(STRONGEST)


def _several(variants: Mapping[str, Mapping[str, object]]) -> Html:
    drawn = {name: part for name, part in variants.items() if part}
    return joined([element("div", f"{name}: {parameters(part)}") for name, part in drawn.items()] or ["–"])


def _strongest(outcome: AuditResult, defense: str, attack: str) -> str:
    pair = (defense, attack)
    chosen = outcome.measured.variants.get(pair)
    if chosen is None:
        return "–"
    metrics = outcome.measured.tried.get(pair, {}).get(chosen, {})
    got = metrics.get("attack_mean")
    told = f"attack {percent(got)}" if got is not None else f"test {percent(metrics.get('test_accuracy'))}"
    return f"{chosen} ({told})"


def _costs(outcome: AuditResult) -> Iterator[Html]:
    lines = [(each.name, parameters(each.table), each.why) for each in outcome.panel.members]
    heads = ("Defense", "Parameters", "Where they come from")
    yield table("What each defense was run with", heads, lines, class_="facts")
    body = [(name, *cells[1:]) for name, cells in cost_rows(outcome)]
    costs = ("Defense", "Time of a round", "Bytes up", "Bytes down")
    yield table("What each defense costs without attackers", costs, body, class_="numbers")
    yield note(TIMES)


def _certificates(outcome: AuditResult) -> Iterator[Html]:
    for name, told in outcome.certificates.items():
        yield element("p", element("strong", f"{name}: "), told)
    if outcome.certificates:
        yield note("By `sparsefed certify`, which says more: what every bound rests on, and tables.")


def _configs(outcome: AuditResult) -> Iterator[Html]:
    yield folded("The audited config", code(toml.dumps(configs.dump(outcome.config))))
    calm = {d: several[0] for (d, attack), several in outcome.measured.records.items() if attack == NO_ATTACK}
    full = [folded(f"Config of {name}, {NO_ATTACK}", code(toml.dumps(record.config))) for name, record in calm.items()]
    yield folded("The configs of all defenses", *full)


def _again(outcome: AuditResult, command: Sequence[str]) -> Iterator[Html]:
    if command:
        yield code(shlex.join(command))
    took = "" if outcome.seconds is None else f"The runs took {duration(outcome.seconds)} of one worker's time. "
    yield element("p", f"{took}What is finished is not run again; the same seeds give the same numbers.")
    if recommended(outcome) is not None:
        yield element("p", "The recommended defense alone:")
        yield code("sparsefed run recommended.toml --twins")
