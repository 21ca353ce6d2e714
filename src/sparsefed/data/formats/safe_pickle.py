"""A safe reader of CIFAR's "python version" files: pickles, which are programs that may call anything, read as data.

This is a reader for the few instructions that such a file needs: numbers, strings, lists, tuples, dicts, and one NumPy
array of bytes. A name of a function or class is only ever compared with the three that NumPy's arrays are made of;
nothing is looked up, imported or called. Any other name or instruction is refused. The pixels, known by how many bytes
they have, are handed to the caller while they are read, so that 150 MB are never held twice; other strings are short.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import IO, Any, NamedTuple

from sparsefed.data.record import DamagedError

LONGEST = 1 << 16  # bytes of any string other than the pixels


class Pixels(NamedTuple):
    """The placeholder for the pixels in the object that is returned."""

    size: int


class Name(NamedTuple):
    """The name of a function or class that the file mentions; it is never looked up."""

    module: str
    name: str


@dataclass
class ByteArray:
    """The parts of a NumPy array of bytes."""

    shape: tuple[Any, ...] = ()
    filled: bool = False  # whether its bytes are the pixels


class ByteType(NamedTuple):
    """The type of unsigned bytes, the only one that pixels have."""


MAKE = tuple(Name(module, "_reconstruct") for module in ("numpy.core.multiarray", "numpy._core.multiarray"))
ARRAY, TYPE = Name("numpy", "ndarray"), Name("numpy", "dtype")
MARK = object()
STOP = b"."


@dataclass
class Machine:
    """The state of the pickle machine: the objects that a file has built so far."""

    stream: IO[bytes]
    pixels: int
    fill: Callable[[IO[bytes]], None]
    stack: list[Any] = field(default_factory=list)
    memo: dict[int, Any] = field(default_factory=dict)

    def take(self, size: int) -> bytes:
        found = self.stream.read(size)
        if len(found) != size:
            raise DamagedError("is cut short: its last object is not finished")
        return found

    def number(self, form: str) -> int:
        value: int = struct.unpack("<" + form, self.take(struct.calcsize(form)))[0]
        return value

    def push(self, value: Any) -> None:
        self.stack.append(value)

    def pop(self) -> Any:
        if not self.stack:
            raise DamagedError("is no CIFAR file: it uses a value that it has not made")
        return self.stack.pop()

    def since_mark(self) -> list[Any]:
        """Pop everything since the last mark, and the mark itself; return it without the mark."""
        for place in range(len(self.stack) - 1, -1, -1):
            if self.stack[place] is MARK:
                found = self.stack[place + 1 :]
                del self.stack[place:]
                return found
        raise DamagedError("is no CIFAR file: it uses a mark that it has not set")


def parse(stream: IO[bytes], pixels: int, fill: Callable[[IO[bytes]], None]) -> Any:
    """Return the object in the file, or raise DamagedError; `fill` must read the `pixels` bytes of the images."""
    machine = Machine(stream, pixels, fill)
    while (code := machine.take(1)) != STOP:
        if code not in CODES:
            raise DamagedError(f"is no CIFAR file: it contains the instruction {code!r}, which such files do not use")
        CODES[code](machine)
    return machine.pop()


def _string(m: Machine, form: str) -> None:
    size = m.number(form)
    if size == m.pixels:
        m.fill(m.stream)
        m.push(Pixels(size))
    else:
        m.push(_short(m, size))


def _text(m: Machine, form: str) -> None:
    m.push(_short(m, m.number(form)).decode("utf-8", "replace"))


def _short(m: Machine, size: int) -> bytes:
    if size > LONGEST:
        raise DamagedError(
            f"is not the CIFAR file it should be: {size} bytes in one piece, where {m.pixels} are pixels"
        )
    return m.take(size)


def _tuple(m: Machine, size: int) -> None:
    m.push(tuple(m.pop() for _ in range(size))[::-1])


def _append(m: Machine, values: list[Any]) -> None:
    target = m.pop()
    if not isinstance(target, list):
        raise DamagedError("is no CIFAR file: it appends to something that is no list")
    target.extend(values)
    m.push(target)


def _set(m: Machine, values: list[Any]) -> None:
    target = m.pop()
    if not isinstance(target, dict) or len(values) % 2 or not all(isinstance(key, bytes | str) for key in values[::2]):
        raise DamagedError("is no CIFAR file: it puts something into a dict that does not go there")
    target.update(zip(values[::2], values[1::2], strict=True))
    m.push(target)


def _get(m: Machine, form: str) -> None:
    place = m.number(form)
    if place not in m.memo:
        raise DamagedError("is no CIFAR file: it recalls a value that it has not stored")
    m.push(m.memo[place])


def _keep(m: Machine, place: int) -> None:
    value = m.pop()
    m.memo[place] = value
    m.push(value)


def _name(m: Machine, module: Any, name: Any) -> None:
    found = Name(str(module), str(name))
    if found not in (*MAKE, ARRAY, TYPE):
        raise DamagedError(f"is not safe: it wants to use {found.module}.{found.name}, which no CIFAR file needs")
    m.push(found)


def _line(m: Machine) -> str:
    found = m.stream.readline(256)
    if not found.endswith(b"\n"):
        raise DamagedError("is no CIFAR file: it names something that cannot be read")
    return found[:-1].decode("utf-8", "replace")


def _call(m: Machine) -> None:
    arguments, what = m.pop(), m.pop()
    if what in MAKE and isinstance(arguments, tuple) and arguments[:1] == (ARRAY,):
        m.push(ByteArray())
    elif what == TYPE and isinstance(arguments, tuple) and arguments[:1] in ((b"u1",), ("u1",)):
        m.push(ByteType())
    else:
        raise DamagedError("is not safe: it wants to make something other than an array of bytes")


def _build(m: Machine) -> None:
    """Set the state of an array (version, shape, type, column order, bytes) or of a type (nothing to set)."""
    state, target = m.pop(), m.pop()
    if isinstance(target, ByteArray) and isinstance(state, tuple) and len(state) == 5:
        _, shape, kind, by_column, data = state
        if not isinstance(kind, ByteType) or by_column is not False or not isinstance(shape, tuple):
            raise DamagedError("is no CIFAR file: its array is not of bytes, row after row")
        target.shape, target.filled = shape, isinstance(data, Pixels)
    elif not isinstance(target, ByteType):
        raise DamagedError("is no CIFAR file: it builds something other than an array of bytes")
    m.push(target)


def _stack_name(m: Machine) -> None:
    name, module = m.pop(), m.pop()
    _name(m, module, name)


CODES: Mapping[bytes, Callable[[Machine], Any]] = {
    b"\x80": lambda m: m.take(1),  # the version; only the instructions matter
    b"\x95": lambda m: m.take(8),  # the length of a frame
    b"(": lambda m: m.push(MARK),
    b"}": lambda m: m.push({}),
    b"]": lambda m: m.push([]),
    b")": lambda m: m.push(()),
    b"t": lambda m: m.push(tuple(m.since_mark())),
    b"\x85": lambda m: _tuple(m, 1),
    b"\x86": lambda m: _tuple(m, 2),
    b"\x87": lambda m: _tuple(m, 3),
    b"N": lambda m: m.push(None),
    b"\x88": lambda m: m.push(True),
    b"\x89": lambda m: m.push(False),
    b"K": lambda m: m.push(m.number("B")),
    b"M": lambda m: m.push(m.number("H")),
    b"J": lambda m: m.push(m.number("i")),
    b"U": lambda m: _string(m, "B"),
    b"T": lambda m: _string(m, "I"),
    b"C": lambda m: _string(m, "B"),
    b"B": lambda m: _string(m, "I"),
    b"\x8e": lambda m: _string(m, "Q"),
    b"\x8c": lambda m: _text(m, "B"),
    b"X": lambda m: _text(m, "I"),
    b"q": lambda m: _keep(m, m.number("B")),
    b"r": lambda m: _keep(m, m.number("I")),
    b"\x94": lambda m: _keep(m, len(m.memo)),
    b"h": lambda m: _get(m, "B"),
    b"j": lambda m: _get(m, "I"),
    b"a": lambda m: _append(m, [m.pop()]),
    b"e": lambda m: _append(m, m.since_mark()),
    b"s": lambda m: _set(m, [m.pop(), m.pop()][::-1]),
    b"u": lambda m: _set(m, m.since_mark()),
    b"c": lambda m: _name(m, _line(m), _line(m)),
    b"\x93": _stack_name,
    b"R": _call,
    b"b": _build,
}
