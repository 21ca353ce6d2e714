"""Mutations of bytes: what damage, carelessness and malice do to a file, drawn from a generator.

Each takes a generator and some bytes, and returns a description and other bytes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import numpy as np

Random = np.random.Generator
Mutation = Callable[[Random, bytes], tuple[str, bytes]]

HEADER = 600  # bytes at the beginning where most formats state their sizes
EXTREMES = (0, 1, 0x7F, 0x80, 0xFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 1 << 40, (1 << 63) - 1, (1 << 64) - 1)
NUMBERS = ("0", "-1", "1.5", "1e308", "1e999", "NaN", "-Infinity", "2147483648", "99999999999999999999", "7" * 5000)
VALUES = (
    *(*NUMBERS, "null", "true", "[]", "{}", '""', "[[]]", '[["a"], 1]', '{"x": {}, "y": []}', '"\\ud800"'),
    *('"\\u001b[31mred\\u001b[0m"', '"\\u0000"', '"' + "long" * 5000 + '"'),
)


def flip(random: Random, raw: bytes) -> tuple[str, bytes]:
    """Flip one to eight bits."""
    out, count = bytearray(raw), int(random.integers(1, 9))
    places = [_place(random, raw) for _ in range(count)] if raw else []
    for place in places:
        out[place] ^= 1 << int(random.integers(8))
    return f"bits flipped at {places}", bytes(out)


def cut(random: Random, raw: bytes) -> tuple[str, bytes]:
    """Keep a beginning only."""
    end = int(random.integers(len(raw) + 1))
    return f"cut after {end} of {len(raw)} bytes", raw[:end]


def remove(random: Random, raw: bytes) -> tuple[str, bytes]:
    """Take some bytes out of the middle."""
    start, length = _place(random, raw), int(random.integers(1, 64))
    return f"{length} bytes removed at {start}", raw[:start] + raw[start + length :]


def insert(random: Random, raw: bytes) -> tuple[str, bytes]:
    """Put random bytes into the middle."""
    start, length = _place(random, raw), int(random.integers(1, 64))
    return f"{length} random bytes at {start}", raw[:start] + random.bytes(length) + raw[start:]


def splice(random: Random, raw: bytes) -> tuple[str, bytes]:
    """Repeat one part of the content at another place."""
    start, length, at = _place(random, raw), int(random.integers(1, 4096)), _place(random, raw)
    return f"{length} bytes of {start} repeated at {at}", raw[:at] + raw[start : start + length] + raw[at:]


def binary_number(random: Random, raw: bytes) -> tuple[str, bytes]:
    """Replace 1, 2, 4 or 8 bytes by an extreme number, in either byte order."""
    width, value = int(random.choice([1, 2, 4, 8])), EXTREMES[int(random.integers(len(EXTREMES)))]
    order = "little" if random.random() < 0.5 else "big"
    start, word = _place(random, raw), (value % (1 << (8 * width))).to_bytes(width, "little")
    word = word if order == "little" else word[::-1]
    return f"{value} in {width} bytes, {order} endian, at {start}", raw[:start] + word + raw[start + width :]


def written_number(random: Random, raw: bytes) -> tuple[str, bytes]:
    """Replace a number that is written in digits."""
    return _replaced(random, raw, rb"[0-9]+", NUMBERS)


def value(random: Random, raw: bytes) -> tuple[str, bytes]:
    """Replace a number, a string or an empty list in JSON by some other value."""
    return _replaced(random, raw, rb'[0-9.]+|"[^"]*"|\[\]', VALUES)


def nest(random: Random, raw: bytes) -> tuple[str, bytes]:
    """Open brackets thousands of times."""
    opening = (b"[", b"{", b'{"a":', b"(", b"-", b"(lp0\n")[int(random.integers(6))]
    depth, start = int(random.choice([900, 5_000, 100_000])), _place(random, raw)
    return f"{opening!r} {depth} times at {start}", raw[:start] + opening * depth + raw[start:]


def repeat(random: Random, raw: bytes) -> tuple[str, bytes]:
    """Append the whole content again, a few times or many."""
    times = int(random.choice([1, 2, 300]))
    return f"repeated {times} times", raw + raw * min(times, 1 + (1 << 20) // max(1, len(raw)))


MUTATIONS: Sequence[Mutation] = (
    *(flip, flip, cut, remove, insert, splice, binary_number, binary_number, written_number, value, nest, repeat),
)


def some(random: Random, raw: bytes) -> tuple[str, bytes]:
    """Apply one to three mutations."""
    steps = []
    for _ in range(int(random.choice([1, 1, 2, 3]))):
        step, raw = MUTATIONS[int(random.integers(len(MUTATIONS)))](random, raw)
        steps.append(step)
    return "; ".join(steps), raw


def _place(random: Random, raw: bytes) -> int:
    """Return a place, half of the time in the beginning."""
    return int(random.integers(max(1, min(len(raw), HEADER) if random.random() < 0.5 else len(raw))))


def _replaced(random: Random, raw: bytes, pattern: bytes, values: Sequence[str]) -> tuple[str, bytes]:
    found = list(re.finditer(pattern, raw[: 1 << 16]))
    if not found:
        return "nothing to replace", raw
    match = found[int(random.integers(len(found)))]
    new = values[int(random.integers(len(values)))]
    return f"{match[0][:40]!r} at {match.start()} is now {new[:40]}", raw[: match.start()] + new.encode() + raw[
        match.end() :
    ]
