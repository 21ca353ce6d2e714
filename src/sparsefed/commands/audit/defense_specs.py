"""The defenses of an audit, and their parameters by rules that do not look at any result of an attack.

    f         expected attackers in a round, rounded up; at most what the rule is defined for
    clip_norm L, twice the median length of honest updates without attackers or defense: an attacker may weigh as much
              as two of them, and few of them are cut (at the median itself, half are). In FedAvg mode updates hold the
              learning rate, so that is twice the median of length / rate, and the server clips to L times the round's
              rate (`clip = "adaptive"`): a fixed L would leave attackers ever more room as the rate falls
    radius    of centered clipping: the median length of honest updates
    k         as `choose-k` chooses it by default: the smallest with which top-k loses at most half of the l1 mass of
              what it is given, at the first model and after some rounds (the promise of the paper's algorithm
              "Selecting k"). What half and twice as much would do is measured

A rule with a required parameter that is none of these is left out, and so is one that needs examples of the server's
own, unless the config provides some (`data.root`) or the rule is named.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sparsefed import config as configs
from sparsefed.commands.audit.options import ALL, AuditOptions
from sparsefed.commands.choose_k import ChooseKResult
from sparsefed.config import Config
from sparsefed.core.errors import ConfigError, unknown
from sparsefed.core.signatures import parameters
from sparsefed.defenses import DEFENSES, rule_info
from sparsefed.results.numbers import significant

UNDEFENDED = "undefended"
ROOM = 2  # L in median lengths


@dataclass(frozen=True)
class Facts:
    """The facts that the parameters follow from, measured without attackers and without a defense."""

    d: int  # parameters of the model
    norm: float  # median l2 norm of honest updates
    in_rates: float  # the same in the unit of L: in FedAvg mode divided by the round's learning rate
    choices: Mapping[str, ChooseKResult] = field(default_factory=dict)  # of k, by rule


@dataclass(frozen=True)
class DefenseSpec:
    """A defense of the audit."""

    name: str  # as shown in tables
    table: Mapping[str, Any]  # [defense] of a config
    why: str  # where its parameters come from


@dataclass(frozen=True)
class DefenseSpecs:
    """The defenses that are compared, and those that are not with the reason."""

    chosen: tuple[DefenseSpec, ...]
    left_out: Mapping[str, str]


BASELINE = DefenseSpec(UNDEFENDED, {"name": UNDEFENDED}, "no parameters")


def expected(config: Config) -> int:
    """Return f, the expected number of attackers in a round, rounded up.

    >>> from sparsefed.config import parse
    >>> task = {"data": {"devices": 1000}, "train": {"cohort": 50}, "attack": {"name": "pgd"}}
    >>> [expected(parse({**task, "threat": who})) for who in ({"share": 0.05}, {"count": 20}, {"per_round": 7})]
    [3, 1, 7]
    """
    threat, cohort = config.threat, config.train.cohort
    if threat.per_round is not None:
        return threat.per_round
    if threat.share is not None:
        return math.ceil(threat.share * cohort - 1e-9)
    compromised = len(threat.ids) if threat.ids is not None else threat.count or 0
    devices = config.data.devices
    return min(compromised, cohort) if devices is None else math.ceil(compromised * cohort / devices - 1e-9)


def defense_specs(options: AuditOptions, facts: Facts) -> DefenseSpecs:
    """Return the requested defenses, `undefended` first and the config's own last."""
    config, names = options.config, options.defense_names
    named = names not in ((), (ALL,))
    rooted = named or config.data.root is not None
    names = names if named else _usual(rooted) if names == () else tuple(DEFENSES)
    specs, left_out = [BASELINE], {}
    for name in names:
        if name not in DEFENSES and ":" not in name:
            others = ', or one of your own as "module:function"'
            raise ConfigError(f"--defenses: {unknown('defense', name, [*DEFENSES, ALL])}{others}")
        if DEFENSES.get(name) is DEFENSES[UNDEFENDED]:  # under either of its names
            continue
        reason = _refused(name, config, rooted)
        if reason and named:
            raise ConfigError(f"--defenses: {name} cannot be audited: {reason}")
        if reason:
            left_out[name] = reason
        else:
            specs.append(derived(name, config, facts))
    own, usual = {"name": config.defense.name, **config.defense.params}, configs.rule(config.defense.name).usual
    if not any({**usual, **own} == {**usual, **spec.table} for spec in specs):
        specs.append(DefenseSpec(f"{config.defense.name}, yours", own, "as the config has it"))
    return DefenseSpecs(tuple(specs), left_out)


def by_rule(options: AuditOptions, specs: DefenseSpecs) -> DefenseSpecs:
    """Return the defenses that are compared: all, or, if a defense is only tuned, none and the config's own."""
    if not options.tune_only:
        return specs
    own = [spec for spec in specs.chosen if spec.name == UNDEFENDED or spec.name not in DEFENSES]
    return DefenseSpecs(tuple(own), {})


def _usual(rooted: bool) -> tuple[str, ...]:
    """Return the rules registered for audits, then those that need root examples if the server has some."""
    infos = {name: rule_info(rule) for name, rule in DEFENSES.items()}
    usual = [name for name, info in infos.items() if info.audit]
    return (*usual, *(name for name, info in infos.items() if rooted and "root" in info.needs and not info.audit))


def _refused(name: str, config: Config, rooted: bool) -> str:
    """Return why a rule cannot be audited; '' if it can."""
    rule, n = configs.rule(name), smallest_cohort(config)
    required = [p.name for p in parameters(rule.builder) if p.required]
    if underived := [key for key in required if key not in ("f", "k", "radius")]:
        return f"no rule derives its {' and '.join(underived)}; put it into the config as [defense]"
    if config.train.weights is not None and not configs.takes_weights(name):
        return "it has no weighted form, and the config has train.weights"
    if "root" in rule.needs and not rooted:
        return "the server would need clean examples of its own; grant them with data.root, or name it"
    if "f" in required and min(expected(config), rule.largest_f(n)) < 1:
        return f"it is not defined for an attacker among {n} updates"
    return ""


def smallest_cohort(config: Config) -> int:
    devices, cohort = config.data.devices, config.train.cohort
    rest = devices % cohort if devices is not None and config.train.sampling == "epoch" else 0
    return rest or cohort


def derived(name: str, config: Config, facts: Facts) -> DefenseSpec:
    """Return a rule with the parameters that follow from the task."""
    rule, fedavg = configs.rule(name), config.train.mode == "fedavg"
    required = {p.name for p in parameters(rule.builder) if p.required}
    given: dict[str, Any] = {}
    why = []
    if "k" in required:
        chosen = facts.choices.get(name, facts.choices.get("sparsefed"))
        given["k"] = "1%" if chosen is None else chosen.answer
        rule_of_k = "the smallest that loses at most half of the l1 mass" if chosen else "1 %, for none could be chosen"
        why.append(f"k is {rule_of_k} (of {facts.d:,} coordinates)")
    if "f" in required:
        f, most = expected(config), rule.largest_f(smallest_cohort(config))
        given["f"] = min(f, most)
        why.append(f"f is what a round expects{f' ({f}), cut to what the rule is defined for' if f > most else ''}")
    if "radius" in required:
        given["radius"] = significant(facts.norm)
        why.append("the radius is the median length of honest updates")
    if "clip_norm" in rule.usual:
        given["clip_norm"] = significant(ROOM * facts.in_rates)
        given |= {"clip": "adaptive"} if fedavg else {}
        per_rate = ", divided by the learning rate and enforced times it" if fedavg else ""
        why.append(f"clip_norm is twice the median length of honest updates{per_rate}")
    return DefenseSpec(name, {"name": name, **given}, "; ".join(why) or "as published, its defaults")
