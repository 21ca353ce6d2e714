"""The report: numbers by hand, a page that asks nobody for anything, and a real browser that agrees."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import altair as alt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsefed.core import toml
from sparsefed.core.errors import SparseFedError
from sparsefed.core.types import RunRecord
from sparsefed.reports import charts, html, save, summary, verdict
from sparsefed.reports.lines import MOST_POINTS, PALETTE, Stroke, drawn
from sparsefed.reports.run_charts import WHO
from sparsefed.reports.to_html import script_json
from sparsefed.results.numbers import binned, curve, picked
from tests.support.pages import BROWSER, BROWSERS, Page, Text, browser, luminance
from tests.support.records import demo, evaluated, plausible, record

HOSTILE = "</script><b>'\"&amp;\u2028</b><!--<script>"
NAN = float("nan")


# --- numbers ----------------------------------------------------------------------------------------------------------


def test_summary_by_hand() -> None:
    rows = [
        {"round": 1, "honest_norm": 2.0, "attacker_norm": 8.0, "dropped": 1, "seconds": 0.5},
        evaluated(2, 0.6, 0.9, honest_norm=2.0, attacker_norm=None, dropped=2, seconds=0.25),
        {"round": 3, "honest_norm": 1.0, "attacker_norm": 3.0, "dropped": 0, "seconds": 0.5},
        evaluated(4, 0.75, 0.25, honest_norm=1.0, attacker_norm=10.0, dropped=None, seconds=None),
    ]
    [row] = summary([record("a", rows)])
    assert (row.test_accuracy, row.attack_accuracy, row.attack_mean, row.attack_max) == (0.75, 0.25, 0.25, 0.25)
    assert (row.norm_ratio, row.dropped, row.seconds) == (4.0, 3, 1.25)  # ratios 4, 3, 10
    assert (row.rounds, row.planned, row.converged, row.finished) == (4, 4, True, True)


def test_the_last_tenth_is_rounded_up() -> None:
    rows = [evaluated(t, 0.5, attack=t / 100) for t in range(1, 12)]  # 11 evaluations: the last 2
    [row] = summary([record("a", rows)])
    assert row.attack_mean == pytest.approx(0.105)
    assert row.attack_max == 0.11


def test_the_last_epoch_is_counted_in_rounds() -> None:
    run = record("a", [evaluated(t, 0.5, attack=t / 100) for t in range(1, 21)])
    [row] = summary([replace(run, manifest={**run.manifest, "task": {"epoch": 4}})])
    assert row.attack_mean == pytest.approx(0.185) and row.attack_max == 0.20  # rounds 17 to 20
    [short] = summary([replace(run, manifest={**run.manifest, "task": {"epoch": 20}})])
    assert short.attack_mean == pytest.approx(0.195)  # no longer than an epoch: the last tenth


@pytest.mark.parametrize("loss", [NAN, math.inf, None])
def test_a_loss_that_is_not_finite_at_the_end_did_not_converge(loss: float | None) -> None:
    lost = record("lost", [evaluated(1, 0.3), evaluated(2, 0.1, loss=loss), {"round": 3}])
    found_again = record("found", [evaluated(1, 0.1, loss=loss), evaluated(2, 0.3)])
    assert [row.converged for row in summary([lost, found_again])] == [False, True]
    assert "not learned" in Text.of(html([lost, found_again])).cells
    hit = [replace(run, config={**run.config, "attack": {"name": "x"}, "threat": {"count": 1}}) for run in (lost,)]
    assert "lost learns nothing." in verdict(hit)[0] and "lost fell" in verdict(hit)[1]


def test_the_verdict_is_two_sentences_that_name_who_held() -> None:
    numbers, meaning = verdict(demo())
    ends = (
        r"undefended ends at 9\d\.\d% attack accuracy and 8\d\.\d% test accuracy, clipping ends at 5.*sparsefed ends at"
    )
    assert re.match(r"Under the attack pgd, " + ends, numbers)
    assert meaning.startswith("By the rule below, sparsefed held, undefended and clipping fell; this is one seed")


def test_runs_of_one_name_are_told_apart() -> None:
    one = record("a", [evaluated(1, 0.5)])
    assert [row.name for row in summary([one, one, one])] == ["a", "a (2)", "a (3)"]
    x, y = (replace(one, folder=Path("runs") / name) for name in "xy")
    assert [row.name for row in summary([x, y, record("b", [evaluated(1, 0.5)])])] == ["x", "y", "b"]
    assert [row.name for row in summary([x, y, x])] == ["a", "a (2)", "a (3)"]
    assert [row.name for row in summary([x])] == ["a"]


points = st.lists(st.floats(-1e6, 1e6), max_size=200).map(lambda values: [(t + 1, v) for t, v in enumerate(values)])


@settings(deadline=None)
@given(points, st.integers(1, 50))
def test_thinning_keeps_within_the_limit_and_invents_nothing(curve_: list[tuple[int, float]], most: int) -> None:
    for thin in (binned, picked):
        short = thin(curve_, most)
        assert len(short) <= most
        assert bool(short) == bool(curve_)
        assert [t for t, _ in short] == sorted({t for t, _ in short} & {t for t, _ in curve_})
        assert all(min(v for _, v in curve_) <= v <= max(v for _, v in curve_) for _, v in short)
    assert picked(curve_, most)[-1:] == curve_[-1:]
    assert set(picked(curve_, most)) <= set(curve_)


def test_bins_are_medians() -> None:
    jitter = [(1, 5.0), (2, 1.0), (3, 900.0), (4, 2.0), (5, 3.0), (6, 4.0), (7, 7.0)]
    assert binned(jitter, 3) == [(2, 5.0), (5, 3.0), (7, 7.0)]
    assert binned(jitter, 7) == jitter


@pytest.mark.parametrize("rounds", [1, 2])
def test_a_single_value_is_a_dot(rounds: int) -> None:
    """One value makes no line: a run that has been evaluated once showed an empty chart."""
    lines, y = {"a": [(t + 1, 0.5) for t in range(rounds)]}, alt.Y("value:Q")
    mark = drawn(lines, [Stroke(PALETTE[0], (1, 0))], y, str, alt.Title("")).to_dict()["layer"][0]["mark"]
    assert bool(mark["point"]) == (rounds == 1) and mark["clip"] == (rounds > 1)


def test_curves_leave_out_what_is_not_finite() -> None:
    rows: list[dict[str, Any]] = [
        {"round": 1, "x": NAN},
        {"round": 2, "x": 1},
        {"round": 3},
        {"round": 4, "x": None},
        {"round": 5, "x": -math.inf},
    ]
    assert curve(rows, "x") == [(2, 1.0)]


scalars = st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text()
configs = st.recursive(
    scalars | st.lists(scalars, max_size=3), lambda inner: st.dictionaries(st.text(), inner, max_size=4)
)


@settings(deadline=None)
@given(st.dictionaries(st.text(), configs, max_size=5))
def test_a_config_survives_toml(config: dict[str, Any]) -> None:
    assert tomllib.loads(toml.dumps(config)) == config


# --- charts -----------------------------------------------------------------------------------------------------------


def longest_line(spec: Mapping[str, Any]) -> int:
    drawn = [[row["line"] for row in rows] for rows in spec["datasets"].values() if "line" in rows[0]]
    return max(lines.count(line) for lines in drawn for line in lines)


def test_long_runs_are_thinned() -> None:
    specs = {name: chart.to_dict() for name, chart in charts([plausible("a", 0.8, 0.5, 3.0, 2400)]).items()}
    assert set(specs) == {"test-accuracy", "attack-accuracy", "norms-1", "clipped"}
    assert longest_line(specs["norms-1"]) in range(MOST_POINTS // 2, MOST_POINTS + 1)
    assert longest_line(specs["test-accuracy"]) == 240
    assert max(len(json.dumps(spec)) for spec in specs.values()) < 150_000


def test_charts_without_numbers_are_left_out() -> None:
    assert set(charts([record("a", [evaluated(1, 0.5)])])) == {"test-accuracy"}
    assert charts([record("a", [{"round": 1}])]) == {}
    assert "nothing to draw yet" in html([record("a", [{"round": 1}])])


def test_a_run_keeps_its_colour_where_another_is_missing() -> None:
    calm = record("calm", [evaluated(1, 0.5)])
    drawn = charts([calm, record("attacked", [evaluated(1, 0.5, 0.9)])])
    ranges = {name: chart.to_dict()["layer"][0]["encoding"]["color"]["scale"] for name, chart in drawn.items()}
    assert ranges["test-accuracy"] == {"domain": ["calm", "attacked"], "range": list(PALETTE[:2])}
    assert ranges["attack-accuracy"] == {"domain": ["attacked"], "range": [PALETTE[1]]}


@pytest.mark.parametrize("color", [*PALETTE, *(stroke.color for _, stroke in WHO.values())])
def test_lines_can_be_seen_on_light_and_dark(color: str) -> None:
    for paper in ("#ffffff", "#1b1f24"):  # --card in shell.css
        high, low = sorted((luminance(color), luminance(paper)), reverse=True)
        assert (high + 0.05) / (low + 0.05) >= 3


# --- the page ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def page() -> str:
    return html(demo())


def test_the_page_is_whole_and_shows_the_summary_first(page: str) -> None:
    text = Text.of(page)
    names = [tag for tag, _ in text.tags]
    assert names.index("table") < names.index("figure")
    assert names.count("table") == names.count("caption")
    assert names.count("figure") == len(text.specs()) == 7
    assert len([attrs["data-told"] for _, attrs in text.tags if attrs.get("class") == "chart"]) == 7
    final = {row.name: row for row in summary(demo())}
    assert f"{100 * (final['clipping'].test_accuracy or 0):.1f}%" in text.cells
    assert {"defense.clip_norm", "torch", "2.13.0", "cpus", "3f2c1d0e9b8a"} <= set(text.cells)
    assert "sparsefed run clipping.toml" in page


def test_the_page_asks_for_nothing_from_outside(page: str) -> None:
    text = Text.of(page)
    fetched = [
        v for _, attrs in text.tags for key, v in attrs.items() if key in ("src", "href", "srcset", "action", "data")
    ]
    outside = [address for address in fetched if not (address or "").startswith("#")]
    assert outside == ["data:,"]
    assert {address for address in fetched if address not in outside} <= {
        f"#{attrs['id']}" for _, attrs in text.tags if attrs.get("id")
    }
    ours = page.replace(
        max(text.scripts, key=len), ""
    )  # the library has strings that look like addresses, and a policy
    assert re.findall(r"@import|url\(|sourceMappingURL", ours) == []
    assert "sourceMappingURL" not in page
    assert set(re.findall(r"https?://[^\"' ]+", ours)) == {text.specs()[0]["$schema"]}  # an identifier, not fetched
    [policy] = [attrs["content"] for _, attrs in text.tags if attrs.get("http-equiv") == "Content-Security-Policy"]
    assert policy is not None
    assert policy.startswith("default-src 'none'")
    assert "http" not in policy


def test_the_library_is_there_once_and_the_page_is_light(page: str) -> None:
    assert page.count("window.vegaEmbed=") + page.count("window.vegaEmbed =") == 1
    assert len([script for script in Text.of(page).scripts if len(script) > 500_000]) == 1
    assert len(page) < 2_000_000


def test_hostile_names_stay_text() -> None:
    rows = [evaluated(1, 0.5, 0.5, honest_norm=1.0), evaluated(2, 0.6, 0.5, honest_norm=1.0)]
    evil = record(HOSTILE, rows, status=HOSTILE, note=HOSTILE, **{HOSTILE: [HOSTILE]})
    evil.manifest["versions"].update({HOSTILE: HOSTILE})
    tame = record("tame", rows, status="tame", note="tame", tame=["tame"])
    tame.manifest["versions"].update({"tame": "tame"})
    bad, good = Text.of(html([evil])), Text.of(html([tame]))
    assert [tag for tag, _ in bad.tags] == [tag for tag, _ in good.tags]
    assert HOSTILE in bad.cells
    assert bad.specs()[0]["layer"][0]["encoding"]["color"]["scale"]["domain"] == [HOSTILE]


json_values = st.recursive(
    st.none() | st.booleans() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
)


@settings(deadline=None)
@given(json_values)
def test_json_in_a_script_can_neither_end_nor_hide_it(value: Any) -> None:
    text = script_json(value)
    assert json.loads(text) == value
    assert not set(text) & {"<", "\u2028", "\u2029"}


def test_not_a_number_breaks_nothing() -> None:
    broken = {"honest_norm": NAN, "attacker_norm": math.inf, "budget": math.inf, "clipped": NAN, "seconds": NAN}
    zero = {"honest_norm": 0.0, "attacker_norm": 0.0, "budget": 0.0}
    rows = [evaluated(1, 0.5, 0.5, honest_norm=1.0), evaluated(2, NAN, NAN, NAN, **broken), {"round": 3, **zero}]
    text = Text.of(html([record("a", rows, rate=NAN, limit=math.inf)]))
    assert len(text.specs()) == 3
    assert all(json.dumps(spec, allow_nan=False) for spec in text.specs())


def test_a_run_that_is_not_finished_is_shown_as_such() -> None:
    rows = [evaluated(t, 0.5, 0.5) for t in (1, 2, 3)]
    half = record("half", rows, status="interrupted")
    page = html([RunRecord("half", half.config, {**half.manifest, "rounds": 10}, half.rows), record("whole", rows)])
    assert "Preliminary: not every run is finished: half (3 of 10 rounds, interrupted)." in page
    assert {"half interrupted", "3 of 10", "whole", "3"} <= set(Text.of(page).cells)


def test_a_manifest_may_be_bare() -> None:
    text = Text.of(html([RunRecord("bare", {}, {}, (evaluated(1, 0.5),))]))
    assert "bare unknown" in text.cells


# --- files ------------------------------------------------------------------------------------------------------------

MAGIC = {"html": b"<!doctype html>", "png": b"\x89PNG\r\n\x1a\n", "svg": b"<svg", "pdf": b"%PDF-"}


@pytest.mark.parametrize("format", MAGIC)
def test_every_format_gives_real_files(tmp_path: Path, format: str) -> None:
    run = plausible("a", 0.8, 0.5, 3.0, rounds=20)
    out = tmp_path / "deep" / f"report.{format}"
    written = save([run], out, format)
    again = save([run], out, format)  # written over, not beside
    assert written == again
    assert sorted(written) == sorted(out.parent.iterdir())
    assert all(path.read_bytes().startswith(MAGIC[format]) for path in written)
    names = ["test-accuracy", "attack-accuracy", "norms-1", "clipped"]
    assert [path.name for path in written] == (
        ["report.html"] if format == "html" else [f"report-{name}.{format}" for name in names]
    )


def test_pictures_are_sharp(tmp_path: Path) -> None:
    [path] = save([record("a", [evaluated(1, 0.5), evaluated(2, 0.6)])], tmp_path / "r.png", "png")
    assert int.from_bytes(path.read_bytes()[16:20], "big") > 2 * 640  # the width in the header


def test_errors_say_what_to_do(tmp_path: Path) -> None:
    run = record("a", [evaluated(1, 0.5)])
    with pytest.raises(SparseFedError, match=r"unknown report format 'gif'.*html, pdf, png, svg"):
        save([run], tmp_path / "r.gif", "gif")
    with pytest.raises(SparseFedError, match="no run was given"):
        save([], tmp_path / "r.html")
    with pytest.raises(SparseFedError, match="no finished round yet in: empty"):
        save([run, record("empty", [])], tmp_path / "r.html")
    with pytest.raises(SparseFedError, match="nothing to draw yet"):
        save([record("a", [{"round": 1}])], tmp_path / "r.png", "png")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.process
def test_importing_the_report_loads_no_charts() -> None:
    code = "import sys, sparsefed.reports; sys.exit(any(m in sys.modules for m in ('altair', 'vl_convert')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# --- in a real browser ------------------------------------------------------------------------------------------------

in_browser = pytest.mark.skipif(BROWSER is None, reason=f"no browser on PATH (looked for {', '.join(BROWSERS)})")


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    folder = tmp_path_factory.mktemp("browser")
    probe = folder / "probe.html"
    probe.write_text("<p id='probe'>here")
    with browser(folder / "profile") as page:
        page.ask("Page.navigate", url=probe.as_uri())
        try:
            page.until("!!document.getElementById('probe')", seconds=5)
        except AssertionError:
            # A browser in a sandbox of its own (a snap) sees another temporary folder than we do.
            pytest.skip(f"{BROWSER} cannot open files in {folder}")
        yield page


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory, page: str) -> Path:
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(page, encoding="utf-8")
    return path


@in_browser
@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (1280, "dark"), (360, "light"), (360, "dark")])
def test_charts_are_drawn_without_a_complaint_or_a_request(tab: Page, file: Path, width: int, scheme: str) -> None:
    tab.events.clear()
    tab.open(file, width, scheme)
    lines = (
        "[...document.querySelectorAll('.chart')].map(c => c.querySelectorAll('svg .mark-line path[stroke]').length)"
    )
    assert tab.value(lines) == [3, 3, 1, 2, 3, 3, 3]
    assert tab.value("document.documentElement.scrollWidth") == width  # nothing sticks out of the screen
    pictures = "[...document.querySelectorAll('.chart svg.marks')].map(s => s.getAttribute('role') + s.ariaLabel)"
    assert all(re.match(r"img\w.*\d", told) for told in tab.value(pictures))
    fits = "[...document.querySelectorAll('.chart')].every(c => c.querySelector('svg').clientWidth <= c.clientWidth)"
    assert tab.value(fits)
    assert tab.complaints() == []
    assert set(tab.requests()) == {file.resolve().as_uri()}


@in_browser
def test_text_of_charts_can_be_read_in_the_dark_and_on_paper(tab: Page, file: Path) -> None:
    tab.open(file, scheme="dark")
    fill = "getComputedStyle(document.querySelector('.chart svg text')).fill"
    back = "getComputedStyle(document.querySelector('.chart svg')).backgroundColor"
    assert (tab.value(fill), tab.value(back)) == ("rgb(169, 177, 186)", "rgba(0, 0, 0, 0)")
    tab.ask("Emulation.setEmulatedMedia", media="print", features=[{"name": "prefers-color-scheme", "value": "dark"}])
    assert tab.value(fill) == "rgb(90, 98, 108)"
    tab.ask("Emulation.setEmulatedMedia", media="")


@in_browser
def test_the_pointer_is_told_every_value_of_the_nearest_round(tab: Page, file: Path) -> None:
    tab.open(file)
    where = "(() => { const line = document.querySelector('#chart-attack-accuracy .mark-line');"
    seen = " line.scrollIntoView({block: 'center'}); const b = line.getBoundingClientRect();"
    x, y = tab.value(where + seen + " return [b.x + b.width, b.y + b.height / 2]; })()")
    for step in (9, 6):  # the first move enters the chart, the second is on it
        tab.ask("Input.dispatchMouseEvent", type="mouseMoved", x=x - step, y=y)
    tab.until("document.getElementById('vg-tooltip-element')?.classList.contains('visible')")
    cells = "[...document.querySelectorAll('#vg-tooltip-element td')].map(cell => cell.textContent.trim())"
    final = [f"{100 * (row.attack_accuracy or 0):.1f}%" for row in summary(demo())]
    told = tab.value(cells)
    assert told == ["Round", "300", "undefended", final[0], "clipping", final[1], "sparsefed", final[2]]


@in_browser
def test_the_menu_saves_pictures_and_leads_nowhere_else(tab: Page, file: Path) -> None:
    tab.open(file)
    links = "[...new Set([...document.querySelectorAll('.vega-actions a')].map(a => a.textContent))]"
    assert tab.value(links) == ["Save as SVG", "Save as PNG"]


@in_browser
def test_the_browser_itself_forbids_requests(tab: Page, file: Path) -> None:
    tab.open(file)
    refused = "new Promise(done => { addEventListener('securitypolicyviolation', e => done(e.effectiveDirective));"
    assert (
        tab.value(refused + " fetch('http://127.0.0.1:9/').catch(() => 0); setTimeout(done, 5000); })") == "connect-src"
    )


@in_browser
def test_hostile_names_do_nothing_in_a_browser(tab: Page, tmp_path: Path) -> None:
    evil = HOSTILE + "<img src=x onerror='window.harmed = 1'>"
    rows = [evaluated(t, 0.5, 0.5, honest_norm=1.0) for t in (1, 2)]
    tab.events.clear()
    tab.open(save([record(evil, rows)], tmp_path / "r.html")[0])
    assert tab.value("document.querySelectorAll('.chart svg .mark-line').length") == 3
    assert tab.value("window.harmed === undefined && !document.querySelector('main b, main img')")
    assert tab.complaints() == []
