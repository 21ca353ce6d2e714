"""An audit as a document: verdict and matrix first, then their evidence; and everything as JSON for programs.

In the JSON only `timing` differs between machines or runs.
"""

from __future__ import annotations

import math
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from sparsefed import config as configs
from sparsefed import trust
from sparsefed.commands.audit.defense_specs import UNDEFENDED, Facts
from sparsefed.commands.audit.findings import AuditResult, costs, harm, recommended
from sparsefed.commands.audit.options import threat_in_words
from sparsefed.commands.audit.suite_document import beside_the_matrix, suite_numbers
from sparsefed.commands.audit.tuning_document import tuning, tuning_numbers
from sparsefed.commands.choose_k.document import alternatives, details
from sparsefed.core import toml
from sparsefed.core.types import RunRecord
from sparsefed.reports import document as doc
from sparsefed.reports import partitions
from sparsefed.reports import reproduction as again
from sparsefed.reports.heat import class_part, matrix_part
from sparsefed.reports.pareto import fronts
from sparsefed.reports.run_charts import charts
from sparsefed.reports.run_report import figures
from sparsefed.reports.tradeoff import tradeoffs
from sparsefed.results.matrix import NO_ATTACK, Entry, judged
from sparsefed.results.numbers import duration, percent, plain, points, significant, times, traffic
from sparsefed.results.twins import compare
from sparsefed.results.verdict import counted, listed
from sparsefed.sweeps.plan import STRONGEST

PAGE, NUMBERS, CONFIG = "audit.html", "audit.json", "recommended.toml"
FORMAT, DIGITS = 1, 6  # of the JSON
WORST = "Each defense under the attack that does it most harm, at the first seed."
WORST_SEEDS = "Each defense under the attack that does it most harm, at all reported seeds."
VARIED = "One seed. Up to four times more and less than what the rule gave; everything else stays as it was."
TIMES = (
    "Time is that of a whole round, training included, over a round without a defense (the tenth part of the rounds "
    "that were fastest, unattacked): other runs were at work on the same machine, so take it roughly. Bytes are of one "
    "device in one round."
)
RULE = (
    "Recommended is, of the defenses that without attackers cost at most {tolerance:g} points of test accuracy "
    "against no defense, the one whose worst attack does least harm: those that held against all attacks first, "
    "then those that held in part. Harm is the larger of what attackers gain (attack accuracy beyond the baseline) and "
    "what is lost (test accuracy), both against the same defense without attackers and in means over the seeds. Of "
    "those whose harm differs by no more than the best one's seeds do (at least 1 point, at most 5), the one keeping "
    "most test accuracy without attackers wins, and within 1 point of that the simplest: whose server must see least, "
    "then whose devices send least."
)
VERDICTS = {  # by judgement of the recommended defense
    "not needed": "No defense is needed against these attacks: {worst}, {harm} without one.",
    "held": "Use {name}: {worst}, {harm}, so it holds.",
    "in part": "Use {name}, but it holds only in part: {worst}, {harm}.",
    "fell": "None of these defenses holds{but}: with the least bad, {name}, {harm} {worst}.",
}


def document(result: AuditResult) -> doc.Document:
    """Return the whole audit as a document."""
    config = result.config
    name, task = config.name or "audit", f"{config.model.name} on {config.data.name}, {config.rounds} rounds"
    lead = f"{task} of {config.train.cohort} devices; {threat_in_words(config)}."
    worst = [result.runs[pair][0] for pair in result.worst.items()]
    drawn, unattacked = charts(worst) if worst else {}, list(result.unattacked.values())
    seeds = [run for pair in result.worst.items() for run in result.runs[pair]]
    curves = charts(seeds) if len(seeds) > len(worst) else drawn
    parts = (
        doc.section("Summary", _summary(result), terminal=True),
        doc.section("Recommendation", _recommendation(result), terminal=True),
        doc.section("The tuned defense", tuning(result), terminal=True),
        doc.section("Pareto front", _pareto(result)),
        doc.section("Curves", _under(WORST if curves is drawn else WORST_SEEDS, figures("Curves", curves, seeds))),
        doc.section("Class by class", _under(WORST, class_part(worst, compare([*worst, *unattacked])))),
        doc.section("Norms", _under(WORST, figures("Norms", drawn, worst))),
        doc.section("Beside the matrix", beside_the_matrix(result), terminal=True),
        doc.section("Attacks", _attacks(result)),
        doc.section("Defenses and what they cost", _costs(result), terminal=True),
        doc.section("What k and clip_norm cost and buy", _sensitivity(result.varied)),
        doc.section("Certificate", _certificates(result)),
        doc.section("Who owns what", partitions.portraits(unattacked[:1])),
        doc.section("Configs and versions", _configs(result, unattacked), again.versions(unattacked[:1])),
        doc.section("How to run it again", _again(result)),
    )
    return doc.Document(f"SparseFed audit: {name}", lead, parts, heading=f"Audit of {name}")


def _under(note: str, blocks: Iterable[doc.Block]) -> list[doc.Block]:
    """Return the blocks below a note; nothing if there are none."""
    below = list(blocks)
    return [doc.note(note), *below] if below else []


def _summary(result: AuditResult) -> Iterator[doc.Block]:
    if result.problem is not None:
        yield doc.paragraph(f"Not all of it could be measured: {result.problem}.", kind="warning", page_only=True)
    yield doc.paragraph(" ".join(verdict(result)), kind="verdict")
    yield from matrix_part([result.matrix])


def _recommendation(result: AuditResult) -> Iterator[doc.Block]:
    yield doc.paragraph(RULE.format(tolerance=result.options.tolerance), page_only=True)
    if sentences := tuple(reasons(result)):
        yield doc.Heading("Why not the others")
        yield doc.Bullets(sentences)
    yield doc.Heading("Limits")
    yield doc.Bullets(tuple(limits(result)), page_only=True)
    if (config := recommended(result)) is not None:
        title = "The recommended defense under the strongest attack found against it: recommended.toml"
        yield from doc.fold(title, doc.Listing(toml.dumps(configs.dump(config))))


def _pareto(result: AuditResult) -> Iterator[doc.Block]:
    if any(attack.targeted for attack in result.attacks.chosen):
        drawn = {f"pareto-{i}": chart for i, chart in enumerate(fronts([result.matrix]), start=1)}
        yield from figures("Pareto front", drawn, (), [result.matrix])


def _sensitivity(varied: Sequence[RunRecord]) -> list[doc.Block]:
    drawn = tradeoffs(varied) if varied else {}
    return _under(VARIED, figures("What k and clip_norm cost and buy", drawn, varied))


def _attacks(result: AuditResult) -> Iterator[doc.Block]:
    attacks = result.attacks.chosen
    variants = ([f"{name}: {_parameters(part)}" for name, part in each.variants.items() if part] for each in attacks)
    rows = [
        (each.name, _parameters(each.table), "\n".join(own) or "–") for each, own in zip(attacks, variants, strict=True)
    ]
    yield doc.table("The attacks", ("Attack", "As given", "Variants"), rows, "facts")
    if result.tried:
        names = [attack.name for attack in attacks]
        body = [
            (defense, *(_strongest(result, (defense, name)) for name in names)) for defense in result.matrix.defenses
        ]
        yield doc.table("The strongest variant against each defense", ("Defense", *names), body, "facts")
        yield doc.note(STRONGEST)


def _strongest(result: AuditResult, pair: tuple[str, str]) -> str:
    if pair not in result.variants:
        return "–"
    metrics = result.tried.get(pair, {}).get(result.variants[pair], {})
    share = metrics.get("attack_mean")
    measured = f"test {percent(metrics.get('test_accuracy'))}" if share is None else f"attack {percent(share)}"
    return f"{result.variants[pair]} ({measured})"


def _parameters(table: Mapping[str, Any]) -> str:
    """Format the parameters of a defense or attack.

    >>> _parameters({"name": "krum", "f": 2})
    'f = 2'
    """
    return ", ".join(f"{key} = {value}" for key, value in table.items() if key != "name") or "–"


def _costs(result: AuditResult) -> Iterator[doc.Block]:
    lines = [(each.name, _parameters(each.table), each.why) for each in result.defenses.chosen]
    given = ("Defense", "Parameters", doc.Head("Where they come from", page_only=True))
    yield doc.table("What each defense was run with", given, lines, "facts")
    for name, choice in result.facts.choices.items():
        yield from doc.fold(f"Which k? {name}, and other rules", alternatives(choice), *map(doc.note, details(choice)))
    formats: dict[str, Callable[[float | None], str]] = {"times": times, "up": traffic, "down": traffic}
    rows = (
        (name, *(doc.TableCell(write(cost[key]), cost[key]) for key, write in formats.items()))
        for name, cost in costs(result).items()
    )
    heads = ("Defense", "Time of a round", "Bytes up", "Bytes down")
    yield doc.table("What each defense costs without attackers", heads, rows)
    yield doc.note(TIMES)


def _certificates(result: AuditResult) -> Iterator[doc.Block]:
    for name, sentence in result.certificates.items():
        yield doc.paragraph(doc.Strong(f"{name}: "), sentence)
    if result.certificates:
        yield doc.note("By sparsefed certify, which says more: what every bound rests on, and tables.")


def _configs(result: AuditResult, unattacked: Sequence[RunRecord]) -> Iterator[doc.Block]:
    yield from doc.fold("The audited config", doc.Listing(toml.dumps(configs.dump(result.config))))
    yield from doc.fold("The configs of all defenses", *again.configs(unattacked))


def _again(result: AuditResult) -> Iterator[doc.Block]:
    kept = "The runs were made in a temporary folder and not kept; audit(..., folder=...) keeps them. "
    if result.folder is not None:
        kept = "What is finished is not run again. "
        yield doc.Listing(shlex.join(["sparsefed", *sys.argv[1:]]))
    took = "" if result.seconds is None else f"The runs took {duration(result.seconds)} of one worker's time. "
    yield doc.paragraph(f"{took}{kept}The same seeds give the same numbers.")
    if recommended(result) is not None:
        yield doc.paragraph("The recommended defense alone:")
        yield doc.Listing("sparsefed run recommended.toml --twins")


# --- sentences -------------------------------------------------------------------------------------------------------


def verdict(result: AuditResult) -> list[str]:
    """Return two sentences: the recommendation, and what it rests on."""
    best, options = result.recommendation, result.options
    if best is None:
        return ["Nothing can be recommended: not even the model without a defense was measured against every attack."]
    kind = "not needed" if best.name == UNDEFENDED and best.holds else best.judgement or "fell"
    worst = f"under the worst of {counted(len(result.attacks.chosen), 'attack')}, {best.attack}"
    but = ""
    for name, cost in [*best.holds_but_costs_more.items()][:1]:
        but = f" and costs at most {options.tolerance:g} points of accuracy ({name} holds for {points(cost)})"
    clean = {name: entry for (name, attack), entry in result.matrix.entries.items() if attack == NO_ATTACK}
    own, bare = clean.get(best.name, Entry(())), clean.get(UNDEFENDED, Entry(()))
    error = "" if own.error is None else f", and it is off by {plain(own.error)} on average"
    beside = "" if best.name == UNDEFENDED else f" ({percent(bare.test)} without a defense)"
    against = f" against suite {options.suite}, {threat_in_words(result.config)}" if options.suite else ""
    variants = "each attack as given"
    if options.trials > 1:
        variants = f"each against up to {options.trials} variants of each attack"
    return [
        VERDICTS[kind].format(name=best.name, worst=worst, harm=harm_in_words(result, best.name, best.attack), but=but),
        f"Without attackers its test accuracy is {percent(own.test)}{beside}{error}; "
        f"{len(result.defenses.chosen)} defenses were compared{against}, {variants}, at "
        f"{counted(options.seeds, 'seed')}.",
    ]


def harm_in_words(result: AuditResult, defense: str, attack: str) -> str:
    """Describe the larger of what attackers gain and what is lost, in its own unit."""
    matrix = result.matrix
    entry = matrix.entries.get((defense, attack))
    if entry is None or not entry.converged:
        return "the model learns nothing"
    gained, lost = (max(0.0, each(defense, attack) or 0.0) for each in (matrix.gained, matrix.lost))
    if gained >= lost:
        return f"attackers gain {points(gained)} points of attack accuracy"
    return f"{points(lost)} points of test accuracy are lost"


def reasons(result: AuditResult) -> Iterator[str]:
    """Yield why this defense is recommended, and why not each of the others."""
    best = result.recommendation
    if best is None:
        return
    for name, cost in best.holds_but_costs_more.items():
        needed = f"with --tolerance {math.ceil(100 * cost)} it would be eligible"
        yield f"{name} would hold, but costs {points(cost)} points of test accuracy without attackers: {needed}."
    if best.tied:
        yield f"As good, but less simple: {listed(best.tied)}."
    yield from (f"{name} {why}." for name, why in best.passed_over.items() if name not in best.holds_but_costs_more)
    yield from (f"{name} was not tried: {why}." for name, why in result.defenses.left_out.items())


def limits(result: AuditResult) -> Iterator[str]:
    """Yield what the recommendation does not cover."""
    options, attacks, config = result.options, result.attacks, result.config
    task = f"{config.data.name}, {config.model.name}, {config.rounds} rounds"
    yield f"One task ({task}) and one threat model ({threat_in_words(config)})."
    if options.seeds == 1:
        yield "One seed: a difference of a few points can be chance."
    else:
        spread = max((entry.spread for entry in result.matrix.entries.values()), default=0.0)
        yield f"Means over {options.seeds} seeds, which differ by up to {points(spread)} points."
    if options.trials == 1:
        yield "The attacks are as given; attackers who tune theirs can be stronger: --trials."
    else:
        yield f"At most {options.trials} variants of each attack were tried; sparsefed tune searches further."
    if by_reason := {
        why: [name for name, own in attacks.left_out.items() if own == why] for why in attacks.left_out.values()
    }:
        lacking = "; ".join(f"{listed(names)} {why}" for why, names in by_reason.items())
        yield f"Not tried, for the threat model does not grant what they need: {lacking}."
    if attacks.spare:
        yield f"Not tried, but could be with --attacks: {', '.join(attacks.spare)}."
    searched = "but for the tuned one's, which were searched at a seed that is not reported" if result.tuned else ""
    yield f"The defenses' parameters follow from rules, {searched or 'not from a search'}."
    yield "No audit has attacks that are yet unknown."


# --- for programs ----------------------------------------------------------------------------------------------------


def files(result: AuditResult) -> dict[str, str | None]:
    """Return the files of an audit: a page, numbers, and, if a defense held, a config that `sparsefed run` takes."""
    texts: dict[str, str | None] = {PAGE: result.to_html(), NUMBERS: result.to_json(), CONFIG: None}
    config = recommended(result)
    if config is not None:
        comments = "".join(f"# {sentence}\n" for sentence in doc.scored_by(verdict(result), result.score))
        trust.remember(configs.dump(config))
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
    if entry.error is not None:
        record |= {"mean_absolute_error": entry.error}
    if attack != NO_ATTACK:
        record |= {"lost": matrix.lost(*pair), "gained": matrix.gained(*pair), "harm": harm(matrix, *pair)}
        record |= {"judgement": judged(matrix, *pair), "variant": result.variants[pair]}
    return record


def numbers(result: AuditResult) -> dict[str, Any]:
    """Return everything on the page, as numbers."""
    options, facts, cost = result.options, result.facts, costs(result)
    seeds = {"seeds": list(options.reported_seeds), "search_seed": options.search_seed}
    return {
        "format": FORMAT,
        "verdict": verdict(result),
        "recommendation": _recommended(result),
        "rule": RULE.format(tolerance=options.tolerance),
        "limits": list(limits(result)),
        "asked": {"trials": options.trials, **seeds, "tolerance": options.tolerance / 100},
        "calibration": {"parameters": facts.d, "norm": facts.norm, "in_rates": facts.in_rates, "k": _ks(facts)},
        "defenses": {each.name: {**each.table, "why": each.why} for each in result.defenses.chosen},
        "attacks": {each.name: {**each.table, "variants": each.variants} for each in result.attacks.chosen},
        "left_out": {"defenses": result.defenses.left_out, "attacks": result.attacks.left_out},
        "matrix": [_entry(result, record) for record in records(result)],
        "bytes": {name: {key: own[key] for key in ("up", "down")} for name, own in cost.items()},
        "tuned": tuning_numbers(result),
        "suite": suite_numbers(result),
        "certificates": result.certificates,
        "timing": {
            "rounds": {name: {key: own[key] for key in ("seconds", "times")} for name, own in cost.items()},
            "seconds": result.seconds,
        },
        "config": configs.dump(result.config),
    }


def _ks(facts: Facts) -> dict[str, dict[str, int]]:
    return {name: {"k": each.answer, "paper_k": each.paper_k} for name, each in facts.choices.items()}


def _recommended(result: AuditResult) -> dict[str, Any] | None:
    best = result.recommendation
    if best is None:
        return None
    worst = {"holds": best.judgement, "worst_attack": best.attack, "harm": best.harm}
    return {"defense": best.name, **worst, "tied": list(best.tied), "reasons": list(reasons(result))}


def _entry(result: AuditResult, record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record with the spread of its seeds and what the search tried, in few digits."""
    pair = record["defense"], record["attack"]
    entry = {**record, "spread": result.matrix.entries[pair].spread}
    if record["attack"] != NO_ATTACK:
        kept = ("attack_mean", "test_accuracy", "converged")
        tried = result.tried.get(pair, {})
        entry["tried"] = {name: {key: own[key] for key in kept if key in own} for name, own in tried.items()}
    return {key: significant(value, DIGITS) if isinstance(value, float) else value for key, value in entry.items()}
