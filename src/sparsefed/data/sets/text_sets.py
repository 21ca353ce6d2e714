"""The common part of text data sets: a config may cut them to another vocabulary and sequence length."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

from sparsefed.data.formats.tokens import Texts, arrays
from sparsefed.data.record import Content, DataSet

if TYPE_CHECKING:
    from sparsefed.core.types import Arrays


def text_set(
    name: str, parts: Callable[[Content], tuple[Texts, Texts]], vocabulary: int, length: int, **record: Any
) -> DataSet:
    """Return the record of a text's training and test part, in its usual size; `record` is passed on to `DataSet`."""

    @cache  # so that two configs of the same size share one record, and with it one load
    def resized(tokens: int | None = None, longest: int | None = None) -> DataSet:
        def read(content: Content) -> Arrays:
            return arrays(name, *parts(content), tokens or vocabulary, longest or length)

        return DataSet(name=name, read=read, resized=resized, **record)

    return resized()
