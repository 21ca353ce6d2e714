"""The page of a watched run, served to browsers of this machine alone.

The server listens on the loopback address and answers nothing but reads of a few fixed paths. A request must name that
address as its host, so that no page of another site can reach it under a name of its own (DNS rebinding), and the
content policy lets a browser run only the page's own two scripts, whatever names a run holds. A page is rendered when
the run has changed, and rendering takes at most a tenth of the time.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from sparsefed.commands.watch.snapshot import WatchResult, watch
from sparsefed.core.errors import ConfigError, SparseFedError
from sparsefed.flower.journal import COHORTS, REFUSALS
from sparsefed.reports.document import Document, paragraph, section
from sparsefed.reports.to_html import live_files, live_page
from sparsefed.runs import CONFIG, MANIFEST, METRICS
from sparsefed.runs.disk import is_locked

LOOPBACK = "127.0.0.1"
IDLE = 10.0  # seconds after which a connection that sends nothing is closed
SHARE = 10  # rendering takes at most one part in so many of the time
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; "
    "connect-src 'self'; img-src data: blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}  # the chart library compiles its own expressions, hence 'unsafe-eval'; no page can add a script of its own


class RunWatcher:
    """The latest state of a run, read again only when its folder has changed; several threads may look."""

    def __init__(self, folder: Path, most_refused: int | None) -> None:
        self._folder, self._most_refused = folder, most_refused
        self._lock = threading.Lock()
        self._seen: object = None
        self._state = watch(folder, most_refused=most_refused)
        self._page, self._version, self._next = "", "", 0.0

    def state(self) -> WatchResult:
        """Return the run as it stands.

        Raises:
            RunError: The folder holds no run any more, or a damaged one.
        """
        with self._lock:
            return self._read()

    def page(self) -> tuple[str, str]:
        """Return the page and its version; errors of the folder are part of the page, for they may pass."""
        with self._lock:
            if time.monotonic() >= self._next:
                began = time.monotonic()
                self._render()
                self._next = time.monotonic() + SHARE * (time.monotonic() - began)
            return self._page, self._version

    def _read(self) -> WatchResult:
        if (now := _signature(self._folder)) != self._seen:
            self._state, self._seen = watch(self._folder, most_refused=self._most_refused), now
        return self._state

    def _render(self) -> None:
        before = self._state if self._page else None
        try:
            state = self._read()
            if state is before and self._version:
                return
            document = state.document()
        except (SparseFedError, OSError) as error:
            self._seen = None
            problem = section("Now", paragraph(str(error), kind="warning"))
            document = Document(f"Not readable: {self._folder.name}", "", (problem,), heading="SparseFed watch")
        version = hashlib.sha256(live_page(document, "").encode()).hexdigest()[:16]
        self._page, self._version = live_page(document, version), version


class LivePage:
    """A page on this machine that follows a run; use it in a `with` block."""

    def __init__(self, run: str | Path, *, port: int = 0, most_refused: int | None = None) -> None:
        """Read the run and open the port.

        Args:
            run: the run folder of a simulation or of a deployment.
            port: the port on the loopback address; 0 for any free one.
            most_refused: the most refused or missing replies that a round may have; more is an alert.

        Raises:
            RunError: The folder holds no run, or a damaged one.
            ConfigError: The port cannot be used.
        """
        self.watcher = RunWatcher(Path(run), most_refused)
        if not 0 <= port <= 65535:
            raise ConfigError(f"port is {port}, but must be from 1 to 65535, or 0 for any free one")
        try:
            self._server = _Server((LOOPBACK, port), _Handler)
        except OSError as error:
            raise ConfigError(f"port {port} cannot be used ({error.strerror}); choose another with --port") from error
        self._server.watcher, self._server.files = self.watcher, live_files()
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)

    @property
    def address(self) -> str:
        """The address to open in a browser."""
        return f"http://{LOOPBACK}:{self._server.server_port}/"

    def __enter__(self) -> LivePage:
        self.watcher.page()  # the first one takes longest; a browser finds it ready
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    watcher: RunWatcher
    files: dict[str, tuple[str, str]]

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 - a browser that went away
        return


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = IDLE
    server_version, sys_version = "sparsefed", ""
    protocol_version = "HTTP/1.0"  # a connection for each request: none outlives the server

    def do_GET(self) -> None:
        port = self.server.server_port
        if self.headers.get("Host") not in (f"{LOOPBACK}:{port}", f"localhost:{port}"):
            self._answer(HTTPStatus.MISDIRECTED_REQUEST, "text/plain", "This page answers to its own address alone.\n")
        elif self.path == "/":
            self._page()
        elif self.path in self.server.files:
            self._answer(HTTPStatus.OK, *self.server.files[self.path])
        else:
            self._answer(HTTPStatus.NOT_FOUND, "text/plain", "There is nothing here; the page is at /.\n")

    def _page(self) -> None:
        page, version = self.server.watcher.page()
        if self.headers.get("If-None-Match") == f'"{version}"':
            self._answer(HTTPStatus.NOT_MODIFIED, "", "", version)
        else:
            self._answer(HTTPStatus.OK, "text/html", page, version)

    def _answer(self, status: HTTPStatus, kind: str, text: str, version: str = "") -> None:
        body = text.encode()
        self.send_response(status)
        for name, value in HEADERS.items():
            self.send_header(name, value)
        if kind:
            self.send_header("Content-Type", f"{kind}; charset=utf-8")
        if version:
            self.send_header("ETag", f'"{version}"')
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        return


def _signature(folder: Path) -> tuple[object, ...]:
    """Return what changes with the folder: the times and sizes of its files, and whether a process works on it."""
    return (*(_stat(folder / name) for name in (CONFIG, MANIFEST, METRICS, REFUSALS, COHORTS)), is_locked(folder))


def _stat(path: Path) -> tuple[int, int, int] | None:
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
