"""The page of a watched run in a real browser: it follows the run, keeps the reader's place, runs nothing foreign."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sparsefed.commands.watch import LivePage
from sparsefed.commands.watch import live as lives
from tests.support.pages import BOXES, BROWSER, Page, browser
from tests.support.watched import HOSTILE, NODES, deployment, grown, refuse

pytestmark = pytest.mark.skipif(BROWSER is None, reason="no browser on PATH")


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with browser(tmp_path_factory.mktemp("browser") / "profile") as found:
        yield found


def opened(tab: Page, address: str, width: int, scheme: str) -> None:
    tab.ask("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 600)
    tab.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    tab.events.clear()
    tab.ask("Page.navigate", url=address)
    tab.until("document.documentElement?.classList.contains('drawn')", seconds=40)


def test_the_page_follows_the_run_and_keeps_the_readers_place(
    tab: Page, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lives, "SHARE", 0)
    folder = deployment(tmp_path / HOSTILE.replace("/", "_"), rows=6)
    with LivePage(folder, most_refused=2) as live:
        opened(tab, live.address, 1200, "light")
        assert tab.value("document.title").startswith("Round 6 of 50")
        assert tab.value("document.querySelectorAll('svg.marks').length") >= 3
        tab.value("document.querySelectorAll('details.fold').forEach((each) => { each.open = true; })")
        tab.value("document.querySelector('main details.fold > summary').focus()")
        tab.value("window.mine = true")
        grown(folder, 7)
        refuse(folder, [(7, NODES[9], "round", HOSTILE)])
        tab.until("document.title.startsWith('Round 7 of 50')", seconds=40)
        tab.until(f"document.querySelector('main').textContent.includes('{NODES[9]}')")
        tab.until("[...document.querySelectorAll('.chart')].every((each) => each.querySelector('svg.marks'))")
        assert tab.value("window.mine"), "the page was not loaded again"
        assert tab.value("[...document.querySelectorAll('details.fold')].every((each) => each.open)")
        assert tab.value("document.activeElement.tagName") == "SUMMARY"
        assert tab.value("document.querySelectorAll('main img, main script:not([data-chart])').length") == 0
        assert tab.value("document.getElementById('connection').hidden")
        assert {url.split("/", 3)[2] for url in tab.requests() if url.startswith("http")} == {
            live.address.split("/")[2]
        }
        assert tab.complaints() == []
    tab.until("!document.getElementById('connection').hidden", seconds=20)


@pytest.mark.parametrize(("width", "scheme"), [(1200, "light"), (1200, "dark"), (420, "light"), (420, "dark")])
def test_the_page_fits_the_screen_and_is_readable(tab: Page, tmp_path: Path, width: int, scheme: str) -> None:
    with LivePage(deployment(tmp_path / "live", rows=12), most_refused=1) as live:
        opened(tab, live.address, width, scheme)
        assert tab.value("document.documentElement.scrollWidth") <= width
        assert tab.complaints() == []
        tab.value("document.querySelectorAll('details.fold').forEach((each) => { each.open = true; })")
        assert tab.value(BOXES) == []
