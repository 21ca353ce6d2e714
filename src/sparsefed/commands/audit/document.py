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
from sparsefed.commands.audit.findings import AuditResult, bytes_of, harm, recommended, round_seconds
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
CURVES = {  # captions, by the start of a chart's name
    "test-accuracy": "Each defense under the attack that does it most harm, at the first seed: test accuracy.",
    "attack-accuracy": "The same runs: the share of the attackers' targets on which the model gives their answer.",
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
CERTIFICATES = "By `sparsefed certify`, which says more: what every bound rests on, and tables."
RULE = (
    "Recommended is, of the defenses that without attackers cost at most {tolerance:g} points of test accuracy "
    "against no defense, the one whose worst attack does least harm: those that held against all attacks first, "
    "then those that held in part. Harm is the larger of what attackers gain (attack accuracy beyond the baseline, that "
    "of the same defense without attackers) and what is lost (test accuracy, against the same defense without "
    "attackers), in means over the seeds. Of those whose harm differs by no more than the best one's seeds do (at least "
    "1 point, at most 5), the one that keeps most test accuracy without attackers wins, and within 1 point of that the "
    "simplest: whose server must see least, then whose devices send least."
)
VERDICTS = {  # by judgement of the recommended defense
    "not needed": "No defense is needed against these attacks: {worst}, the undefended model takes {harm} points of "
    "harm.",
    "held": "Use {name}: {worst}, it takes {harm} points of harm and holds.",
    "in part": "Use {name}, but it holds only in part: {worst}, it takes {harm} points of harm.",
    "fell": "None of these defenses holds{but}: the least bad, {name}, takes {harm} points of harm {worst}.",
}
NO_VERDICT = "Nothing can be recommended: not even the model without a defense was measured against every attack."


def document(result: AuditResult) -> doc.Document:
    """Return the whole audit as a document."""
    config, measured = result.config, result.measured
    task = f"{config.model.name} on {config.data.name}, {config.rounds} rounds of {config.train.cohort} devices"
    first = [several[0] for several in measured.records.values()][:1]
    drawn = charts(measured.worst_records) if measured.worst else {}
    varied = tradeoffs(result.varied) if result.varied else {}
    parts = (
        doc.section("Summary", _summary(result), terminal=True),
        doc.section("Recommendation", _recommendation(result), terminal=True),
        doc.section("Pareto front", _pareto(result)),
        doc.section("Curves", _figures(drawn, CURVES)),
        doc.section("Class by class", _classes(result)),
        doc.section("Norms", _figures(drawn, NORMS)),
        doc.section("Attacks", _attacks(result)),
        doc.section("Defenses and what they cost", _costs(result), terminal=True),
        doc.section("What k and L cost and buy", _figures(varied, dict.fromkeys(varied, VARIED))),
        doc.section("Certificate", _certificates(result)),
        doc.section("Who owns what", partitions.portraits(first)),
        doc.section("Configs and versions", _configs(result), again.versions(first)),
        doc.section("How to run it again", _again(result)),
    )
    name = config.name or "audit"
    return doc.Document(f"SparseFed audit: {name}", f"{task}; {who(config)}.", parts, heading=f"Audit of {name}")


def _summary(result: AuditResult) -> Iterator[doc.Block]:
    if result.problem is not None:
        yield doc.paragraph(f"Not all of it could be measured: {result.problem}.", kind="warning", page_only=True)
    yield doc.paragraph(" ".join(verdict(result)), kind="verdict")
    yield from matrix_part([result.matrix])


def _recommendation(result: AuditResult) -> Iterator[doc.Block]:
    yield doc.paragraph(rule(result), page_only=True)
    if sentences := tuple(reasons(result)):
        yield doc.Heading("Why not the others")
        yield doc.Bullets(sentences)
    yield doc.Heading("Limits")
    yield doc.Bullets(tuple(limits(result)), page_only=True)
    if (config := recommended(result)) is not None:
        title = "The recommended defense under the strongest attack found against it: recommended.toml"
        yield from doc.fold(title, doc.Listing(toml.dumps(configs.dump(config))))


def _pareto(result: AuditResult) -> Iterator[doc.Block]:
    if any(attack.targeted for attack in result.attacks.chosen) and (cases := worst_cases(result.matrix)):
        yield doc.Figure("pareto-1", pareto_chart(cases, "What can be had"), PARETO, numbers_table(cases))


def _figures(drawn: Mapping[str, alt.LayerChart], captions: Mapping[str, str]) -> Iterator[doc.Figure]:
    """Yield the charts whose names begin so, each with its caption."""
    for begin, caption in captions.items():
        yield from (doc.Figure(name, chart, caption) for name, chart in drawn.items() if name.startswith(begin))


def _classes(result: AuditResult) -> Iterator[doc.Block]:
    worst = result.measured.worst_records
    unattacked = [several[0] for several in result.measured.unattacked.values()]
    if blocks := list(class_part(worst, compare([*worst, *unattacked]))):
        yield doc.note(BY_CLASS)
        yield from blocks


def _attacks(result: AuditResult) -> Iterator[doc.Block]:
    attacks, measured = result.attacks.chosen, result.measured
    lines = []
    for attack in attacks:
        several = [f"{name}: {parameters(part)}" for name, part in attack.variants.items() if part]
        lines.append((attack.name, parameters(attack.table), "\n".join(several) or "–"))
    yield doc.table("The attacks", ("Attack", "As given", "Variants"), lines, "facts")
    if measured.tried:
        names = [attack.name for attack in attacks]
        body = [(defense, *(_strongest(result, defense, name) for name in names)) for defense in result.matrix.defenses]
        yield doc.table("The strongest variant against each defense", ("Defense", *names), body, "facts")
        yield doc.note(STRONGEST)


def _strongest(result: AuditResult, defense: str, attack: str) -> str:
    variant = result.measured.variants.get((defense, attack))
    if variant is None:
        return "–"
    metrics = result.measured.tried.get((defense, attack), {}).get(variant, {})
    key = "test_accuracy" if metrics.get("attack_mean") is None else "attack_mean"
    return f"{variant} ({key.partition('_')[0]} {percent(metrics.get(key))})"


def _costs(result: AuditResult) -> Iterator[doc.Block]:
    lines = [(each.name, parameters(each.table), each.why) for each in result.defenses.chosen]
    heads = ("Defense", "Parameters", doc.Head("Where they come from", page_only=True))
    yield doc.table("What each defense was run with", heads, lines, "facts")
    formats = {"times": times, "up": traffic, "down": traffic}
    rows = [
        (name, *(doc.TableCell(write(cost[key]), cost[key]) for key, write in formats.items()))
        for name, cost in costs(result).items()
    ]
    heads = ("Defense", "Time of a round", "Bytes up", "Bytes down")
    yield doc.table("What each defense costs without attackers", heads, rows)
    yield doc.note(TIMES)


def costs(result: AuditResult) -> dict[str, dict[str, float | None]]:
    """Return, for each defense that was run without attackers, a round's seconds, times those of none, and bytes."""
    measured = result.measured
    plain = round_seconds(measured, UNDEFENDED)
    table: dict[str, dict[str, float | None]] = {}
    for name in measured.unattacked:
        own, (up, down) = (
            round_seconds(measured, name),
            (bytes_of(measured, name, way) for way in ("upload", "download")),
        )
        ratio = own / plain if own is not None and plain else None
        table[name] = {"seconds": own, "times": ratio, "up": up, "down": down}
    return table


def _certificates(result: AuditResult) -> Iterator[doc.Block]:
    for name, sentence in result.certificates.items():
        yield doc.paragraph(doc.Strong(f"{name}: "), sentence)
    if result.certificates:
        yield doc.note(CERTIFICATES)


def _configs(result: AuditResult) -> Iterator[doc.Block]:
    yield from doc.fold("The audited config", doc.Listing(toml.dumps(configs.dump(result.config))))
    own = {f"Config of {name}, {NO_ATTACK}": several[0] for name, several in result.measured.unattacked.items()}
    folds = (doc.Fold(title, (doc.Listing(toml.dumps(run.config)),)) for title, run in own.items())
    yield from doc.fold("The configs of all defenses", *folds)


def _again(result: AuditResult) -> Iterator[doc.Block]:
    if result.folder is None:
        yield doc.paragraph("The runs were made in a temporary folder and not kept; give a `folder` to keep them.")
    else:
        yield doc.Listing(shlex.join(["sparsefed", *sys.argv[1:]]))
    took = "" if result.seconds is None else f"The runs took {duration(result.seconds)} of one worker's time. "
    kept = "" if result.folder is None else "What is finished is not run again; "
    yield doc.paragraph(f"{took}{kept}the same seeds give the same numbers.")
    if recommended(result) is not None:
        yield doc.paragraph("The recommended defense alone:")
        yield doc.Listing("sparsefed run recommended.toml --twins")


# --- sentences -------------------------------------------------------------------------------------------------------


def verdict(result: AuditResult) -> list[str]:
    """Return two sentences: the recommendation, and what it rests on."""
    best, options = result.recommendation, result.options
    if best is None:
        return [NO_VERDICT]
    kind = "not needed" if best.name == UNDEFENDED and best.holds else best.judgement or "fell"
    worst = f"under the worst of {counted(len(result.attacks.chosen), 'attack')}, {best.attack}"
    but = ""
    for name, cost in list(best.holds_but_costs_more.items())[:1]:
        but = f" and costs at most {options.tolerance:g} points of accuracy ({name} holds for {points(cost)})"
    first = VERDICTS[kind].format(name=best.name, worst=worst, harm=points(best.harm), but=but)
    own, plain = (result.matrix.entries.get((name, NO_ATTACK)) for name in (best.name, UNDEFENDED))
    beside = "" if best.name == UNDEFENDED else f" ({percent(plain and plain.test)} without a defense)"
    tried = (
        f"each against up to {options.trials} variants of each attack" if options.trials > 1 else "each attack as given"
    )
    return [
        first,
        f"Without attackers its test accuracy is {percent(own and own.test)}{beside}; {len(result.defenses.chosen)} "
        f"defenses were compared, {tried}, at {counted(options.seeds, 'seed')}.",
    ]


def reasons(result: AuditResult) -> Iterator[str]:
    """Yield why this defense is recommended, and why not each of the others."""
    best = result.recommendation
    if best is None:
        return
    for name, cost in best.holds_but_costs_more.items():
        yield (
            f"{name} would hold, but costs {points(cost)} points of test accuracy without attackers: with --tolerance "
            f"{math.ceil(100 * cost)} it would be eligible."
        )
    if best.tied:
        yield f"As good, but less simple: {listed(best.tied)}."
    yield from (f"{name} {why}." for name, why in best.passed_over.items() if name not in best.holds_but_costs_more)
    yield from (f"{name} was not tried: {why}." for name, why in result.defenses.left_out.items())


def limits(result: AuditResult) -> Iterator[str]:
    """Yield what the recommendation does not cover."""
    options, attacks, config = result.options, result.attacks, result.config
    task = f"{config.data.name}, {config.model.name}, {config.rounds} rounds"
    yield f"One task ({task}) and one threat model ({who(config)})."
    if options.seeds == 1:
        yield "One seed: a difference of a few points can be chance."
    else:
        spread = max((entry.spread for entry in result.matrix.entries.values()), default=0.0)
        yield f"Means over {options.seeds} seeds, which differ by up to {points(spread)} points."
    if options.trials == 1:
        yield "The attacks are as given; attackers who tune theirs can be stronger: --trials."
    else:
        yield f"At most {options.trials} variants of each attack were tried; `sparsefed tune` searches further."
    if attacks.left_out:
        yield f"Not tried, for the threat model does not grant what they need: {_grouped(attacks.left_out)}."
    if attacks.spare:
        yield f"Not tried, but could be with --attacks: {', '.join(attacks.spare)}."
    yield "The defenses' parameters follow from rules, not from a search; no audit has attacks that are yet unknown."


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
    if threat.per_round is not None:
        attackers = f"{threat.per_round} attackers in every round"
    elif threat.share is not None:
        attackers = f"{100 * threat.share:.3g} % of the devices compromised"
    else:
        attackers = f"{threat.count if threat.ids is None else len(threat.ids)} devices compromised"
    return f"{attackers}, knowing {' and '.join(threat.knowledge) or 'nothing but public facts'}"


def rule(result: AuditResult) -> str:
    """Return the rule of the recommendation, in words."""
    return RULE.format(tolerance=result.options.tolerance)


def parameters(table: Mapping[str, Any]) -> str:
    """Format the parameters of a defense or attack.

    >>> parameters({"name": "krum", "f": 2})
    'f = 2'
    """
    return ", ".join(f"{key} = {value}" for key, value in table.items() if key != "name") or "–"


# --- for programs ----------------------------------------------------------------------------------------------------


def files(result: AuditResult) -> dict[str, str]:
    """Return the files of an audit: a page, numbers, and a config that `sparsefed run` takes."""
    texts, config = {PAGE: result.to_html(), NUMBERS: result.to_json()}, recommended(result)
    if config is not None:
        comments = "".join(f"# {sentence}\n" for sentence in verdict(result))
        texts[CONFIG] = comments + toml.dumps(configs.dump(config))
    return texts


def records(result: AuditResult) -> list[dict[str, Any]]:
    """Return one flat record per pair of defense and attack: accuracies, harm, and whether the defense held."""
    return [_record(result, *pair) for pair in result.matrix.entries]


def _record(result: AuditResult, defense: str, attack: str) -> dict[str, Any]:
    matrix, pair = result.matrix, (defense, attack)
    entry = matrix.entries[pair]
    record: dict[str, Any] = {"defense": defense, "attack": attack, "seeds": entry.seeds, "converged": entry.converged}
    record |= {"test_accuracy": entry.test, "attack_accuracy": entry.attack}
    if attack != NO_ATTACK:
        record |= {"lost": matrix.lost(*pair), "gained": matrix.gained(*pair), "harm": harm(matrix, *pair)}
        record |= {"judgement": judged(matrix, *pair), "variant": result.measured.variants[pair]}
    return record


def numbers(result: AuditResult) -> dict[str, Any]:
    """Return everything on the page, as numbers."""
    options, best, cost = result.options, result.recommendation, costs(result)
    return {
        "format": FORMAT,
        "verdict": verdict(result),
        "recommendation": best
        and {
            "defense": best.name,
            "holds": best.judgement,
            "worst_attack": best.attack,
            "harm": best.harm,
            "tied": list(best.tied),
            "reasons": list(reasons(result)),
        },
        "rule": rule(result),
        "limits": list(limits(result)),
        "asked": {
            "trials": options.trials,
            "seeds": list(options.reported_seeds),
            "search_seed": options.search_seed,
            "tolerance": options.tolerance / 100,
        },
        "calibration": {
            "parameters": result.facts.d,
            "norm": result.facts.norm,
            "in_rates": result.facts.in_rates,
        },
        "defenses": {each.name: {**each.table, "why": each.why} for each in result.defenses.chosen},
        "attacks": {each.name: {**each.table, "variants": each.variants} for each in result.attacks.chosen},
        "left_out": {"defenses": result.defenses.left_out, "attacks": result.attacks.left_out},
        "matrix": [_entry(result, record) for record in records(result)],
        "bytes": {name: {key: own[key] for key in ("up", "down")} for name, own in cost.items()},
        "certificates": result.certificates,
        "timing": {
            "rounds": {name: {key: own[key] for key in ("seconds", "times")} for name, own in cost.items()},
            "seconds": result.seconds,
        },
        "config": configs.dump(result.config),
    }


def _entry(result: AuditResult, record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record with the spread of its seeds and what the search tried, in few digits."""
    pair = record["defense"], record["attack"]
    entry = {**record, "spread": result.matrix.entries[pair].spread}
    if record["attack"] != NO_ATTACK:
        kept = ("attack_mean", "test_accuracy", "converged")
        tried = result.measured.tried.get(pair, {})
        entry["tried"] = {name: {key: own[key] for key in kept if key in own} for name, own in tried.items()}
    return {key: significant(value, DIGITS) if isinstance(value, float) else value for key, value in entry.items()}
