"""The search space: for each parameter of an attack's method, a range of numbers or some choices.

The goal's parameters are not searched: another goal is another question.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sparsefed import config as configs
from sparsefed.config import Config
from sparsefed.core.errors import ConfigError, unknown
from sparsefed.core.signatures import Parameter, parameters


@dataclass(frozen=True)
class Range:
    """Numbers from low to high; both are integers if the numbers are whole."""

    low: float
    high: float
    log: bool
    whole: bool


@dataclass(frozen=True)
class Categories:
    """Some values without an order among them."""

    options: tuple[Any, ...]


Searched = Range | Categories
Space = Mapping[str, Searched]

WIDTH = 30  # a parameter that is not in the table is searched from its default / WIDTH to its default * WIDTH
# Parameters that mean the same in every attack; an attack overrides them with its `search`. None: a fact of the
# run or of the threat model, or a tolerance; searching it would change the question.
USUAL_RANGES: Mapping[str, str | None] = {
    "epochs": "1:20",
    "step": "0.001:1",
    "boost": "1:100",
    "poisoned": "0.05:1",
    **dict.fromkeys(("most", "tries", "threshold", "pieces", "classes", "server_lr", "knowledge")),
}
SIZES = ("auxiliary", "points")  # parameters that say how many points a goal has: a batch has at most that many
MOST_IN_A_BATCH = 512  # if there is no such parameter
SAY_SPACE = "say what to search as --space attack.KEY=LOW:HIGH, or attack.KEY=A,B,C for choices"


def search_space(config: Config, wanted: Sequence[str] = ()) -> Space:
    """Return the search space of each parameter of the attack, always including the config's own value.

    It is the one given (`attack.step=0.01:1`, `attack.to_budget=true,false`), the attack's own, or around the default.
    """
    if config.attack is None:
        raise ConfigError("there is no [attack] to tune; add [threat] and [attack] to the config")
    attacker, given = configs.attacker(config.attack), config.attack.params
    known = {p.name: p for p in parameters(attacker.method, 1)}
    beside = {p.name: p.default for p in parameters(attacker.goal, 1)} | given
    given_spaces = dict(_split(text, config.attack.name, known, beside) for text in wanted)
    space: dict[str, Searched] = {}
    for name, parameter in known.items():
        own = given.get(name, parameter.default)
        if name in given_spaces:
            space[name] = _given(config, parameter, own, given_spaces[name])
        elif searched := _usual(attacker.search, parameter, own, beside):
            space[name] = searched
    if not space:
        raise ConfigError(f"attack {config.attack.name} has no parameter that can be searched; {SAY_SPACE}")
    return space


def own_params(config: Config, space: Space) -> dict[str, Any]:
    """Return the config's own values of the searched parameters, except those that it leaves to the attack."""
    assert config.attack is not None
    defaults = {p.name: p.default for p in parameters(configs.attacker(config.attack).method, 1)}
    own = {name: config.attack.params.get(name, defaults[name]) for name in space}
    return {name: value for name, value in own.items() if value is not None}


def with_params(config: Config, params: Mapping[str, Any]) -> Config:
    """Return the config with other parameters of its attack."""
    table = configs.dump(config)
    return configs.parse({**table, "attack": {**table["attack"], **params}})


def holds(searched: Searched, value: Any) -> bool:
    """Return whether the search may try the value; None, which leaves it to the attack, is always allowed."""
    if value is None:
        return True
    return (
        value in searched.options if isinstance(searched, Categories) else bool(searched.low <= value <= searched.high)
    )


# --- as a user writes it ---------------------------------------------------------------------------------------------


def _split(text: str, attack: str, known: Mapping[str, Parameter], beside: Mapping[str, Any]) -> tuple[str, str]:
    key, equals, wanted = (part.strip() for part in text.partition("="))
    name = key.removeprefix("attack.")
    if not (name and equals and wanted):
        raise ConfigError(f"--space was given '{text}'; {SAY_SPACE}")
    if name in beside and name not in known:
        raise ConfigError(
            f"--space {text}: {name} says what the attackers want, and another goal is another question; "
            f"searched are the parameters of the attack itself: {', '.join(known) or 'it has none'}"
        )
    if name not in known:
        raise ConfigError(f"--space {text}: {unknown(f'parameter of attack {attack}', name, known)}")
    return name, wanted


def _given(config: Config, parameter: Parameter, own: Any, wanted: str) -> Searched:
    """Return the wanted space, if the attack takes it and the search can begin with the config's own value."""
    option = f"--space attack.{parameter.name}={wanted}"
    try:
        searched = _written(wanted, _is_whole(parameter, own))
        for value in (searched.low, searched.high) if isinstance(searched, Range) else searched.options:
            with_params(config, {parameter.name: value})
    except ConfigError as error:
        raise ConfigError(f"{option}: {error}") from error
    if not holds(searched, own):
        raise ConfigError(
            f"{option} leaves out {own!r}, which the config has and the search begins with; widen it, or begin "
            f"elsewhere with --set attack.{parameter.name}=VALUE"
        )
    return searched


def _written(text: str, whole: bool) -> Searched:
    """Parse `low:high` or `a,b,c`; logarithmic if both ends are positive and a factor of 10 apart.

    >>> _written("0.01:1", whole=False)
    Range(low=0.01, high=1.0, log=True, whole=False)
    >>> _written("true,false", whole=False)
    Categories(options=(True, False))
    """
    left, colon, right = text.partition(":")
    if not colon:
        return Categories(tuple(configs.value_of(part) for part in text.split(",")))
    try:
        low, high = float(left), float(right)
    except ValueError:
        raise ConfigError(f"'{left}' and '{right}' should be numbers, for instance 0.01:1") from None
    if not (math.isfinite(low) and math.isfinite(high) and low <= high):
        raise ConfigError(f"{text} is empty or endless; give two numbers, the smaller one first")
    if whole and not (low.is_integer() and high.is_integer()):
        raise ConfigError(f"{text} should be whole numbers, as the parameter is")
    return _numbers(low, high, low > 0 and high >= 10 * low, whole)


# --- as it follows from the attack -----------------------------------------------------------------------------------


def _usual(
    search: Mapping[str, str | None], parameter: Parameter, own: Any, beside: Mapping[str, Any]
) -> Searched | None:
    """Return the attack's own range, or one from type and default, widened to the config's own value."""
    name, whole = parameter.name, _is_whole(parameter, own)
    listed = search.get(name, USUAL_RANGES.get(name, ""))
    if listed is None:
        return None
    if name == "batch" and whole:
        most = next((int(beside[size]) for size in SIZES if size in beside), MOST_IN_A_BATCH)
        return _widened(Range(1, max(most, 1), True, True), own)
    searched = _written(listed, whole) if listed else _derived(parameter, own, whole)
    return _widened(searched, own) if isinstance(searched, Range) else searched


def _derived(parameter: Parameter, own: Any, whole: bool) -> Searched | None:
    if isinstance(own, bool):
        return Categories((False, True))
    if isinstance(own, str):
        options = tuple(option.strip("'") for option in parameter.type.split(" | "))
        return Categories(options) if len(options) > 1 and own in options else None
    middle = parameter.default if _is_positive(parameter.default) else own
    if not _is_positive(middle):
        return None
    low, high = middle / WIDTH, middle * WIDTH
    return _numbers(max(1, round(low)) if whole else low, high, True, whole)


def _widened(within: Range, own: Any) -> Range | None:
    """Widen a range to the config's own value, if it has one; None if a logarithmic scale cannot contain it."""
    if own is None:
        return within
    if within.log and own <= 0:
        return None
    return _numbers(min(within.low, own), max(within.high, own), within.log, within.whole)


def _numbers(low: float, high: float, log: bool, whole: bool) -> Range:
    """Return a range of one type: questions are compared as text, and 5 is not written like 5.0."""
    number = round if whole else float
    return Range(number(low), number(high), log, whole)


def _is_whole(parameter: Parameter, own: Any) -> bool:
    kinds = parameter.type.split(" | ")
    return "float" not in kinds and ("int" in kinds or (isinstance(own, int) and not isinstance(own, bool)))


def _is_positive(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < math.inf
