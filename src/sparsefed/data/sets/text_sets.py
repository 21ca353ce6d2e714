"""The common part of text data sets: a config may cut them to another vocabulary and sequence length."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

from sparsefed.core.errors import ConfigError, printable
from sparsefed.data.formats.tokens import SPECIAL, Texts, arrays
from sparsefed.data.record import Content, DataSet

if TYPE_CHECKING:
    from sparsefed.core.types import Arrays


MOST = 10**7  # of tokens in a vocabulary or a sequence


def text_set(
    name: str, parts: Callable[[Content], tuple[Texts, Texts]], vocabulary: int, length: int, **record: Any
) -> DataSet:
    """Return the record of a text's training and test part, in its usual size; `record` is passed on to `DataSet`."""

    @cache  # so that two configs of the same size share one record, and with it one load
    def resized(tokens: int | None = None, longest: int | None = None) -> DataSet:
        size = vocabulary if tokens is None else _at_least("vocabulary", len(SPECIAL) + 1, tokens)
        steps = length if longest is None else _at_least("length", 1, longest)

        def read(content: Content) -> Arrays:
            return arrays(name, *parts(content), size, steps)

        return DataSet(name=name, read=read, resized=resized, **record)

    return resized()


def _at_least(name: str, least: int, given: Any) -> int:
    if isinstance(given, bool) or not isinstance(given, int) or not least <= given <= MOST:
        raise ConfigError(
            f"{name} is {printable(repr(given), 40)}; give a whole number from {least} to {MOST}, or none"
        )
    return given
