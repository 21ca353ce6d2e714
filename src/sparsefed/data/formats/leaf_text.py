"""Text as LEAF's scripts write it (Caldas et al. 2018): JSON files in `train/` and `test/`, by user.

    {"users": [...], "num_samples": [...], "user_data": {user: {"x": [...], "y": [...]}}}

Reddit has an entry per comment: x is its sequences of 10 words, starting with <BOS> and filled with <PAD>; y holds,
under "target_tokens", the sequences shifted by one word. Here a comment is put together again from x.

Shakespeare has an entry per character: x is 80 characters, y the one that follows, and the next entry's x is shifted by
one. Here consecutive windows are put together again, so that each character is predicted once, not 80 times.

LEAF's split into training and test part is kept. Its validation part is not read. Nor is "num_samples", which for
Reddit counts the comments before the split.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sparsefed.data.formats.leaf import parsed
from sparsefed.data.formats.tokens import Texts
from sparsefed.data.record import Content, DamagedError, DataFile

TRAIN, TEST = "train/*.json", "test/*.json"
FILES = (DataFile(TRAIN), DataFile(TEST))
MARKS = ("<BOS>", "<EOS>", "<PAD>")

Unpack = Callable[[list[Any], list[Any]], list[list[str]]]  # a user's x and y -> texts, as tokens


def read(content: Content, unpack: Unpack) -> tuple[Texts, Texts]:
    """Read the training and the test part."""
    return _merged(content, TRAIN, unpack), _merged(content, TEST, unpack)


def comments(x: list[Any], y: list[Any]) -> list[list[str]]:  # noqa: ARG001 - x holds all of it
    """Return Reddit's comments, as lists of words.

    >>> comments([[["<BOS>", "so", "it"], ["is", "<EOS>", "<PAD>"]]], [{}])
    [['so', 'it', 'is']]
    """
    return [[word for sequence in comment for word in sequence if word not in MARKS] for comment in x]


def windows(x: list[Any], y: list[Any]) -> list[list[str]]:
    """Return Shakespeare's text, put together from windows that move on by one character.

    >>> windows(["abc", "bcd", "xyz"], ["d", "e", "!"])
    [['a', 'b', 'c', 'd', 'e'], ['x', 'y', 'z', '!']]
    """
    texts: list[list[str]] = []
    after = None  # the window that would continue the text
    for window, following in zip(x, y, strict=True):
        if window != after:
            texts.append(list(window))
        texts[-1].append(following)
        after = window[1:] + following
    return texts


def _merged(content: Content, name: str, unpack: Unpack) -> dict[str, list[list[str]]]:
    texts: dict[str, list[list[str]]] = {}
    for path in content.paths(name):
        with content.open(path) as stream:
            for user, data in _users(parsed(stream)).items():
                if own := _texts(user, data, unpack):
                    texts.setdefault(user, []).extend(own)
    return texts


def _users(found: Any) -> Mapping[str, Any]:
    users = found.get("user_data") if isinstance(found, dict) else None
    if not isinstance(users, dict):
        raise DamagedError("is no file of LEAF's: it should hold users, num_samples, user_data")
    return users


def _texts(user: str, data: Any, unpack: Unpack) -> list[list[str]]:
    try:
        own = [text for text in unpack(data["x"], data["y"]) if text]
        if all(isinstance(token, str) for text in own for token in text):
            return own
    except (KeyError, TypeError, ValueError):
        pass
    raise DamagedError(f"is damaged: the user {user} should have texts x and as many labels y")
