"""JSON lines with a user and a text each; a user's texts are in the order in which they were written."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from sparsefed.core.errors import DataError, printable
from sparsefed.data.formats.tokens import Split

if TYPE_CHECKING:
    from sparsefed.core.types import UInt8Array


def parse(content: UInt8Array, split: Split, name: str) -> dict[str, list[list[str]]]:
    """Return user -> texts, as tokens, without empty texts; raise DataError naming the first malformed line."""
    texts: dict[str, list[list[str]]] = {}
    for number, line in enumerate(content.tobytes().splitlines(), start=1):
        try:
            row = json.loads(line)
            user, text = row["user"], row["text"]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise DataError(
                f'line {number} of {name} is not JSON like {{"user": 1, "text": "..."}}: {printable(error)}'
            ) from error
        if not isinstance(text, str) or not isinstance(user, int | str):
            raise DataError(f"line {number} of {name} has a text that is no text, or a user that is no name or number")
        if tokens := split(text):
            texts.setdefault(str(user), []).append(tokens)
    return texts
