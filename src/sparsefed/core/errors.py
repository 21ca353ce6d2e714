"""Errors meant for people: one sentence that says what was given, what is allowed, what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class SparseFedError(Exception):
    """An error the user can fix; the command line prints its message without a traceback."""


class ConfigError(SparseFedError):
    """A config or an argument that cannot be run."""


class DataError(SparseFedError):
    """A data set that is missing, damaged or not what it claims to be."""


class RunError(SparseFedError):
    """A run folder that cannot be read, written or resumed."""


def require(condition: bool, sentence: str) -> None:
    """Raise ConfigError with this sentence unless the condition holds."""
    if not condition:
        raise ConfigError(sentence)


def quoted(value: object, longest: int = 80) -> str:
    """Return a value for a message: in quotes, shortened, and without control characters.

    >>> quoted("cn\x1b[31m"), quoted(7), quoted("x" * 99, longest=12)
    ("'cn\\\\x1b[31m'", '7', "'xxxxxxx...'")
    """
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # an integer of thousands of digits, or a bottomless table
        return "a value too large to be shown"
    text = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)
    return text if len(text) <= longest else f"{text[: longest - 4]}...{text[-1]}"


def printable(text: object, longest: int = 500) -> str:
    r"""Return foreign text on one line, without control characters, cut where it is too long.

    >>> printable("not\n\x1b[31mfound")
    'not ?[31mfound'
    """
    whole = " ".join(str(text)[: 2 * longest].split())
    shown = "".join(c if c.isprintable() else "?" for c in whole)
    return shown if len(shown) <= longest else f"{shown[:longest]} ..."


def unknown(kind: str, given: str, valid: Iterable[str]) -> str:
    """Return the error message for an unknown name, with the closest match and all valid choices.

    >>> unknown("model", "cn", ["cnn", "softmax"])
    "unknown model 'cn' (did you mean 'cnn'?); valid choices: cnn, softmax"
    """
    names = sorted(valid)
    close = difflib.get_close_matches(given, names, n=1)
    hint = f" (did you mean '{close[0]}'?)" if close else ""
    return f"unknown {kind} {quoted(given)}{hint}; valid choices: {', '.join(names)}"
