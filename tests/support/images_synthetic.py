"""A CIFAR of a few images in every form in which the real one is passed on, and LEAF's and npm's files.

Each writer follows the published description of its format and shares no code with the readers.
"""

from __future__ import annotations

import hashlib
import io
import json
import struct
import tarfile
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from sparsefed.core.types import UInt8Array
from sparsefed.data.record import DataFile, DataSet, Source
from sparsefed.data.sets import cifar, cifar10, cifar100

generator = np.random.default_rng(7)


def sha(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()


class Small:
    """As many images as `sizes` says, in the parts of a real CIFAR data set."""

    def __init__(self, kind: cifar.Kind, sizes: Sequence[int]) -> None:
        self.names = [part.name for part in kind.parts]
        self.x = {
            n: generator.integers(0, 256, (k, 32, 32, 3), np.uint8) for n, k in zip(self.names, sizes, strict=True)
        }
        self.y = {n: generator.integers(0, 10, k).astype(np.uint8) for n, k in zip(self.names, sizes, strict=True)}
        self.coarse = kind.label_bytes == 2
        self.key = kind.label_key.decode()
        parts = [
            cifar.Part(n, len(self.y[n]), sha(self.x[n].tobytes()), sha(self.y[n].tobytes()), sha(self.binary(n)))
            for n in self.names
        ]
        packed = [self.compact(self.names[:-1]), self.compact(self.names[-1:])]
        files = [DataFile(f.name, len(raw), sha(raw)) for f, raw in zip(kind.compact, packed, strict=True)]
        self.kind = replace(kind, train=tuple(parts[:-1]), test=parts[-1], compact=(files[0], files[1]))
        self.packed = {file.name: raw for file, raw in zip(files, packed, strict=True)}

    def dataset(self, *sources: Source) -> DataSet:
        return cifar.dataset(self.kind, sources)

    def binary(self, name: str) -> bytes:
        """One record an image: (coarse label,) label, 1024 red, 1024 green, 1024 blue bytes."""
        rows = zip(self.x[name], self.y[name].tolist(), strict=True)
        return b"".join(
            bytes([0] * self.coarse + [y]) + b"".join(x[..., c].tobytes() for c in range(3)) for x, y in rows
        )

    def python(self, name: str) -> bytes:
        """What Python 2 wrote with protocol 2."""
        planes = b"".join(x[..., c].tobytes() for x in self.x[name] for c in range(3))
        labels = b"]q\x05(" + b"".join(b"K" + bytes([y]) for y in self.y[name].tolist()) + b"e"
        files = b"]q\x10(" + b"".join(short(f"image_{i}.png") for i in range(len(self.y[name]))) + b"e"
        return (
            b"\x80\x02}q\x01("
            + (short("batch_label") + b"q\x02" + short("training batch") + b"q\x03")
            + (short(self.key) + b"q\x04" + labels)
            + (short("data") + b"q\x06" + stored_array(planes, (len(self.y[name]), 3072)))
            + (short("filenames") + b"q\x0f" + files)
            + b"u."
        )

    def compact(self, names: Sequence[str]) -> bytes:
        """Strips of at most 3 images."""
        x, y = np.concatenate([self.x[n] for n in names]), np.concatenate([self.y[n] for n in names])
        raw = [webp(x[i : i + 3].reshape(-1, 32, 3)) for i in range(0, len(x), 3)]
        offsets = np.cumsum([0, *(len(r) for r in raw)])
        return npz(webp=np.frombuffer(b"".join(raw), np.uint8), offsets=offsets, y=y)

    def archive(self, suffix: str, write: Callable[[str], bytes]) -> bytes:
        """A .tar.gz in an order of its own, with a folder and a file that nobody wants."""
        files = {f"some-folder/{n}{suffix}": write(n) for n in sorted(self.names, reverse=True)}
        return tarball({"some-folder/readme.html": b"<html></html>", **files})

    def forms(self) -> dict[str, dict[str, bytes]]:
        """Form -> file name -> content on disk."""
        binary, python = self.kind.archives
        return {
            "binary": {f"{n}.bin": self.binary(n) for n in self.names},
            "compact": dict(self.packed),
            "binary archive": {f"{binary}.gz": self.archive(".bin", self.binary)},
            "python archive": {f"{python}.gz": self.archive("", self.python)},
            "python": {n: self.python(n) for n in self.names},
        }


def short(text: str) -> bytes:
    return b"U" + bytes([len(text)]) + text.encode()


def stored_array(raw: bytes, shape: tuple[int, int]) -> bytes:
    """NumPy's array of bytes, as Python 2 stored it."""
    ints = b"".join(b"M" + struct.pack("<H", n) for n in shape)
    kind = b"cnumpy\ndtype\nq\x0a" + short("u1") + b"q\x0bK\x00K\x01\x87q\x0cRq\x0d(K\x03" + short("|")
    kind += b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    return (
        b"cnumpy.core.multiarray\n_reconstruct\nq\x07cnumpy\nndarray\nq\x08K\x00\x85q\x09" + short("b") + b"\x87R"
        b"(K\x01" + ints + b"\x86" + kind + b"\x89T" + struct.pack("<I", len(raw)) + raw + b"tb"
    )


def webp(column: UInt8Array) -> bytes:
    out = io.BytesIO()
    Image.fromarray(column).save(out, "WEBP", lossless=True, quality=0, method=0)
    return out.getvalue()


def npz(**arrays: Any) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w") as member:
                np.lib.format.write_array(member, np.asarray(array))
    return out.getvalue()


def tarball(files: Mapping[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for name, raw in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(raw)
            tar.addfile(entry, io.BytesIO(raw))
    return out.getvalue()


SMALL = {
    "cifar10": Small(cifar10.KIND, (4, 5, 4, 4, 3, 7)),
    "cifar100": Small(cifar100.KIND, (11, 5)),
}


def leaf(users: Mapping[str, tuple[UInt8Array, Sequence[int]]]) -> bytes:
    """What LEAF's script writes for some users: images as levels divided by 255."""
    return json.dumps(
        {
            "users": list(users),
            "num_samples": [len(y) for _, y in users.values()],
            "user_data": {
                user: {"x": (x.reshape(len(y), -1) / 255).tolist(), "y": list(y)} for user, (x, y) in users.items()
            },
        }
    ).encode()


def write(folder: Path, files: Mapping[str, bytes]) -> None:
    for name, raw in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(raw)
