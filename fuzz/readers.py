"""Fuzzing targets for everything that reads data: file formats, packages, folders of images, arrays and options.

The good files are made on the spot by the writers of the tests, which share no code with the readers. A file is
damaged as a whole or in one of the parts that it is packed of, so that mutations get past its outer checksums. Where a
record states a checksum, it states that of the damaged file: the parser must hold by itself.
"""

from __future__ import annotations

import gzip
import io
import json
import lzma
import os
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from tests.support import data_synthetic as tiny
from tests.support import images_synthetic as images

from fuzz import mutate
from fuzz.driver import Call, MakeCase
from sparsefed import data
from sparsefed.data import own
from sparsefed.data.formats import jsonl, tokens
from sparsefed.data.partitions.partition import PARTITIONS
from sparsefed.data.record import DataFile, DataSet
from sparsefed.data.sets import cifar, cifar10, femnist, mnist_by_writer, reddit, shakespeare
from sparsefed.data.sets.text_sets import text_set
from sparsefed.data.sources import archive
from sparsefed.server import Server

CORPUS = Path(__file__).with_name("corpus")
Random = np.random.Generator
Parts = Mapping[str, bytes]


@dataclass(frozen=True)
class Form:
    """One file format: the parts of a good file, how they are packed, and the reader of the whole."""

    parts: Parts
    pack: Callable[[Parts], bytes]
    read: Callable[[bytes], object]

    def case(self, random: Random) -> tuple[str, Call]:
        """Return a damaged file and the call that reads it."""
        if random.random() < 0.4:
            done, raw = mutate.some(random, self.pack(self.parts))
            return done, lambda: self.read(raw)
        name = sorted(self.parts)[int(random.integers(len(self.parts)))]
        if name.endswith(".npy") and random.random() < 0.5:
            done, part = odd_npy(random)
        else:
            done, part = mutate.some(random, self.parts[name])
        return f"{name}: {done}", lambda: self.read(self.pack({**self.parts, name: part}))


def loaded(record: DataSet, files: Parts) -> object:
    """Load a data set from a folder with these files."""
    with tempfile.TemporaryDirectory() as folder:
        before = os.environ.get("SPARSEFED_DATA"), os.environ.get("XDG_CACHE_HOME")
        os.environ["SPARSEFED_DATA"], os.environ["XDG_CACHE_HOME"] = folder, folder
        try:
            images.write(Path(folder) / (record.folders[0] if record.folders else record.name), files)
            return data.load(record)
        finally:
            for name, value in zip(("SPARSEFED_DATA", "XDG_CACHE_HOME"), before, strict=True):
                os.environ.pop(name) if value is None else os.environ.update({name: value})


def believed(name: str, raw: bytes) -> DataFile:
    """Return the record of a file that takes this content for the right one."""
    return DataFile(name, len(raw), images.sha(raw))


def only(parts: Parts) -> bytes:
    """Return the one part of a file that is not packed."""
    return next(iter(parts.values()))


# --- arrays in files -------------------------------------------------------------------------------------------------

TYPES = ("'|O'", "'<c16'", "'<M8[s]'", "'>i4'", "'>f8'", "'<f2'", "'|V8'", "'|S3'", "'<U2'", "'|b1'", "'<u8'", "'x'")
FIELDS = ("[('a', '<i4')]", "[('a', '|O')]", "7", "None", "('<i4', (3,))")
SHAPES = (
    *("()", "(0,)", "(1,)", "(10,)", "(1 << 40,)", "(1099511627776,)", "(-1,)", "(True,)", "(2, 3, 5, 7)", "5", "'a'"),
    *("(4611686018427387904, 4)", "(4611686018427387904, 4, 0)", "(" * 300 + ")" * 300, "(10, 28, 28)"),
)


def npy(kind: str, shape: str, content: bytes = b"", order: str = "False") -> bytes:
    """Return an .npy file with any header."""
    header = f"{{'descr': {kind}, 'fortran_order': {order}, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + content


def odd_npy(random: Random) -> tuple[str, bytes]:
    """Return an .npy file of an unexpected type or shape."""
    kinds = (*TYPES, *FIELDS)
    kind, shape = kinds[int(random.integers(len(kinds)))], SHAPES[int(random.integers(len(SHAPES)))]
    size = int(random.choice([0, 1, 40, 80, 7840]))
    return f"type {kind}, shape {shape}, {size} bytes", npy(kind, shape, random.bytes(size))


def to_npy(array: Any) -> bytes:
    out = io.BytesIO()
    np.lib.format.write_array(out, np.asarray(array))
    return out.getvalue()


def zipped(parts: Parts) -> bytes:
    """Return a zip archive, deflated."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as file:
        for name, raw in parts.items():
            file.writestr(name, raw)
    return out.getvalue()


def _idx(raw: bytes) -> object:
    good = tiny.tiny()
    return loaded(replace(good, files=(believed(tiny.IMAGES, raw), good.files[1])), {**tiny.FILES, tiny.IMAGES: raw})


def _by_writer(raw: bytes) -> object:
    file = believed(mnist_by_writer.FILE.name, raw)
    return loaded(replace(mnist_by_writer.DATASET, files=(file,)), {file.name: raw})


def _writers() -> Parts:
    random = np.random.default_rng(0)
    x, y = random.integers(0, 256, (10, 28, 28), np.uint8), np.arange(10, dtype=np.uint8)
    arrays = {"images": x, "labels": y, "writer": np.arange(10) // 2, "is_test": np.arange(10) % 5 == 0}
    return {f"{name}.npy": to_npy(array) for name, array in arrays.items()}


SMALL = images.SMALL["cifar100"]


def _strips(parts: Parts) -> bytes:
    raw = b"".join(part for name, part in parts.items() if name.startswith("strip"))
    webp = npy("'|u1'", f"({len(raw)},)", raw)
    return zipped({"webp.npy": webp, **{name: part for name, part in parts.items() if name.endswith(".npy")}})


def _strip_parts() -> Parts:
    x, y = SMALL.x["test"], SMALL.y["test"]
    strips = [images.webp(x[:3].reshape(-1, 32, 3)), images.webp(x[3:].reshape(-1, 32, 3))]
    offsets = np.cumsum([0, *map(len, strips)])
    return {"strip0": strips[0], "strip1": strips[1], "offsets.npy": to_npy(offsets), "y.npy": to_npy(y)}


def _compact(raw: bytes) -> object:
    train, test = SMALL.kind.compact
    kind = replace(SMALL.kind, compact=(train, believed(test.name, raw)))
    return loaded(cifar.dataset(kind, ()), {**SMALL.packed, test.name: raw})


def _python(raw: bytes) -> object:
    return loaded(SMALL.dataset(), {**SMALL.forms()["python"], "test": raw})


def _cifar_archive(which: int) -> Callable[[bytes], object]:
    return lambda raw: loaded(SMALL.dataset(), {f"{SMALL.kind.archives[which]}.gz": raw})


# --- text ------------------------------------------------------------------------------------------------------------


def _leaf(record: DataSet, good: bytes) -> Callable[[bytes], object]:
    return lambda raw: loaded(record, {"train/a.json": raw, "test/a.json": good})


def _jsonl(raw: bytes) -> object:
    file = believed("lines.jsonl", raw)
    split = tokens.words

    def parts(content: Any) -> tuple[tokens.Texts, tokens.Texts]:
        return tokens.held_out(jsonl.parse(content(file.name), split, file.name))

    return loaded(text_set("lines", parts, 50, 10, description="lines", files=(file,)), {file.name: raw})


LINES = b"".join(json.dumps({"user": i % 3, "text": f"so it goes {i}"}).encode() + b"\n" for i in range(60))
PEOPLE = {name: (np.full((4, 28, 28), 7 * i, np.uint8), [i, 1, 2, 3]) for i, name in enumerate(("f1", "f2"))}
COMMENT = [["<BOS>", "so", "it", "goes", "<EOS>", "<PAD>"]]
COMMENTS = {"ann": {"x": [COMMENT] * 3, "y": [{"target_tokens": []}] * 3}, "bob": {"x": [COMMENT], "y": [{}]}}
WINDOWS = {"HAMLET": {"x": ["to be", "o be "], "y": [" ", "o"]}, "LEAR": {"x": ["never"], "y": ["!"]}}


def _as_leaf(users: Mapping[str, Any]) -> bytes:
    counts = [len(each["x"]) for each in users.values()]
    return json.dumps({"users": list(users), "num_samples": counts, "user_data": users}).encode()


# --- packages --------------------------------------------------------------------------------------------------------


@cache
def _package() -> Parts:
    files: dict[str, bytes] = {}
    for name in ("data_batch_1", "test_batch"):
        out = io.BytesIO()
        Image.fromarray(np.arange(6 * 1024 * 3, dtype=np.uint32).astype(np.uint8).reshape(6, 1024, 3)).save(out, "PNG")
        files[f"package/{name}.png"] = out.getvalue()
    return {**files, "package/train_lables.json": b"[1,2,3,4,5,6]", "package/test_lables.json": b"[6,5,4,3,2,1]"}


def _official(raw: bytes) -> object:
    wanted = [DataFile(f"{name}.bin", 6 * 3073) for name in ("data_batch_1", "test_batch")]
    batch = cifar10.BATCH
    cifar10.BATCH = 6
    try:
        return _scratch(raw, lambda path, scratch: list(cifar10.official_files(path, wanted, scratch)))
    finally:
        cifar10.BATCH = batch


def _unpacked(raw: bytes) -> object:
    return _scratch(raw, lambda path, scratch: list(archive.unpacked(path, tiny.tiny().files, scratch)))


def _scratch(raw: bytes, use: Callable[[Path, Path], object]) -> object:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "package.tgz"
        path.write_bytes(raw)
        return use(path, Path(folder))


# --- a saved server --------------------------------------------------------------------------------------------------


@cache
def _saved() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "server.safetensors"
        Server("sparsefed", like=np.zeros(4, np.float32), k=2).save(path)
        return path.read_bytes()


def _server(raw: bytes) -> object:
    return _scratch(raw, lambda path, _: Server.load(path, "sparsefed", np.zeros(4, np.float32), k=2))


# --- one's own data --------------------------------------------------------------------------------------------------

FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF")


@cache
def _pictures() -> Parts:
    pixels = np.random.default_rng(0).integers(0, 256, (9, 8, 3), np.uint8)
    files = {}
    for kind in FORMATS:
        out = io.BytesIO()
        Image.fromarray(pixels).save(out, kind)
        files[f"a.{kind.lower()}"] = out.getvalue()
    return files


def folder_case(random: Random) -> tuple[str, Call]:
    """Return a folder of images of which one is damaged, perhaps in folders with odd names."""
    good = _pictures()
    name = sorted(good)[int(random.integers(len(good)))]
    done, raw = mutate.some(random, good[name])
    classes = [b"cat", (b"dog", b"\xff\xfe", b"\x1b[31m", b"a" * 255, "ä".encode())[int(random.integers(5))]]
    split = random.random() < 0.5
    size = ((6, 6), None)[int(random.integers(2))]

    def call() -> object:
        with tempfile.TemporaryDirectory() as folder:
            for part in ("train", "test") if split else (".",):
                for each in classes:
                    place = Path(os.fsdecode(os.path.join(os.fsencode(folder), part.encode(), each)))  # noqa: PTH118
                    images.write(place, {name: raw, "b.png": good["a.png"], "c.webp": good["a.webp"]})
            return data.load(own.from_folder(folder, size=size))

    return f"{name}: {done}; classes {classes}, train and test {split}, size {size}", call


def _odd_array(random: Random, n: int) -> Any:
    """Return an array of n things, usually, of any type and shape."""
    shapes = ((n,), (n, 3), (n, 4, 4), (n, 4, 4, 3), (n, 3, 4, 4), (), (0,), (n, 0), (1, n, 1, 1, 1), (n + 1, 2))
    shape = shapes[int(random.integers(len(shapes)))]
    kinds = ("u1", "i8", ">i4", ">f8", "f2", "c16", "M8[s]", "m8[s]", "S3", "U2", "O", "?", "u8", "V4", "i4,f4", "g")
    kind = kinds[int(random.integers(len(kinds)))]
    raw = random.bytes(int(np.prod(shape)) * np.dtype(kind).itemsize)
    if kind == "O":
        things = (None, "a", 3, 2.5, [1], {"a": 1}, np.zeros(2), object())
        out = np.empty(shape, object)
        out.reshape(-1)[:] = [things[i % len(things)] for i in range(out.size)]
        return out
    if kind in ("U2", "S3", "?"):
        return random.integers(0, 2, shape).astype(kind)
    array = np.frombuffer(raw, kind).reshape(shape)
    return array if random.random() < 0.5 or array.dtype.kind not in "iuf" else np.abs(np.nan_to_num(array)) % 3


def _odd_value(random: Random, n: int) -> Any:
    values: tuple[Any, ...] = (
        *(None, 3, "abc", b"x", {"a": 1}, [[1], [1, 2]], [None] * n, ["a", 1] * (n // 2), list("ab") * (n // 2)),
        *([10**30] * n, [float("nan")] * n, [-1] * n, [2**62] * n, ["\ud800"] * n, ["\x1b[31m"] * n, list(range(n))),
    )
    which = int(random.integers(2 * len(values)))
    return values[which] if which < len(values) else _odd_array(random, n)


def _share(random: Random) -> Any:
    return (0.2, 0.2, 0.5, 0, 1, -1, float("nan"), float("inf"), "x", None, True)[int(random.integers(11))]


def arrays_case(random: Random) -> tuple[str, Call]:
    """Return arrays or lists as a data set, one or two of them of any type."""
    n = 10
    odd = set(random.choice(["x", "y", "users", "test", "classes", "share"], int(random.integers(1, 3))).tolist())
    tables: tuple[Any, ...] = (np.zeros((n, 4, 4), np.uint8), np.ones((n, 3)), np.arange(2 * n).reshape(n, 2))
    good = tables[int(random.integers(len(tables)))]
    x = _odd_value(random, n) if "x" in odd else good
    y = _odd_value(random, n) if "y" in odd else list("ab") * (n // 2)
    users = _odd_value(random, n) if "users" in odd else None
    test = (good, _odd_value(random, n)) if "test" in odd else None
    choices: tuple[Any, ...] = (("a", "b"), (), 5, "ab", (1, 2), ("a", "a"), ("a", "b", "c"))
    classes = choices[int(random.integers(len(choices)))] if "classes" in odd else None
    share = _share(random) if "share" in odd else 0.2
    described = f"x {_brief(x)}, y {_brief(y)}, users {_brief(users)}, test {_brief(test)}, classes {classes}, {share}"
    return described, lambda: data.load(own.from_arrays(x, y, users, test, classes, share))


def _brief(thing: Any) -> str:
    if isinstance(thing, Image.Image):
        return "a picture"
    return f"{thing.dtype}{list(thing.shape)}" if isinstance(thing, np.ndarray) else repr(thing)[:80]


class Rows:
    """A stand-in for Hugging Face's `Dataset`: named columns and rows."""

    def __init__(self, columns: Mapping[str, Any]) -> None:
        self.columns, self.column_names = columns, list(columns)

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitem__(self, key: Any) -> Any:
        return self.columns[key] if isinstance(key, str) else {k: v[key] for k, v in self.columns.items()}


def rows_case(random: Random) -> tuple[str, Call]:
    """Return columns of anything as a data set."""
    n = 10
    picture = Image.fromarray(np.zeros((4, 4, 3), np.uint8))
    value, other = _odd_value(random, n), _odd_value(random, n)
    x: list[Any] = ([picture] * n, [value] * n, [value, other] * (n // 2))[int(random.integers(3))]
    label = _odd_value(random, n)
    y = [0, 1] * (n // 2) if random.random() < 0.6 else label if isinstance(label, list) else [label] * n
    size: Any = (None, None, None, (2, 2), (0, 0), (-1, 3), "ab", 5)[int(random.integers(8))]
    rows = Rows({"image": x, "label": y})
    described = f"images {_brief(x[0])}, labels {_brief(y)}, size {size}"
    return described, lambda: data.load(own.from_huggingface(rows, size=size))


# --- options ---------------------------------------------------------------------------------------------------------

WHOLE = (0, 1, -1, 4, 5, 2**31, 10**12, 10**18, 2**63 - 1, 2**63, 10**30, True, 2.5, float("nan"), "7", None)


def _whole(random: Random) -> Any:
    return WHOLE[int(random.integers(len(WHOLE)))]


def options_case(random: Random) -> tuple[str, Call]:
    """Return a text with any vocabulary and sequence length."""
    vocabulary, length = _whole(random), _whole(random)
    texts = {"ann": [["so", "it", "goes"]] * 20}
    record = text_set("small", lambda _: tokens.held_out(texts), 50, 10, description="small", carried_by="fuzz")
    assert record.resized is not None
    resized = record.resized
    return f"vocabulary {vocabulary!r}, length {length!r}", lambda: data.load(resized(vocabulary, length))


def partition_case(random: Random) -> tuple[str, Call]:
    """Return a partition into any number of devices."""
    name = sorted(PARTITIONS)[int(random.integers(len(PARTITIONS)))]
    whole = [value for value in WHOLE if value is None or type(value) is int]  # what a config lets through
    devices, each = (whole[int(i)] for i in random.integers(len(whole), size=2))
    labels, users = np.arange(40) % 4, np.arange(40) % 8
    rule = PARTITIONS[name]
    return f"{name}, {devices} devices of {each}", lambda: rule(labels, users, devices, each, 0)


# --- the targets -----------------------------------------------------------------------------------------------------


def _small_tar(suffix: str, write: Callable[[str], bytes]) -> Parts:
    return {f"cifar/{name}{suffix}": write(name) for name in SMALL.names}


IMAGES = tiny.FILES[tiny.IMAGES]
TINY_GZ = {tiny.IMAGES: IMAGES}
FORMS: Mapping[str, Form] = {
    "idx": Form(TINY_GZ, only, _idx),
    "gzip": Form(
        TINY_GZ,
        lambda p: gzip.compress(only(p)),
        lambda raw: loaded(tiny.tiny(), {**_labels(), f"{tiny.IMAGES}.gz": raw}),
    ),
    "xz": Form(
        TINY_GZ,
        lambda p: lzma.compress(only(p)),
        lambda raw: loaded(tiny.tiny(), {**_labels(), f"{tiny.IMAGES}.xz": raw}),
    ),
    "npz": Form(_writers(), zipped, _by_writer),
    "webp strips": Form(_strip_parts(), _strips, _compact),
    "CIFAR pickle": Form({"test": SMALL.python("test")}, only, _python),
    "CIFAR archive": Form(_small_tar(".bin", SMALL.binary), images.tarball, _cifar_archive(0)),
    "CIFAR pickle archive": Form(_small_tar("", SMALL.python), images.tarball, _cifar_archive(1)),
    "FEMNIST JSON": Form({"a": images.leaf(PEOPLE)}, only, _leaf(femnist.DATASET, images.leaf(PEOPLE))),
    "Reddit JSON": Form({"a": _as_leaf(COMMENTS)}, only, _leaf(reddit.LEAF, _as_leaf(COMMENTS))),
    "Shakespeare JSON": Form({"a": _as_leaf(WINDOWS)}, only, _leaf(shakespeare.LEAF, _as_leaf(WINDOWS))),
    "JSON lines": Form({"a": LINES}, only, _jsonl),
    "npm PNG package": Form(_package(), images.tarball, _official),
    "safetensors": Form({"server": _saved()}, only, _server),
    "tar package": Form({f"p/{n}": raw for n, raw in tiny.FILES.items()}, images.tarball, _unpacked),
}


def _labels() -> Parts:
    return {tiny.LABELS: tiny.FILES[tiny.LABELS]}


TARGETS: Mapping[str, MakeCase] = {
    **{name: form.case for name, form in FORMS.items()},
    "image folder": folder_case,
    "arrays": arrays_case,
    "rows": rows_case,
    "text options": options_case,
    "partitions": partition_case,
}


def kept() -> Iterator[tuple[str, str, Call]]:
    """Yield the good file of every format, then the damaged ones that once ended badly: corpus/<format>/<what>."""
    for name, form in FORMS.items():
        yield name, "nothing changed", lambda form=form: form.read(form.pack(form.parts))  # type: ignore[misc]
    for path in sorted(CORPUS.glob("*/*")):
        raw = path.read_bytes()
        yield path.parent.name, path.name, lambda raw=raw, path=path: FORMS[path.parent.name].read(raw)  # type: ignore[misc]
