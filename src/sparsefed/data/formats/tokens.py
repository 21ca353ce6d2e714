"""Text as numbers: tokens, a vocabulary, and each user's sequences of a fixed length with the token that follows.

A text of n tokens becomes n + 1 pairs, `<bos> t1 .. tn` in and `t1 .. tn <eos>` out, cut every `length` pairs; what is
missing from its last sequence is filled with `<pad>` in, and IGNORED out, which no loss and no accuracy counts. Nothing
is carried from one sequence to the next. The vocabulary is that of the training part alone.

*Departures.* LEAF (Caldas et al. 2018) cuts Reddit's comments the same way, at 10, but has one pair more, `<eos>` in
and `<PAD>` out, which its loss counts. It splits words with a tokeniser for tweets; `words` is simpler.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from sparsefed.core.errors import DataError

if TYPE_CHECKING:
    from sparsefed.core.types import Arrays, IndexArray, IntArray

SPECIAL = ("<pad>", "<unk>", "<bos>", "<eos>")
PAD, UNK, BOS, EOS = range(4)
PLACES, SPARSEST = 2**26, 16  # places of all sequences that are always allowed; places a token beyond that
HELD_OUT = 10  # one in so many of a user's texts, the last ones, is for the test

# Markers of text removed for privacy; words, digits and letters together, with apostrophes inside; and any other
# sign by itself.
_WORD = re.compile(r"<(?:url|email|phone)>|[^\W_]+(?:'[^\W_]+)*|\S")

Split = Callable[[str], list[str]]
Texts = Mapping[str, Sequence[Sequence[str]]]  # user -> texts, the oldest first, as tokens


@dataclass(frozen=True)
class Pairs:
    """Input sequences, and the token that follows each of their tokens."""

    x: IndexArray  # [N, length]
    y: IntArray  # [N, length], IGNORED where there is nothing to predict
    users: IntArray  # [N], positions in the sorted names of the users


def words(text: str) -> list[str]:
    """Split a text into lower-cased words, every other sign apart.

    >>> words("Don't PANIC: see <url>, 42%!")
    ["don't", 'panic', ':', 'see', '<url>', ',', '42', '%', '!']
    """
    return _WORD.findall(text.lower().replace("\N{RIGHT SINGLE QUOTATION MARK}", "'"))


def characters(text: str) -> list[str]:
    """Split a text into characters, line breaks included."""
    return list(text)


def vocabulary(texts: Iterable[Sequence[str]], size: int) -> tuple[str, ...]:
    """Return the special tokens, then the most frequent others, at most `size` in all; ties are in sorted order.

    >>> vocabulary([["b", "a"], ["c", "c"]], 6)
    ('<pad>', '<unk>', '<bos>', '<eos>', 'c', 'a')
    """
    counts = Counter(token for text in texts for token in text)
    ranked = sorted((-count, token) for token, count in counts.items() if token not in SPECIAL)
    return (*SPECIAL, *(token for _, token in ranked[: size - len(SPECIAL)]))


def held_out(texts: Texts) -> tuple[Texts, Texts]:
    """Split each user's texts into a training part and the last tenth, rounded down, to test."""
    kept = {user: len(own) - len(own) // HELD_OUT for user, own in texts.items()}
    return {u: own[: kept[u]] for u, own in texts.items()}, {u: own[kept[u] :] for u, own in texts.items()}


def arrays(name: str, train: Texts, test: Texts, size: int, length: int) -> Arrays:
    """Return a data set of text, whose classes are the vocabulary and whose labels are the following tokens."""
    from sparsefed.core.types import Arrays

    for part, texts in (("train", train), ("test", test)):
        if not any(texts.values()):
            raise DataError(f"{name} has no text to {part} on; give it users with at least {HELD_OUT} texts each")
    known = vocabulary((text for own in train.values() for text in own), size)
    learn, probe = pairs(train, known, length), pairs(test, known, length)
    return Arrays(name, learn.x, learn.y, probe.x, probe.y, known, (), (), users=learn.users)


def pairs(texts: Texts, known: Sequence[str], length: int) -> Pairs:
    """Return all sequences, user after user in the order of their names, text after text."""
    from sparsefed.core.types import IGNORED

    number = {token: i for i, token in enumerate(known) if token not in SPECIAL}  # a user's words are never special
    owned = [(user, text) for user, name in enumerate(sorted(texts)) for text in texts[name]]
    counts = np.array([len(text) + 1 for _, text in owned], np.int64)  # pairs per text
    rows = -(-counts // length)
    if rows.sum() * length > max(PLACES, SPARSEST * counts.sum()):
        raise DataError(
            f"sequences of length {length} would be {rows.sum() * length} places for {counts.sum()} tokens; "
            "choose a shorter length"
        )
    starts = (np.cumsum(rows) - rows) * length - (np.cumsum(counts) - counts)
    places = np.repeat(starts, counts) + np.arange(counts.sum())  # place of each pair in the filled sequences
    x = np.full((int(rows.sum()), length), PAD, np.int32)
    y = np.full((int(rows.sum()), length), IGNORED, np.int64)
    x.reshape(-1)[places] = [i for _, text in owned for i in (BOS, *(number.get(token, UNK) for token in text))]
    y.reshape(-1)[places] = [i for _, text in owned for i in (*(number.get(token, UNK) for token in text), EOS)]
    return Pairs(x, y, np.repeat(np.array([user for user, _ in owned], np.int64), rows))
