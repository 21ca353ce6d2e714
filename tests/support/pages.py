"""What tests of pages need: a browser that is spoken to over a pipe, and the text of a page."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
BOXES = Path(__file__).with_name("boxes.js").read_text(encoding="utf-8")  # finds texts that are cut off or hard to read
BROWSER = next(filter(None, map(shutil.which, BROWSERS)), None)
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--remote-debugging-pipe"),
    *("--disable-dev-shm-usage", "--disable-extensions"),
)


class Page:
    """One tab, by the DevTools protocol: requests out, answers and events in, each ended by a zero byte."""

    def __init__(self, send: int, receive: int) -> None:
        self.send, self.receive, self.rest, self.asked, self.session = send, receive, b"", 0, ""
        self.events: list[Mapping[str, Any]] = []
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")

    def ask(self, method: str, **params: Any) -> Any:
        self.asked += 1
        message = {"id": self.asked, "method": method, "params": params}
        message |= {"sessionId": self.session} if self.session else {}
        os.write(self.send, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != self.asked:
            self.events.append(answer)
        assert "error" not in answer, answer
        return answer["result"]

    def _next(self) -> Mapping[str, Any]:
        while b"\0" not in self.rest:
            ready, _, _ = select.select([self.receive], [], [], 20)
            part = os.read(self.receive, 1 << 20) if ready else b""
            assert part, "the browser has gone away or does not answer"
            self.rest += part
        message, self.rest = self.rest.split(b"\0", 1)
        answer: Mapping[str, Any] = json.loads(message)
        return answer

    def value(self, expression: str) -> Any:
        answer = self.ask("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def open(self, path: Path, width: int = 1280, scheme: str = "light") -> None:
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 600)
        self.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.ask("Page.navigate", url=path.resolve().as_uri())
        self.until("document.documentElement?.classList.contains('drawn')")

    def until(self, expression: str, seconds: float = 15) -> None:
        end = time.monotonic() + seconds
        while not self.value(expression):
            assert time.monotonic() < end, f"still not true after {seconds} s: {expression}"
            time.sleep(0.05)

    def picture(self, path: Path) -> None:
        shot = self.ask("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(shot["data"]))

    def complaints(self) -> list[Mapping[str, Any]]:
        said = [e for e in self.events if e.get("method") == "Runtime.consoleAPICalled"]
        loud = [e for e in said if e["params"]["type"] in ("error", "warning", "assert")]
        return loud + [e for e in self.events if e.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded")]

    def requests(self) -> list[str]:
        sent = [e for e in self.events if e.get("method") == "Network.requestWillBeSent"]
        return [e["params"]["request"]["url"] for e in sent]


@contextmanager
def browser(profile: Path) -> Iterator[Page]:
    """A browser of our own with an empty profile; it is ended with the block, whatever happens in it."""
    assert BROWSER is not None
    (ours_in, theirs_out), (theirs_in, ours_out) = os.pipe(), os.pipe()
    # The protocol's pipes are file descriptors 3 (in) and 4 (out) of the browser.
    shell = f'exec "$@" 3</dev/fd/{theirs_in} 4>/dev/fd/{theirs_out}'
    process = subprocess.Popen(
        ["sh", "-c", shell, "sh", BROWSER, *FLAGS, f"--user-data-dir={profile}"],
        pass_fds=(theirs_in, theirs_out),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(theirs_in)
    os.close(theirs_out)
    try:
        yield Page(ours_out, ours_in)
    finally:
        os.close(ours_out)
        os.close(ours_in)
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)


def luminance(color: str) -> float:
    """Relative luminance as WCAG 2 defines it."""
    parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


class Text(HTMLParser):
    """What a page holds: its tags and their attributes, its table cells, its scripts; and whether all tags close."""

    VOID = ("meta", "link", "br", "img")

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.cells: list[str] = []
        self.scripts: list[str] = []

    @classmethod
    def of(cls, page: str) -> Text:
        text = cls()
        text.feed(page)
        text.close()
        assert text.open == []
        return text

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)
        if tag in ("td", "th"):
            self.cells.append("")
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if {"td", "th"} & set(self.open):
            self.cells[-1] += data
        if self.open[-1:] == ["script"]:
            self.scripts[-1] += data

    def specs(self) -> list[dict[str, Any]]:
        attributes = [attrs for tag, attrs in self.tags if tag == "script"]
        pairs = zip(attributes, self.scripts, strict=True)
        return [json.loads(text, parse_constant=pytest.fail) for attrs, text in pairs if "data-chart" in attrs]
