"""The attacks of an audit: the config's own, and others with its goal or with none, as its threat model allows.

Attacks on other goals would answer another question. Attacks that need more knowledge than the threat model grants are
left out and listed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sparsefed import config as configs
from sparsefed.attacks import ATTACKS, NEEDS, Attacker, attack_info
from sparsefed.attacks.goals import untargeted
from sparsefed.commands.audit.options import AuditOptions
from sparsefed.config import Config
from sparsefed.core.errors import ConfigError, unknown
from sparsefed.core.signatures import parameters

AIMED, SPOILERS_BESIDE, SPOILERS = 2, 1, 3  # how many are taken by default besides the config's own


@dataclass(frozen=True)
class AttackSpec:
    """An attack of the audit."""

    name: str
    table: Mapping[str, Any]  # [attack] of a config
    aimed: bool  # whether it has a target


@dataclass(frozen=True)
class AttackSpecs:
    """The chosen attacks, those that lack knowledge (and which), and those that fit but were not chosen."""

    chosen: tuple[AttackSpec, ...]
    left_out: Mapping[str, str] = field(default_factory=dict)
    spare: tuple[str, ...] = ()


def foes(asked: AuditOptions) -> AttackSpecs:
    """Return the attacks of an audit: the config's own first, then the others."""
    config = asked.config
    assert config.attack is not None
    goal = configs.attacker(config.attack).goal
    own = AttackSpec(config.attack.name, {"name": config.attack.name, **config.attack.params}, goal is not untargeted)
    others = [name for name in _fitting(goal) if name != own.name]
    lacking = {name: _lacking(attack_info(ATTACKS[name]), config) for name in others}
    able = [name for name in others if not lacking[name]]
    if asked.attacks:
        _check(asked, others, lacking)
        chosen = [name for name in asked.attacks if name != own.name]
    else:
        chosen = _automatic(able, own.aimed)
    left_out = {name: f"must know {_listed(needs)}" for name, needs in lacking.items() if needs}
    found = (own, *(_foe(name, config) for name in chosen))
    return AttackSpecs(found, left_out, tuple(name for name in able if name not in chosen))


def _fitting(goal: object) -> list[str]:
    """Return the attacks on this goal, then those without one, each group in the order of their `place`."""
    facts = {name: attack_info(attack) for name, attack in ATTACKS.items()}
    fitting = [name for name, info in facts.items() if info.goal in (goal, untargeted)]
    return sorted(fitting, key=lambda name: (facts[name].goal is untargeted, facts[name].place))


def _automatic(able: Iterable[str], aimed: bool) -> list[str]:
    """Return as many attacks of each kind as an audit takes by default."""
    facts = {name: info for name in able if not (info := attack_info(ATTACKS[name])).weaker}
    with_goal = [name for name, info in facts.items() if info.goal is not untargeted] if aimed else []
    spoiling = [name for name, info in facts.items() if info.goal is untargeted]
    return with_goal[:AIMED] + spoiling[: SPOILERS_BESIDE if aimed else SPOILERS]


def _check(asked: AuditOptions, fitting: list[str], lacking: Mapping[str, list[str]]) -> None:
    config = asked.config
    for name in asked.attacks:
        if config.attack is not None and name == config.attack.name:
            continue
        if name not in ATTACKS:
            raise ConfigError(f"--attacks: {unknown('attack', name, [*ATTACKS, 'auto'])}")
        if name not in fitting:
            raise ConfigError(
                f"--attacks: {name} is after something else than this config's attack, which is another audit; put it "
                f"into the config as [attack], or choose from {', '.join(fitting)}"
            )
        if lacking[name]:
            raise ConfigError(
                f"--attacks: {name} must know {_listed(lacking[name])}, which threat.knowledge does not grant; grant "
                "it, or choose an attack that does without"
            )


def _lacking(attacker: Attacker, config: Config) -> list[str]:
    return [need for need in NEEDS if need in attacker.needs and need not in config.threat.knowledge]


def _foe(name: str, config: Config) -> AttackSpec:
    """Return the attack with its own defaults, and the config's goal if it has one."""
    assert config.attack is not None
    info = attack_info(ATTACKS[name])
    goal = {p.name for p in parameters(info.goal, 1)}
    kept = {key: value for key, value in config.attack.params.items() if key in goal}
    return AttackSpec(name, {"name": name, **kept}, info.goal is not untargeted)


def _listed(needs: Iterable[str]) -> str:
    return " and ".join(f"'{need}'" for need in needs)
