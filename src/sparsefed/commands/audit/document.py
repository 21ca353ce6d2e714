"""An audit as a document: verdict and matrix first, then their evidence; and everything as JSON for programs.

In the JSON only `timing` differs between machines or runs.
"""

from __future__ import annotations

import math
import shlex
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import altair as alt

from sparsefed import config as configs
from sparsefed.commands.audit.defense_specs import UNDEFENDED
from sparsefed.commands.audit.findings import AuditResult, ends, harm, recommended
from sparsefed.config import Config
from sparsefed.core import toml
from sparsefed.reports import document as doc
from sparsefed.reports import partitions
from sparsefed.reports import reproduction as again
from sparsefed.reports.heat import class_part, matrix_part
from sparsefed.reports.pareto import SAID as PARETO
from sparsefed.reports.pareto import chart as pareto_chart
from sparsefed.reports.pareto import numbers_table, worst_cases
from sparsefed.reports.run_charts import charts
from sparsefed.reports.tradeoff import tradeoffs
from sparsefed.results.matrix import NO_ATTACK, judged
from sparsefed.results.numbers import duration, percent, points, significant, times, traffic
from sparsefed.results.twins import compare
from sparsefed.results.verdict import counted, listed
from sparsefed.sweeps.plan import STRONGEST

PAGE, NUMBERS, CONFIG = "audit.html", "audit.json", "recommended.toml"
FORMAT, DIGITS = 1, 6  # of the JSON
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
RULE = (
    "Recommended is, of the defenses that without attackers cost at most {tolerance} points of test accuracy "
    "against no defense, the one whose worst attack does least harm: those that held against all attacks first, "
    "then those that held in part. Harm is the larger of what attackers gain (attack accuracy beyond what they get "
    "for nothing) and what is lost (test accuracy, against the same defense without attackers), in means over the "
    "seeds. Of those whose harm differs by no more than the best one's seeds do (at least 1 point, at most 5), the "
    "one that keeps most test accuracy without attackers wins, and within 1 point of that the simplest: whose "
    "server must see least, then whose devices send least."
)


def document(outcome: AuditResult) -> doc.Document:
    """Return the whole audit as a document."""
    config = outcome.config
    name, measured = config.name or "audit", outcome.measured
    lead = (
        f"{config.model.name} on {config.data.name}, {config.rounds} rounds of {config.train.cohort} devices; "
        f"{who(config)}."
    )
    first = [several[0] for several in measured.records.values()][:1]
    worst = list(ends(measured))
    drawn = charts(worst) if worst else {}
    varied = tradeoffs(outcome.varied) if outcome.varied else {}
    parts = (
        doc.section("Summary", _summary(outcome), terminal=True),
        doc.section("Recommendation", _recommendation(outcome), terminal=True),
        doc.section("Pareto front", _pareto(outcome)),
        doc.section("Curves", _figures(drawn, CURVES)),
        doc.section("Class by class", _classes(outcome)),
        doc.section("Norms", _figures(drawn, NORMS)),
        doc.section("Attacks", _attacks(outcome)),
        doc.section("Defenses and what they cost", _costs(outcome), terminal=True),
        doc.section("What k and L cost and buy", [doc.Figure(name, chart, VARIED) for name, chart in varied.items()]),
        doc.section("Certificate", _certificates(outcome)),
        doc.section("Who owns what", partitions.portraits(first)),
        doc.section("Configs and versions", _configs(outcome), again.versions(first)),
        doc.section("How to run it again", _again(outcome)),
    )
    return doc.Document(f"SparseFed audit: {name}", lead, parts, heading=f"Audit of {name}")


def _summary(outcome: AuditResult) -> Iterator[doc.Block]:
    if outcome.problem is not None:
        yield doc.paragraph(f"Not all of it could be measured: {outcome.problem}.", kind="warning", page_only=True)
    yield doc.paragraph(" ".join(verdict(outcome)), kind="verdict")
    yield from matrix_part([outcome.matrix])


def _recommendation(outcome: AuditResult) -> Iterator[doc.Block]:
    yield doc.Paragraph((rule(outcome),), page_only=True)
    if told := tuple(reasons(outcome)):
        yield doc.Heading("Why not the others")
        yield doc.Bullets(told)
    yield doc.Heading("Limits")
    yield doc.Bullets(tuple(limits(outcome)), page_only=True)
    config = recommended(outcome)
    if config is not None:
        said = "The recommended defense under the strongest attack found against it: recommended.toml"
        yield from doc.fold(said, doc.Listing(toml.dumps(configs.dump(config))))


def _pareto(outcome: AuditResult) -> Iterator[doc.Block]:
    if any(foe.aimed for foe in outcome.grid.foes.chosen) and (cases := worst_cases(outcome.matrix)):
        yield doc.Figure("pareto-1", pareto_chart(cases, "What can be had"), PARETO, numbers_table(cases))


def _figures(drawn: Mapping[str, alt.LayerChart], wanted: Mapping[str, str]) -> Iterator[doc.Figure]:
    """Yield the charts whose names begin so, each with its caption."""
    said = {name: text for begin, text in wanted.items() for name in drawn if name.startswith(begin)}
    return (doc.Figure(name, drawn[name], text) for name, text in said.items())


def _classes(outcome: AuditResult) -> Iterator[doc.Block]:
    worst = list(ends(outcome.measured))
    calm = [several[0] for (_, attack), several in outcome.measured.records.items() if attack == NO_ATTACK]
    if blocks := list(class_part(worst, compare([*worst, *calm]))):
        yield doc.note(BY_CLASS)
        yield from blocks


def _attacks(outcome: AuditResult) -> Iterator[doc.Block]:
    grid = outcome.grid
    names = [foe.name for foe in grid.foes.chosen]
    lines = [(foe.name, parameters(foe.table), _variants(grid.variants[foe.name])) for foe in grid.foes.chosen]
    yield doc.table("Who attacked", ("Attack", "As given", "Variants"), lines, "facts")
    if outcome.measured.tried:
        body = [
            (defense, *(_strongest(outcome, defense, name) for name in names)) for defense in outcome.matrix.defenses
        ]
        yield doc.table("The strongest variant against each defense", ("Defense", *names), body, "facts")
        yield doc.note(STRONGEST)


def _variants(variants: Mapping[str, Mapping[str, object]]) -> str:
    return "\n".join(f"{name}: {parameters(part)}" for name, part in variants.items() if part) or "–"


def _strongest(outcome: AuditResult, defense: str, attack: str) -> str:
    pair = (defense, attack)
    chosen = outcome.measured.variants.get(pair)
    if chosen is None:
        return "–"
    metrics = outcome.measured.tried.get(pair, {}).get(chosen, {})
    got = metrics.get("attack_mean")
    told = f"attack {percent(got)}" if got is not None else f"test {percent(metrics.get('test_accuracy'))}"
    return f"{chosen} ({told})"


def _costs(outcome: AuditResult) -> Iterator[doc.Block]:
    lines = [(each.name, parameters(each.table), each.why) for each in outcome.panel.members]
    heads = ("Defense", "Parameters", doc.Head("Where they come from", page_only=True))
    yield doc.table("What each defense was run with", heads, lines, "facts")
    rows = (
        (
            name,
            doc.TableCell(times(cost.times), cost.times),
            doc.TableCell(traffic(cost.up), cost.up),
            doc.TableCell(traffic(cost.down), cost.down),
        )
        for name, cost in outcome.costs.items()
    )
    costs = ("Defense", "Time of a round", "Bytes up", "Bytes down")
    yield doc.table("What each defense costs without attackers", costs, rows)
    yield doc.note(TIMES)


def _certificates(outcome: AuditResult) -> Iterator[doc.Block]:
    for name, told in outcome.certificates.items():
        yield doc.paragraph(doc.Strong(f"{name}: "), told)
    if outcome.certificates:
        yield doc.note("By `sparsefed certify`, which says more: what every bound rests on, and tables.")


def _configs(outcome: AuditResult) -> Iterator[doc.Block]:
    yield from doc.fold("The audited config", doc.Listing(toml.dumps(configs.dump(outcome.config))))
    calm = {d: several[0] for (d, attack), several in outcome.measured.records.items() if attack == NO_ATTACK}
    full = [
        doc.Fold(f"Config of {name}, {NO_ATTACK}", (doc.Listing(toml.dumps(run.config)),)) for name, run in calm.items()
    ]
    yield from doc.fold("The configs of all defenses", *full)


def _again(outcome: AuditResult) -> Iterator[doc.Block]:
    yield doc.Listing(shlex.join(["sparsefed", *sys.argv[1:]]))
    took = "" if outcome.seconds is None else f"The runs took {duration(outcome.seconds)} of one worker's time. "
    yield doc.paragraph(f"{took}What is finished is not run again; the same seeds give the same numbers.")
    if recommended(outcome) is not None:
        yield doc.paragraph("The recommended defense alone:")
        yield doc.Listing("sparsefed run recommended.toml --twins")


# --- sentences -------------------------------------------------------------------------------------------------------


def verdict(outcome: AuditResult) -> list[str]:
    """Return two sentences: the recommendation, and what it rests on."""
    best = outcome.recommendation
    if best is None:
        return ["Nothing can be recommended: not even the model without a defense was measured against every attack."]
    told, attack, many = points(best.harm), best.attack, len(outcome.panel.members)
    worst = f"under the worst of {counted(len(outcome.grid.foes.chosen), 'attack')}, {attack}"
    if best.name == UNDEFENDED and best.holds:
        first = (
            f"No defense is needed against these attacks: {worst}, the undefended model takes {told} points of harm."
        )
    elif best.holds:
        first = f"Use {best.name}: {worst}, it takes {told} points of harm and holds."
    elif best.judgement == "in part":
        first = f"Use {best.name}, but it holds only in part: {worst}, it takes {told} points of harm."
    else:
        first = f"{_nobody(outcome)}: the least bad, {best.name}, takes {told} points of harm {worst}."
    return [first, f"{_clean(outcome)}; {many} defenses were compared, {_effort(outcome)}."]


def _nobody(outcome: AuditResult) -> str:
    best, allowed = outcome.recommendation, f"{100 * outcome.grid.asked.tolerance:g}"
    if best is None or not best.holds_but_costs_more:
        return "None of these defenses holds"
    name, cost = next(iter(best.holds_but_costs_more.items()))
    return (
        f"None of these defenses holds and costs at most {allowed} points of accuracy ({name} holds for {points(cost)})"
    )


def _clean(outcome: AuditResult) -> str:
    best, matrix = outcome.recommendation, outcome.matrix
    assert best is not None
    own, plain = (matrix.entries.get((name, NO_ATTACK)) for name in (best.name, UNDEFENDED))
    mine, theirs = own.test if own else None, plain.test if plain else None
    beside = "" if best.name == UNDEFENDED else f" ({percent(theirs)} without a defense)"
    return f"Without attackers its test accuracy is {percent(mine)}{beside}"


def _effort(outcome: AuditResult) -> str:
    asked = outcome.grid.asked
    tried = (
        "each attack as given" if asked.trials == 1 else f"each against up to {asked.trials} variants of each attack"
    )
    return f"{tried}, at {counted(asked.seeds, 'seed')}"


def reasons(outcome: AuditResult) -> Iterator[str]:
    """Yield why this defense is recommended, and why not each of the others."""
    best = outcome.recommendation
    if best is None:
        return
    for name, cost in best.holds_but_costs_more.items():
        yield (
            f"{name} would hold, but costs {points(cost)} points of test accuracy without attackers: with --tolerance "
            f"{math.ceil(100 * cost)} it would be eligible."
        )
    if best.tied:
        yield f"As good, but less simple: {listed(list(best.tied))}."
    for name, why in best.passed_over.items():
        if name not in best.holds_but_costs_more:
            yield f"{name} {why}."
    for name, why in outcome.panel.left_out.items():
        yield f"{name} was not tried: {why}."


def limits(outcome: AuditResult) -> Iterator[str]:
    """Yield what the recommendation does not cover."""
    asked, foes, config = outcome.grid.asked, outcome.grid.foes, outcome.config
    seeds = (
        "One seed: a difference of a few points can be chance."
        if asked.seeds == 1
        else f"Means over {asked.seeds} seeds, which differ by up to {points(_spread(outcome))} points."
    )
    task = f"{config.data.name}, {config.model.name}, {config.rounds} rounds"
    yield f"One task ({task}) and one threat model ({who(config)})."
    yield seeds
    searched = (
        "The attacks are as given; attackers who tune theirs can be stronger: --trials."
        if asked.trials == 1
        else f"At most {asked.trials} variants of each attack were tried; `sparsefed tune` searches further."
    )
    yield searched
    if foes.left_out:
        yield f"Not tried, for the threat model does not grant what they need: {_grouped(foes.left_out)}."
    if foes.spare:
        yield f"Not tried, but could be with --attacks: {', '.join(foes.spare)}."
    yield (
        "The defenses' parameters follow from rules, not from a search; an attack that nobody has thought of is not "
        "in any audit."
    )


def _grouped(left_out: Mapping[str, str]) -> str:
    """Join names by their reason.

    >>> _grouped({"a": "must know x", "b": "must know y", "c": "must know x"})
    'a and c must know x; b must know y'
    """
    by = {why: [name for name, other in left_out.items() if other == why] for why in left_out.values()}
    return "; ".join(f"{listed(names)} {why}" for why, names in by.items())


def who(config: Config) -> str:
    """Describe the threat model in a few words."""
    threat = config.threat
    many = len(threat.ids) if threat.ids is not None else threat.count
    said = f"{many} devices compromised"
    if threat.share is not None:
        said = f"{100 * threat.share:.3g} % of the devices compromised"
    if threat.per_round is not None:
        said = f"{threat.per_round} attackers in every round"
    knowing = " and ".join(threat.knowledge) or "nothing but public facts"
    return f"{said}, knowing {knowing}"


def rule(outcome: AuditResult) -> str:
    """Return the rule of the recommendation, in words."""
    return RULE.format(tolerance=f"{100 * outcome.grid.asked.tolerance:g}")


def parameters(table: Any) -> str:
    """Format the parameters of a defense or attack.

    >>> parameters({"name": "krum", "f": 2})
    'f = 2'
    """
    return ", ".join(f"{key} = {value}" for key, value in table.items() if key != "name") or "–"


def _spread(outcome: AuditResult) -> float:
    return max((entry.spread for entry in outcome.matrix.entries.values()), default=0.0)


# --- for programs ----------------------------------------------------------------------------------------------------


def files(outcome: AuditResult) -> dict[str, str]:
    """Return the files of an audit: a page, numbers, and a config that `sparsefed run` takes."""
    texts, config = {PAGE: outcome.to_html(), NUMBERS: outcome.to_json()}, recommended(outcome)
    if config is not None:
        said = "\n".join(f"# {sentence}" for sentence in verdict(outcome))
        texts[CONFIG] = f"{said}\n{toml.dumps(configs.dump(config))}"
    return texts


def records(outcome: AuditResult) -> list[dict[str, Any]]:
    """Return a record for each pair of a defense and an attack."""
    return [{key: v for key, v in _entry(outcome, *pair).items() if key != "tried"} for pair in outcome.matrix.entries]


def numbers(outcome: AuditResult) -> dict[str, Any]:
    """Return everything on the page, as numbers."""
    grid = outcome.grid
    asked = grid.asked
    return {
        "format": FORMAT,
        "verdict": verdict(outcome),
        "recommendation": _recommended(outcome),
        "rule": rule(outcome),
        "limits": list(limits(outcome)),
        "asked": {
            "trials": asked.trials,
            "seeds": list(asked.reported),
            "search_seed": asked.search_seed,
            "tolerance": asked.tolerance,
        },
        "calibration": {
            "parameters": outcome.facts.d,
            "norm": outcome.facts.norm,
            "in_rates": outcome.facts.in_rates,
        },
        "defenses": {member.name: {**member.table, "why": member.why} for member in outcome.panel.members},
        "attacks": {foe.name: _foe(outcome, foe.name) for foe in grid.foes.chosen},
        "left_out": {"defenses": dict(outcome.panel.left_out), "attacks": dict(grid.foes.left_out)},
        "matrix": [_entry(outcome, *pair) for pair in outcome.matrix.entries],
        "bytes": {name: {"up": cost.up, "down": cost.down} for name, cost in outcome.costs.items()},
        "certificates": dict(outcome.certificates),
        "timing": _timing(outcome),
        "config": configs.dump(outcome.config),
    }


def _recommended(outcome: AuditResult) -> dict[str, Any] | None:
    best = outcome.recommendation
    if best is None:
        return None
    told = {"defense": best.name, "holds": best.judgement, "worst_attack": best.attack, "harm": best.harm}
    return {**told, "tied": list(best.tied), "reasons": list(reasons(outcome))}


def _foe(outcome: AuditResult, name: str) -> dict[str, Any]:
    several = outcome.grid.variants[name]
    return {**outcome.foe(name).table, "variants": {variant: dict(part) for variant, part in several.items()}}


def _entry(outcome: AuditResult, defense: str, attack: str) -> dict[str, Any]:
    matrix, pair = outcome.matrix, (defense, attack)
    entry = matrix.entries[pair]
    found: dict[str, Any] = {"defense": defense, "attack": attack, "seeds": entry.seeds, "converged": entry.converged}
    found |= {"test_accuracy": entry.test, "attack_accuracy": entry.attack, "spread": entry.spread}
    if attack != NO_ATTACK:
        found |= {"lost": matrix.lost(*pair), "gained": matrix.gained(*pair), "harm": harm(matrix, *pair)}
        found |= {"judgement": judged(matrix, *pair), "variant": outcome.measured.variants[pair]}
        found["tried"] = {name: _briefly(each) for name, each in outcome.measured.tried.get(pair, {}).items()}
    return {key: significant(v, DIGITS) if isinstance(v, float) else v for key, v in found.items()}


def _briefly(metrics: Mapping[str, Any]) -> dict[str, Any]:
    return {key: metrics[key] for key in ("attack_mean", "test_accuracy", "converged") if key in metrics}


def _timing(outcome: AuditResult) -> dict[str, Any]:
    rounds = {name: {"seconds": cost.seconds, "times": cost.times} for name, cost in outcome.costs.items()}
    return {"rounds": rounds, "seconds": outcome.seconds}
