"""The attacks of an audit: the config's own, and others with its goal or with none, as its threat model allows.

Attacks on other goals would answer another question. Attacks that need more knowledge than the threat model grants are
left out and listed.

Every defense meets the same variants of an attack: as given first, then points spread evenly over the ranges that
`tune` searches. The points are the Kronecker sequence of the powers of 1/g, g the root of g^(n+1) = g + 1 (n = 1: the
golden ratio), from a start drawn by the seed: however many the points, none lie close together, which matters in a
search as short as an audit's. Only numbers are varied; choices stay as given.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sparsefed import config as configs
from sparsefed import data
from sparsefed.attacks import ATTACKS, NEEDS, Attacker, attack_info
from sparsefed.attacks.goals import untargeted
from sparsefed.commands.audit.options import AuditOptions
from sparsefed.commands.audit.suite import suite_attacks
from sparsefed.commands.tune.space import Range, Searched, Space, search_space
from sparsefed.config import Config, Named
from sparsefed.core.errors import ConfigError, unknown
from sparsefed.core.rng import rng
from sparsefed.core.signatures import parameters
from sparsefed.results.numbers import significant

TARGETED, UNTARGETED_BESIDE, UNTARGETED = 2, 1, 3  # how many are taken by default besides the config's own
GIVEN = "as given"
DIGITS = 3  # of a varied parameter

Variants = Mapping[str, Mapping[str, Any]]  # by name, as parts of [attack]


@dataclass(frozen=True)
class AttackSpec:
    """An attack of the audit."""

    name: str
    table: Mapping[str, Any]  # [attack] of a config
    targeted: bool
    variants: Variants
    other_goal: bool = False  # than the config's attack: it has a baseline of its own

    def variant(self, name: str) -> dict[str, Any]:
        """Return the [attack] table of a variant."""
        return {**self.table, **self.variants[name]}


@dataclass(frozen=True)
class AttackSpecs:
    """The chosen attacks, those that lack knowledge (and which), and those that fit but were not chosen."""

    chosen: tuple[AttackSpec, ...]
    left_out: Mapping[str, str]
    spare: tuple[str, ...]


def attack_specs(options: AuditOptions) -> AttackSpecs:
    """Return the attacks of an audit: the config's own first, then the others."""
    config, own = options.config, options.config.attack
    assert own is not None  # checked by AuditOptions
    if options.suite:
        tables, unfit = suite_attacks(options.suite, config)
        return AttackSpecs(tuple(_spec(table, options) for table in tables), unfit, ())
    others = _fitting(own, _kind(config), [name for name in options.attack_names if ":" in name])
    lacking = {name: _lacking(info, config) for name, info in others.items()}
    able = [name for name in others if not lacking[name]]
    names = [name for name in options.attack_names if name != own.name]
    for name in names:
        _check(name, lacking)
    if not options.attack_names:
        names = _usual({name: others[name] for name in able}, configs.attacker(own).goal is not untargeted)
    tables = [{"name": own.name} | own.params]
    for name in names:  # with its own defaults, and the config's goal if it has one
        goal = {p.name for p in parameters(others[name].goal, 1)}
        tables.append({"name": name} | {key: value for key, value in own.params.items() if key in goal})
    left_out = {name: f"must know {needs}" for name, needs in lacking.items() if needs}
    spare = tuple(name for name in able if name not in names)
    return AttackSpecs(tuple(_spec(table, options) for table in tables), left_out, spare)


def spare_specs(options: AuditOptions, specs: AttackSpecs) -> tuple[AttackSpec, ...]:
    """Return the attacks that would fit but were not chosen."""
    if options.suite or not specs.spare:
        return ()
    return attack_specs(replace(options, attacks=specs.spare)).chosen[1:]


def _spec(table: Mapping[str, Any], options: AuditOptions) -> AttackSpec:
    info = configs.attacker(Named(**table))
    several = variants(options.config, table, options.trials, options.search_seed)
    assert options.config.attack is not None
    other = info.goal not in (untargeted, configs.attacker(options.config.attack).goal)
    return AttackSpec(table["name"], table, info.goal is not untargeted, several, other)


def _kind(config: Config) -> str | None:
    """Return the kind of the targets of the user's own data; None for listed data, which have classes or tokens."""
    return data.load(configs.dataset(config)).target_kind if ":" in config.data.name else None


def _fitting(own: Named, kind: str | None, users: Sequence[str]) -> dict[str, Attacker]:
    """Return the other attacks on the config's goal, then those without one, each group in the order of `place`."""
    goals = (configs.attacker(own).goal, untargeted)
    infos = {name: attack_info(attack) for name, attack in ATTACKS.items()}
    infos |= {name: configs.attacker(Named(name=name)) for name in users}
    infos.pop(own.name, None)
    fitting = [name for name, info in infos.items() if info.goal in goals and (kind is None or info.fits(kind))]
    fitting.sort(key=lambda name: (infos[name].goal is untargeted, infos[name].place))
    return {name: infos[name] for name in fitting}


def _usual(able: Mapping[str, Attacker], beside_targeted: bool) -> list[str]:
    """Return as many attacks of each kind as an audit takes by default."""
    strong = {name: info for name, info in able.items() if not info.weaker}
    targeted = [name for name, info in strong.items() if info.goal is not untargeted]
    others = [name for name in strong if name not in targeted]
    return targeted[:TARGETED] + others[: UNTARGETED_BESIDE if beside_targeted else UNTARGETED]


def _lacking(info: Attacker, config: Config) -> str:
    needs = [need for need in NEEDS if need in info.needs and need not in config.threat.knowledge]
    return " and ".join(f"'{need}'" for need in needs)


def _check(name: str, lacking: Mapping[str, str]) -> None:
    if name not in ATTACKS and ":" not in name:
        others = ', or one of your own as "module:function"'
        raise ConfigError(f"--attacks: {unknown('attack', name, [*ATTACKS, 'auto'])}{others}")
    if name not in lacking:
        raise ConfigError(
            f"--attacks: {name} is after something else than this config's attack, which is another audit; put it "
            f"into the config as [attack], or choose from {', '.join(lacking)}"
        )
    if lacking[name]:
        raise ConfigError(
            f"--attacks: {name} must know {lacking[name]}, which threat.knowledge does not grant; grant it, or choose "
            "an attack that does without"
        )


# --- variants --------------------------------------------------------------------------------------------------------


def variants(config: Config, table: Mapping[str, Any], count: int, seed: int) -> dict[str, dict[str, Any]]:
    """Return up to `count` variants of an attack, `GIVEN` first; fewer if it has less to vary."""
    several: dict[str, dict[str, Any]] = {GIVEN: {}}
    ranges = varied_ranges(config, table)
    start = rng(seed, f"audit {table['name']}").random(len(ranges))
    for i in range(1, count):
        point = [(float(at) + i * step) % 1 for at, step in zip(start, kronecker_steps(len(ranges)), strict=True)]
        params = {name: at_share(ranges[name], u) for name, u in zip(ranges, point, strict=True)}
        if params and params not in several.values():
            several[f"variant {i + 1}"] = params
    return several


def answers(config: Config, table: Mapping[str, Any], count: int, seed: int) -> list[dict[str, Any]]:
    """Return so many points of an attack's whole search space, choices included, spread evenly."""
    space = _space(config, table)
    start = rng(seed, f"answers {table['name']}").random(len(space))
    points: list[dict[str, Any]] = []
    for i in range(1, count + 1):
        shares = [(float(at) + i * step) % 1 for at, step in zip(start, kronecker_steps(len(space)), strict=True)]
        point = {name: _at(space[name], u) for name, u in zip(space, shares, strict=True)}
        if point and point not in points:
            points.append(point)
    return points


def _at(searched: Searched, u: float) -> Any:
    if isinstance(searched, Range):
        return at_share(searched, u)
    return searched.options[min(int(u * len(searched.options)), len(searched.options) - 1)]


def _space(config: Config, table: Mapping[str, Any]) -> Space:
    try:
        return search_space(config.model_copy(update={"attack": Named(**table)}))
    except ConfigError:  # nothing to search
        return {}


def varied_ranges(config: Config, table: Mapping[str, Any]) -> Mapping[str, Range]:
    """Return the parameters of an attack's method that are varied, with their ranges."""
    space = _space(config, table)
    return {name: searched for name, searched in space.items() if isinstance(searched, Range)}


def kronecker_steps(n: int) -> Sequence[float]:
    """Return 1/g, 1/g^2, ..., with g^(n+1) = g + 1.

    >>> [round(step, 4) for step in kronecker_steps(1)], [round(step, 4) for step in kronecker_steps(2)]
    ([0.618], [0.7549, 0.5698])
    """
    g = 1.5
    for _ in range(60):
        g = (1 + g) ** (1 / (n + 1))
    return [g**-j for j in range(1, n + 1)]


def at_share(within: Range, u: float) -> float | int:
    """Return the number at a share u of the range, on the range's own scale.

    >>> at_share(Range(0.01, 1.0, True, False), 0.5), at_share(Range(1, 20, True, True), 0.99)
    (0.1, 19)
    """
    low, high = within.low, within.high
    value = math.exp(math.log(low) + u * math.log(high / low)) if within.log else low + u * (high - low)
    value = round(value) if within.whole else significant(value, DIGITS)
    return type(value)(min(max(value, low), high))
