"""A tiny data set with the shape of a real one, an apt repository and a web server to fetch it from."""

from __future__ import annotations

import gzip
import hashlib
import struct
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np

from sparsefed.core.types import Arrays, UInt8Array
from sparsefed.data.formats import idx
from sparsefed.data.record import Content, DataFile, DataSet, Source

IMAGES, LABELS = "tiny-images", "tiny-labels"
PIXELS: UInt8Array = np.arange(6 * 4 * 4, dtype=np.uint8).reshape(6, 4, 4)
CLASSES: UInt8Array = np.array([0, 1, 0, 1, 0, 1], dtype=np.uint8)


def to_idx(array: UInt8Array) -> bytes:
    """An array in the IDX format, written from its definition."""
    return bytes([0, 0, 8, array.ndim]) + b"".join(struct.pack(">I", n) for n in array.shape) + array.tobytes()


FILES: Mapping[str, bytes] = {IMAGES: to_idx(PIXELS), LABELS: to_idx(CLASSES)}


def read(content: Content) -> Arrays:
    x = idx.parse(content(IMAGES), (6, 4, 4), IMAGES)[..., None]
    y = idx.parse(content(LABELS), (6,), LABELS).astype(np.int64)
    return Arrays("tiny", x[:4], y[:4], x[4:], y[4:], ("even", "odd"), (0.5,), (0.5,))


def tiny(*sources: Source) -> DataSet:
    """The tiny data set, fetched from the given sources."""
    files = tuple(DataFile(name, len(data), hashlib.sha256(data).hexdigest()) for name, data in FILES.items())
    return DataSet("tiny", "for tests", read, files, folders=("tiny-set",), sources=sources)


def put(folder: Path, zipped: bool = False, **changed: bytes) -> None:
    """Write the files into a folder; `changed` replaces the bytes on disk of one of them ("images", "labels")."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in FILES.items():
        given = changed.get(name.removeprefix("tiny-"))
        path = folder / (name + ".gz" * zipped)
        path.write_bytes(given if given is not None else gzip.compress(data) if zipped else data)


class Server(ThreadingHTTPServer):
    """Serves bytes from a dict. With `cut`, it promises everything and hangs up halfway; with `hang`, it never ends."""

    daemon_threads = True

    def __init__(self, pages: Mapping[str, bytes], cut: bool = False, hang: bool = False) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.pages, self.cut = dict(pages), cut
        self.seen: list[str] = []
        self.halfway, self.go_on = threading.Event(), threading.Event()
        if not hang:
            self.go_on.set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        page = self.path.removeprefix("/")
        self.server.seen.append(page)
        body = self.server.pages.get(page)
        self.send_response(404 if body is None else 200)
        self.send_header("Content-Length", str(len(body or b"")))
        self.end_headers()
        half = len(body or b"") // 2
        self.wfile.write((body or b"")[:half])
        self.server.halfway.set()
        if self.server.go_on.wait(30) and not self.server.cut:
            self.wfile.write((body or b"")[half:])

    def log_message(self, *_: object) -> None:
        """Say nothing: the test speaks."""


def zipped_pages(**changed: bytes) -> dict[str, bytes]:
    """What a good mirror serves; `changed` replaces the decompressed content of one file."""
    return {f"{n}.gz": gzip.compress(changed.get(n.removeprefix("tiny-"), data)) for n, data in FILES.items()}


@contextmanager
def serving(pages: Mapping[str, bytes], cut: bool = False, hang: bool = False) -> Iterator[Server]:
    """A real web server on loopback, for as long as the block lasts."""
    server = Server(pages, cut, hang)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.go_on.set()
        server.shutdown()
        thread.join()
        server.server_close()


def apt_repository(folder: Path, package: str) -> tuple[str, ...]:
    """A real package in a real repository on disk, and the apt settings of a machine that knows nothing else.

    The machine's lists, empty at first, are in `folder/system`: whatever goes wrong, the real ones are not touched.
    """
    (folder / "system/lists/partial").mkdir(parents=True)
    put(folder / "tree/usr/share/datasets/tiny-set", zipped=True)
    (folder / "tree/DEBIAN").mkdir()
    control = f"Package: {package}\nVersion: 1\nArchitecture: all\nMaintainer: a <a@example.org>\nDescription: tiny\n"
    (folder / "tree/DEBIAN/control").write_text(control)
    deb = folder / f"{package}.deb"
    subprocess.run(["dpkg-deb", "--root-owner-group", "-b", folder / "tree", deb], check=True, capture_output=True)
    data = deb.read_bytes()
    entry = f"{control}Filename: ./{deb.name}\nSize: {len(data)}\nSHA256: {hashlib.sha256(data).hexdigest()}\n"
    (folder / "Packages").write_text(entry)
    (folder / "sources.list").write_text(f"deb [trusted=yes] file:{folder} ./\n")
    return (
        f"Dir::Etc::sourcelist={folder / 'sources.list'}",
        "Dir::Etc::sourceparts=-",
        f"Dir::State={folder / 'system'}",
    )
