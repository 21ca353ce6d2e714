"""An audit in words: the verdict, the reasons, the limits; the same on a terminal, on the page and for programs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from rich.markup import escape
from rich.table import Table

from sparsefed.commands.audit.defense_specs import UNDEFENDED
from sparsefed.commands.audit.findings import AuditResult
from sparsefed.config import Config
from sparsefed.results.matrix import NO_ATTACK, judged
from sparsefed.results.numbers import length, percent, points, times
from sparsefed.results.verdict import listed

RULE = (
    "Recommended is, of the defenses that without attackers cost at most {tolerance} points of test accuracy "
    "against no defense, the one whose worst attack does least harm: those that held against all attacks first, "
    "then those that held in part. Harm is the larger of what attackers gain (attack accuracy beyond what they get "
    "for nothing) and what is lost (test accuracy, against the same defense without attackers), in means over the "
    "seeds. Of those whose harm differs by no more than the best one's seeds do (at least 1 point, at most 5), the "
    "one that keeps most test accuracy without attackers wins, and within 1 point of that the simplest: whose "
    "server must see least, then whose devices send least."
)
STYLES = {"held": "green", "in part": "yellow", "fell": "red"}


def verdict(outcome: AuditResult) -> list[str]:
    """Two sentences: what is recommended, and what that rests on."""
    best = outcome.recommendation
    if best is None:
        return ["Nothing can be recommended: not even the model without a defense was measured against every attack."]
    told, attack, many = points(best.harm), best.attack, len(outcome.panel.members)
    worst = f"under the worst of {_count(len(outcome.grid.foes.chosen), 'attack')}, {attack}"
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
    return f"{tried}, at {_count(asked.seeds, 'seed')}"


def reasons(outcome: AuditResult) -> Iterator[str]:
    """Why this one, and why not each of the others."""
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
    """What the recommendation does not cover."""
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
    """Names by their reason.

    >>> _grouped({"a": "must know x", "b": "must know y", "c": "must know x"})
    'a and c must know x; b must know y'
    """
    by = {why: [name for name, other in left_out.items() if other == why] for why in left_out.values()}
    return "; ".join(f"{listed(names)} {why}" for why, names in by.items())


def who(config: Config) -> str:
    """The threat model in a few words."""
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
    """By what the recommendation was made."""
    return RULE.format(tolerance=f"{100 * outcome.grid.asked.tolerance:g}")


def parameters(table: Any) -> str:
    """Parameters of a defense or attack for a person.

    >>> parameters({"name": "krum", "f": 2})
    'f = 2'
    """
    return ", ".join(f"{key} = {value}" for key, value in table.items() if key != "name") or "–"


def _spread(outcome: AuditResult) -> float:
    return max((entry.spread for entry in outcome.matrix.entries.values()), default=0.0)


def _count(n: int, what: str) -> str:
    return f"{n} {what}{'s' * (n != 1)}"


# --- on a terminal ---------------------------------------------------------------------------------------------------


def tables(outcome: AuditResult) -> list[Table]:
    """The matrix, then what each defense costs."""
    return [matrix_table(outcome), cost_table(outcome)]


def matrix_table(outcome: AuditResult) -> Table:
    """Attack accuracy and test accuracy of every pair; a colour says whether the defense held."""
    matrix = outcome.matrix
    table = Table(title="Every defense under every attack", title_justify="left", caption_justify="left")
    table.add_column("defense", overflow="fold")
    for attack in matrix.attacks:
        table.add_column(escape(attack), justify="right", overflow="fold")
    for defense in matrix.defenses:
        table.add_row(escape(defense), *(_cell(outcome, defense, attack) for attack in matrix.attacks))
    table.caption = "test accuracy, below it attack accuracy; green: held, yellow: held in part, red: fell"
    return table


def _cell(outcome: AuditResult, defense: str, attack: str) -> str:
    entry = outcome.matrix.entries.get((defense, attack))
    if entry is None:
        return "–"
    said = percent(entry.test) + ("" if entry.converged else " DNC")
    under = "" if entry.attack is None else f"\n{percent(entry.attack)}"
    judgement = None if attack == NO_ATTACK else judged(outcome.matrix, defense, attack)
    style = STYLES.get(judgement or "", "")
    return f"[{style}]{said}{under}[/]" if style else f"{said}{under}"


def cost_table(outcome: AuditResult) -> Table:
    """Parameters, time and bytes of every defense."""
    table = Table(title="What each defense costs", title_justify="left", caption_justify="left")
    table.add_column("defense", overflow="fold")
    table.add_column("parameters", overflow="fold")
    for heading in ("time of\na round", "bytes up", "bytes down"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, cells in cost_rows(outcome):
        table.add_row(escape(name), *map(escape, cells))
    table.caption = (
        "time: of a whole round over that without a defense; measured while other runs were at work, so roughly"
    )
    return table


def cost_rows(outcome: AuditResult) -> Iterator[tuple[str, tuple[str, str, str, str]]]:
    """The same as text."""
    for name, cost in outcome.costs.items():
        told = (times(cost.times), bytes_(cost.up), bytes_(cost.down))
        yield name, (parameters(outcome.member(name).table), *told)


def bytes_(value: float | None) -> str:
    """A number of bytes for a person.

    >>> bytes_(381464.0), bytes_(None)
    ('381 kB', '–')
    """
    if value is None:
        return "–"
    return f"{value:.0f} B" if value < 1000 else f"{value / 1e3:.3g} kB" if value < 1e6 else f"{length(value / 1e6)} MB"
