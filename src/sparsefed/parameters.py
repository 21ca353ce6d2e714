"""What a builder takes, read from its signature: name, type, default and one line each.

A parameter's line is the `Annotated` note of its type. Rules, attacks and models are described and checked this
way.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from sparsefed.errors import ConfigError, unknown


@dataclass(frozen=True)
class Parameter:
    """One parameter of a builder."""

    name: str
    type: str  # as a person reads it: int, float, 'a' | 'b'
    required: bool
    default: Any  # None if required
    doc: str


def parameters(builder: Callable[..., Any], skip: int = 0) -> tuple[Parameter, ...]:
    """The parameters of a builder, in order; the first `skip` are not the user's to give."""
    hints = get_type_hints(builder, include_extras=True)
    taken = list(inspect.signature(builder).parameters.values())[skip:]
    named = [p for p in taken if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    return tuple(_parameter(p, hints.get(p.name, Any)) for p in named)


def check_arguments(name: str, builder: Callable[..., Any], given: Mapping[str, Any], skip: int = 0) -> None:
    """Refuse unknown, missing and mistyped parameters, with the valid ones."""
    known = parameters(builder, skip)
    for key in given:
        if key not in {p.name for p in known}:
            raise ConfigError(f"{name}: " + unknown("parameter", key, [p.name for p in known]))
    missing = [p for p in known if p.required and p.name not in given]
    if missing:
        wanted = "; ".join(f"{p.name} ({p.type}{': ' + p.doc if p.doc else ''})" for p in missing)
        raise ConfigError(f"{name} needs {wanted}")
    hints = get_type_hints(builder)
    for key, value in given.items():
        if not _fits(value, hints.get(key, Any)):
            raise ConfigError(f"{name}: {key} is {value!r}, but must be {_readable(hints[key])}")


def _parameter(parameter: inspect.Parameter, hint: Any) -> Parameter:
    bare, *notes = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    required = parameter.default is inspect.Parameter.empty
    default = None if required else parameter.default
    return Parameter(parameter.name, _readable(bare), required, default, notes[0] if notes else "")


def _options(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def _readable(hint: Any) -> str:
    words: list[str] = []
    for option in _options(hint):
        choices = [repr(choice) for choice in get_args(option)] if get_origin(option) is Literal else []
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
    if option is int:
        return isinstance(value, Integral) and not isinstance(value, bool)
    if option is float:
        return isinstance(value, Real) and not isinstance(value, bool)
    return not isinstance(option, type) or isinstance(value, option)
