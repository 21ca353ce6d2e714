"""The common part of CIFAR-10 and CIFAR-100 (Krizhevsky 2009): four ways to store 32x32 colour images.

- the official binary version, unpacked: records of label bytes and 3072 pixels, plane after plane;
- the official archives, binary or python version, as downloaded;
- the official python version, unpacked (see `stored`);
- one compact file per split (see `strips`).

Whatever the form, the images are decoded into the same preallocated arrays, and every part of them is compared by
SHA-256 before it is returned.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import numpy as np

from sparsefed.data.formats import npz, tar
from sparsefed.data.formats import safe_pickle as stored
from sparsefed.data.formats import webp as strips
from sparsefed.data.record import Content, DamagedError, DataFile, DataSet, Layout, Source

if TYPE_CHECKING:
    from sparsefed.core.types import Arrays, UInt8Array

SIDE = 32
PIXELS = 3 * SIDE * SIDE
BLOCK = 1000  # images transposed at a time


@dataclass(frozen=True)
class Part:
    """The images of one official file, and their checksums."""

    name: str  # name of the official file, without .bin
    images: int
    x: str  # SHA-256 of the images' bytes [N, 32, 32, 3]
    y: str  # SHA-256 of the labels as bytes
    binary: str  # SHA-256 of the official .bin file


@dataclass(frozen=True)
class Kind:
    """The facts in which CIFAR-10 and CIFAR-100 differ."""

    name: str
    description: str
    train: tuple[Part, ...]
    test: Part
    compact: tuple[DataFile, DataFile]  # train, test
    label_bytes: int  # in a binary record; the last one counts
    label_key: bytes  # in a python file
    archives: tuple[str, str]  # binary, python
    folders: tuple[str, ...]
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @property
    def parts(self) -> tuple[Part, ...]:
        return (*self.train, self.test)


class Room(NamedTuple):
    """The preallocated arrays for a part's images and labels."""

    x: UInt8Array  # [n, 32, 32, 3]
    y: UInt8Array  # [n]


class Rooms(NamedTuple):
    """The preallocated arrays of the splits, and the views of them that the parts fill."""

    splits: tuple[Room, Room]  # train, test
    parts: Mapping[str, Room]  # views of them


Fill = Callable[[IO[bytes], Room], None]
FillAll = Callable[[Content, Rooms], None]


def dataset(kind: Kind, sources: tuple[Source, ...]) -> DataSet:
    """Return the record of a CIFAR data set."""
    binary, python = (DataFile(name) for name in kind.archives)
    return DataSet(
        name=kind.name,
        description=kind.description,
        read=_reader(kind, _each(kind, ".bin", _records(kind))),
        files=tuple(DataFile(f"{p.name}.bin", p.images * (kind.label_bytes + PIXELS), p.binary) for p in kind.parts),
        folders=kind.folders,
        sources=sources,
        also=(
            Layout(kind.compact, _reader(kind, _compact(kind))),
            Layout((binary,), _reader(kind, _packed(kind, binary.name, ".bin", _records(kind)))),
            Layout((python,), _reader(kind, _packed(kind, python.name, "", _objects(kind)))),
            Layout(tuple(DataFile(p.name) for p in kind.parts), _reader(kind, _each(kind, "", _objects(kind)))),
        ),
    )


def _reader(kind: Kind, fill: FillAll) -> Callable[[Content], Arrays]:
    def read(content: Content) -> Arrays:
        from sparsefed.core.types import Arrays

        n, m = sum(part.images for part in kind.train), kind.test.images
        train, test = (Room(np.empty((k, SIDE, SIDE, 3), np.uint8), np.empty(k, np.uint8)) for k in (n, m))
        rooms, at = {kind.test.name: test}, 0
        for part in kind.train:
            rooms[part.name] = Room(*(each[at : at + part.images] for each in train))
            at += part.images
        fill(content, Rooms((train, test), rooms))
        return Arrays(
            name=kind.name,
            x_train=train.x,
            y_train=train.y.astype(np.int64),
            x_test=test.x,
            y_test=test.y.astype(np.int64),
            classes=kind.classes,
            mean=kind.mean,
            std=kind.std,
        )

    return read


def _each(kind: Kind, suffix: str, fill: Fill) -> FillAll:
    """Return a reader of one file per part."""

    def read(content: Content, rooms: Rooms) -> None:
        for part in kind.parts:
            with content.open(content.paths(part.name + suffix)[0]) as stream:
                fill(stream, rooms.parts[part.name])
                if stream.read(1):
                    raise DamagedError("is longer than it should be")
                _compare(part, rooms.parts[part.name])

    return read


def _packed(kind: Kind, archive: str, suffix: str, fill: Fill) -> FillAll:
    """Return a reader of all parts in one archive, in any order, with other files between them."""

    def read(content: Content, rooms: Rooms) -> None:
        left = {part.name + suffix: part for part in kind.parts}
        with content.open(content.paths(archive)[0]) as stream, tar.members(stream) as found:
            for member in found:
                part = left.pop(member.name, None)
                if part is not None:
                    fill(member.stream, rooms.parts[part.name])
                    _compare(part, rooms.parts[part.name])
            if left:
                raise DamagedError(f"holds no {', '.join(left)}")

    return read


def _compact(kind: Kind) -> FillAll:
    def read(content: Content, rooms: Rooms) -> None:
        for file, room, parts in zip(kind.compact, rooms.splits, (kind.train, (kind.test,)), strict=True):
            with content.open(content.paths(file.name)[0]) as stream, npz.opened(stream) as archive:
                strips.decode(archive, room.x)
                room.y[:] = npz.array(archive, "y", "iu", room.y.shape)
                with ThreadPoolExecutor() as pool:  # hashing releases the GIL
                    list(pool.map(lambda part: _compare(part, rooms.parts[part.name]), parts))

    return read


def _records(kind: Kind) -> Fill:
    """Return a reader of the binary version: for each image its labels, then its pixels."""

    def fill(stream: IO[bytes], room: Room) -> None:
        width = kind.label_bytes + PIXELS
        for start in range(0, len(room.y), BLOCK):
            x, y = room.x[start : start + BLOCK], room.y[start : start + BLOCK]
            records = _exactly(stream, len(y) * width).reshape(-1, width)
            y[:] = records[:, kind.label_bytes - 1]
            x[:] = _interleaved(records[:, kind.label_bytes :])

    return fill


def _objects(kind: Kind) -> Fill:
    """Return a reader of the python version: a dict of a list of labels and an array [N, 3072] of pixels."""

    def fill(stream: IO[bytes], room: Room) -> None:
        def pixels(source: IO[bytes]) -> None:
            for start in range(0, len(room.y), BLOCK):
                x = room.x[start : start + BLOCK]
                x[:] = _interleaved(_exactly(source, x.size).reshape(-1, PIXELS))

        found = stored.parse(stream, room.x.size, pixels)
        _check_batch(found, kind.label_key, room)
        room.y[:] = found[kind.label_key]

    return fill


def _check_batch(found: Any, key: bytes, room: Room) -> None:
    data = found.get(b"data") if isinstance(found, dict) else None
    labels = found.get(key) if isinstance(found, dict) else None
    if not isinstance(data, stored.ByteArray) or data.shape != (len(room.y), PIXELS) or not data.filled:
        raise DamagedError(f"is no CIFAR file: it holds no array of {len(room.y)} x {PIXELS} bytes named data")
    if not isinstance(labels, list) or len(labels) != len(room.y):
        raise DamagedError(f"is no CIFAR file of this kind: it holds no {len(room.y)} labels named {key.decode()}")
    if not all(isinstance(label, int) and 0 <= label < 256 for label in labels):
        raise DamagedError("is no CIFAR file: its labels are no small numbers")


def _exactly(stream: IO[bytes], size: int) -> UInt8Array:
    raw = stream.read(size)
    if len(raw) != size:
        raise DamagedError("is cut short: its last images are missing")
    return np.frombuffer(raw, np.uint8)


def _interleaved(planes: UInt8Array) -> UInt8Array:
    """View [n, 3072], plane after plane, as [n, 32, 32, 3]."""
    return planes.reshape(-1, 3, SIDE, SIDE).transpose(0, 2, 3, 1)


def _compare(part: Part, room: Room) -> None:
    # hashlib reads the arrays' own memory: nothing is copied
    for what, array, known in (("images", room.x, part.x), ("labels", room.y, part.y)):
        if hashlib.sha256(array.data).hexdigest() != known:
            raise DamagedError(
                f"holds other {what} than it should (the SHA-256 of what {part.name} decodes to differs)"
            )
