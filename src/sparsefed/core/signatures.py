"""Parameters of builders, read from their signatures: name, type, default and a one-line description.

The description is the `Annotated` note of the parameter's type. Rules, attacks, goals, partitions, schedules and models
are described and checked this way. Numbers must be finite, unless the type has the note `MAY_BE_INFINITE` too.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from types import FunctionType, NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints
from weakref import WeakKeyDictionary

import numpy as np

from sparsefed.core.errors import ConfigError, unknown

MAY_BE_INFINITE = "may be infinite"
LARGEST = 2**63 - 1  # of whole numbers: files, arrays and random generators take no larger one
SHOWN = 80  # characters of a wrong value that a message shows
_KNOWN_HINTS: WeakKeyDictionary[Callable[..., Any], dict[str, Any]] = WeakKeyDictionary()


@dataclass(frozen=True)
class Parameter:
    """One parameter of a builder."""

    name: str
    type: str  # as a person reads it: int, float, 'a' | 'b'
    required: bool
    default: Any  # None if required
    doc: str


def parameters(builder: Callable[..., Any], skip: int = 0) -> tuple[Parameter, ...]:
    """Return the parameters of a builder, in order, without the first `skip`, which the user does not set."""
    hints = _hints(builder)
    named = [p for p in _taken(builder)[skip:] if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    return tuple(_parameter(p, hints.get(p.name, Any)) for p in named)


def check_arguments(
    name: str,
    builder: Callable[..., Any],
    given: Mapping[str, Any],
    skip: int = 0,
    hidden: Collection[str] = (),
    beside: Callable[..., Any] | None = None,
    beside_skip: int = 0,
) -> None:
    """Refuse unknown, missing and mistyped parameters, listing the valid ones.

    Args:
        name: what error messages call the builder.
        builder: the function whose signature decides.
        given: the arguments, by name.
        skip: leading parameters that the user does not set.
        hidden: further names that the user does not set; messages omit them.
        beside: a second function, which takes the parameters that are not the builder's own.
        beside_skip: like `skip`, for `beside`.

    Raises:
        ConfigError: if an argument is unknown, missing or of the wrong type.
    """
    known = parameters(builder, skip) + (parameters(beside, beside_skip) if beside else ())
    _check_skipped(name, builder, skip)
    if not _takes_anything(builder):
        for key in [key for key in given if key not in {p.name for p in known}]:
            raise ConfigError(f"{name}: {_unknown(key, [p.name for p in known if p.name not in hidden])}")
    missing = [p for p in known if p.required and p.name not in given]
    if missing:
        wanted = "; ".join(f"{p.name} ({p.type}{': ' + p.doc if p.doc else ''})" for p in missing)
        raise ConfigError(f"{name} needs {wanted}")
    hints = (_hints(beside) if beside else {}) | _hints(builder)
    for key, value in given.items():
        _check_value(f"{name}: {key}", value, hints.get(key, Any))


def _check_value(what: str, value: Any, hint: Any) -> None:
    """Refuse a value of another type, a number that is not finite, and a whole number that is absurdly large."""
    bare, *notes = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    if not _fits(value, bare):
        raise ConfigError(f"{what} is {shown(value)}, but must be {readable(bare)}")
    for number in value if isinstance(value, (list, tuple)) else [value]:
        if isinstance(number, Integral) and abs(int(number)) > LARGEST:
            raise ConfigError(f"{what} is {shown(value)}, but must be a whole number up to {LARGEST}")
        if not isinstance(number, (float, np.floating)) or math.isfinite(number):
            continue
        if MAY_BE_INFINITE not in notes or math.isnan(number):
            raise ConfigError(f"{what} is {shown(value)}, but must be a finite number")


def shown(value: Any) -> str:
    """Return a value as an error message shows it, on one line and cut where it is long.

    >>> shown("a" * 1000)[-9:], len(shown("a" * 1000))
    ('aaaaaa...', 80)
    """
    try:
        text = " ".join(repr(value).split())
    except Exception:  # a value's own repr may raise anything; that of a whole number does beyond 4300 digits
        text = f"a {type(value).__name__}"
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 3]}..."


def _takes_anything(builder: Callable[..., Any]) -> bool:
    """Return whether a builder has untyped `**keywords`; an `Unpack` annotation lists what it takes."""
    return any(p.kind is p.VAR_KEYWORD and "Unpack[" not in str(p.annotation) for p in _taken(builder))


def _unknown(key: str, valid: Sequence[str]) -> str:
    key = shown(key)[1:-1]  # escaped and cut, without its quotes
    return unknown("parameter", key, valid) if valid else f"it takes no parameters, but was given '{key}'"


def _check_skipped(name: str, builder: Callable[..., Any], skip: int) -> None:
    """Refuse a user's builder that does not take the positional arguments it will be called with."""
    taken = _taken(builder)
    places = [p for p in taken if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if len(places) < skip and not any(p.kind is p.VAR_POSITIONAL for p in taken):
        raise ConfigError(f"{name} takes {len(places)} positional arguments, but is handed {skip}; give it that many")


def _taken(builder: Callable[..., Any]) -> list[inspect.Parameter]:
    return list(inspect.signature(builder).parameters.values())


def _hints(builder: Callable[..., Any]) -> dict[str, Any]:
    """Return the type hints of a function or class; empty if they use names imported for type checking only."""
    function = inspect.unwrap(_called(builder))
    if (known := _KNOWN_HINTS.get(function) if isinstance(function, FunctionType) else None) is not None:
        return known
    try:
        hints = get_type_hints(function, include_extras=True)
    except (NameError, TypeError):
        return {}
    if isinstance(function, FunctionType):
        _KNOWN_HINTS[function] = hints  # they are strings until they are evaluated, which takes longer than the rest
    return hints


def _called(builder: Callable[..., Any]) -> Callable[..., Any]:
    return getattr(builder, "__init__") if isinstance(builder, type) else builder  # noqa: B009


def _parameter(parameter: inspect.Parameter, hint: Any) -> Parameter:
    bare, *notes = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    required = parameter.default is inspect.Parameter.empty
    default = None if required else parameter.default
    return Parameter(parameter.name, readable(bare), required, default, notes[0] if notes else "")


def _options(hint: Any) -> tuple[Any, ...]:
    options = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    return tuple(get_args(option)[0] if get_origin(option) is Annotated else option for option in options)


def readable(hint: Any) -> str:
    """Return a type as text for people.

    >>> readable(int | None), readable(Literal["a", "b"]), readable(tuple[int, ...])
    ('int', "'a' | 'b'", 'list of int')
    """
    words: list[str] = []
    for option in _options(hint):
        choices = [repr(choice) for choice in get_args(option)] if get_origin(option) is Literal else []
        if get_origin(option) in (tuple, Sequence) and (inner := get_args(option)):
            choices = [f"list of {readable(inner[0])}"]
        if get_origin(option) is Mapping:
            choices = ["table"]
        words += choices or [getattr(option, "__name__", str(option))]
    return " | ".join(word for word in words if word != "NoneType")


def _fits(value: Any, hint: Any) -> bool:
    return any(_fits_one(value, option) for option in _options(hint))


def _fits_one(value: Any, option: Any) -> bool:
    if option is Any:
        return True
    if get_origin(option) is Literal:
        return isinstance(value, str) and value in get_args(option)
    if option is NoneType:
        return value is None
    if get_origin(option) in (tuple, Sequence):
        return isinstance(value, (list, tuple)) and all(_fits(part, get_args(option)[0]) for part in value)
    if get_origin(option) is Mapping:
        return isinstance(value, Mapping) and all(isinstance(key, str) for key in value)
    if option is int:
        return isinstance(value, Integral) and not isinstance(value, bool)
    if option is float:
        return isinstance(value, (float, np.floating, Integral)) and not isinstance(value, bool)
    return not isinstance(option, type) or isinstance(value, option)
