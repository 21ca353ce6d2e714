"""An audit for programs. `timing` alone differs from one machine or moment to the next."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sparsefed import config as configs
from sparsefed.commands.audit.findings import AuditResult, harm
from sparsefed.commands.audit.text import limits, reasons, rule, verdict
from sparsefed.results.matrix import NO_ATTACK, judged
from sparsefed.results.numbers import significant

FORMAT = 1
DIGITS = 6


def as_json(outcome: AuditResult) -> dict[str, Any]:
    """Everything that the page tells, as numbers."""
    grid = outcome.grid
    asked = grid.asked
    return {
        "format": FORMAT,
        "verdict": verdict(outcome),
        "recommendation": _recommendation(outcome),
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


def _recommendation(outcome: AuditResult) -> dict[str, Any] | None:
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
