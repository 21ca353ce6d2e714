"""What pages are made of: matrices and verdicts by hand, fronts against a naive twin; and pages that anyone can read on
a phone, in the dark, on paper and by ear."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.resources import files
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparsefed.core.types import RunRecord
from sparsefed.data.partitions.partition import one_class
from sparsefed.data.partitions.summary import packed, portrait
from sparsefed.reports import charts, html, save, verdict
from sparsefed.reports.document import Document, Fold, TableCell, section, table
from sparsefed.reports.lines import MOST_IN_ALL
from sparsefed.reports.pareto import Point, front, worst_cases
from sparsefed.reports.partitions import Dealt
from sparsefed.reports.partitions import html as partition_page
from sparsefed.reports.to_html import blocks_html, cell_html, page
from sparsefed.reports.tradeoff import sweeps
from sparsefed.results.matrix import NO_ATTACK, Matrix, judged, judgements, matrices
from tests.support.pages import BROWSER, Page, Text, browser, luminance
from tests.support.records import demo, evaluated, plausible, record
from tests.support.shared import Shared

in_browser = pytest.mark.skipif(BROWSER is None, reason="no browser on PATH")
CLASSES = ("cat", "dog", "owl")


def ended(
    defense: str, attack: str | None, got: float | None, test: float | None, seed: int = 1, **more: Any
) -> RunRecord:
    """A run that ended so, under this attack or none; `more` are parameters of the defense."""
    row = {"round": 1, "test_accuracy": test, "test_loss": 0.5, "attack_accuracy": got}
    run = record(f"{defense}-{attack}-{seed}", [row])
    config: dict[str, Any] = {"seed": seed, "data": {"name": "pets"}, "model": {"name": "m"}}
    config |= {"defense": {"name": defense, **more}}
    config |= {"attack": {"name": attack}, "threat": {"share": 0.1}} if attack else {"threat": {"count": 0}}
    return replace(run, config=config)


def only(runs: Sequence[RunRecord]) -> Matrix:
    (found,) = matrices(runs)
    return found


# --- the matrix -------------------------------------------------------------------------------------------------------


def test_a_matrix_by_hand() -> None:
    found = only(
        [
            ended("krum", "pgd", 0.2, 0.6, seed=1),
            ended("krum", "pgd", 0.4, 0.8, seed=2),
            ended("mean", "flip", None, 0.3),
            ended("mean", None, 0.1, 0.9),
        ]
    )
    assert found.setting == "" and found.defenses == ("krum", "mean") and found.attacks == (NO_ATTACK, "pgd", "flip")
    entry = found.entries["krum", "pgd"]
    assert entry.seeds == 2 and entry.attack == pytest.approx(0.3) and entry.test == pytest.approx(0.7)
    assert entry.spread == pytest.approx(0.2)
    assert found.lost("mean", "flip") == pytest.approx(0.6)  # against its own run without attackers
    assert found.lost("krum", "pgd") == pytest.approx(0.2)  # against the best there is
    assert found.gained("krum", "pgd") == pytest.approx(0.3) and found.gained("mean", "flip") is None
    assert set(found.entries) == {("krum", "pgd"), ("mean", "flip"), ("mean", NO_ATTACK)}


def test_what_tells_rows_columns_and_settings_apart() -> None:
    runs = [ended("sparsefed", "pgd", 0.1, 0.8, k=10), ended("sparsefed", "pgd", 0.1, 0.8, k=20)]
    other = replace(runs[0], config={**runs[0].config, "threat": {"share": 0.5}})
    assert only(runs).defenses == ("sparsefed (k = 10)", "sparsefed (k = 20)")
    assert only([runs[0], other]).attacks == ("pgd (share = 0.1)", "pgd (share = 0.5)")
    elsewhere = replace(runs[0], config={**runs[0].config, "data": {"name": "cars"}})
    assert [matrix.setting for matrix in matrices([runs[0], elsewhere])] == ["pets", "cars"]


@pytest.mark.parametrize(
    ("got", "lost", "calm", "says"),
    [
        (0.10, 0.05, None, "held"),
        (0.11, 0.0, None, "in part"),
        (0.0, 0.06, None, "in part"),
        (0.5, 0.0, None, "fell"),
        (0.0, 0.2, None, "fell"),
        (0.3, 0.0, 0.25, "held"),  # it would have got 0.25 for nothing
        (0.6, 0.0, 0.25, "in part"),
        (None, 0.04, None, "held"),
        (None, 0.21, None, "fell"),
    ],
)
def test_who_held(got: float | None, lost: float, calm: float | None, says: str) -> None:
    best = 0.75
    runs = [ended("x", "a", got, best - lost)]
    runs += [ended("x", None, calm, best)] if calm is not None else [ended("y", "a", 1.0, best)]
    assert judged(only(runs), "x", "a") == says


def test_what_did_not_converge_fell_and_what_was_not_measured_is_not_judged() -> None:
    lost = replace(ended("x", "a", 0.0, 0.9), rows=(evaluated(1, 0.9, 0.0, loss=None),))
    assert judgements(only([lost])) == {"x": "fell"}
    assert judgements(only([ended("x", "a", None, None)])) == {}
    both = only([ended("x", "a", 0.0, 0.9), ended("x", "b", 0.9, 0.9)])
    assert judgements(both) == {"x": "fell"}, "the worst attack counts"


# --- the verdict ------------------------------------------------------------------------------------------------------


def test_the_verdict_of_many_names_the_extremes_under_their_worst_attacks() -> None:
    got = {"weak": (0.2, 0.95), "strong": (0.05, 0.02), "middle": (0.3, 0.1)}
    runs = [ended(d, a, got[d][i], 0.8) for d in got for i, a in enumerate(("pgd", "edge"))]
    numbers, meaning = verdict(runs)
    assert numbers == (
        "3 defenses met 2 attacks: the attackers get most against weak (95.0% attack accuracy, by edge), "
        "and least against strong (5.0% attack accuracy, by pgd)."
    )
    assert meaning.startswith("By the rule below, strong held against all of them, middle held in part, weak fell; ")


def test_the_verdict_is_honest_about_seeds() -> None:
    one = [ended("x", "a", 0.0, 0.9)]
    assert "this is one seed, and a difference of a few points can be chance" in verdict(one)[1]
    three = [ended("x", "a", 0.0, 0.9 - 0.01 * seed, seed=seed) for seed in range(3)]
    assert verdict(three)[1].endswith("means over 3 seeds or more, which differ by up to 2.0 points.")
    assert "some of it is one seed" in verdict([*three, ended("y", "a", 0.0, 0.9)])[1]


def test_the_verdict_without_attackers_or_numbers_claims_nothing() -> None:
    calm = verdict([ended("x", None, None, 0.9), ended("y", None, None, 0.8)])
    assert calm[0] == "Without an attack, test accuracy ends between 80.0% (y) and 90.0% (x)."
    assert "unknown whether a defense holds" in calm[1] and not any("held" in sentence for sentence in calm)
    assert verdict([ended("x", None, None, None)])[0] == "Nothing has been evaluated yet."
    nothing = verdict([ended("x", "a", None, None)])
    assert "is not evaluated yet" in nothing[0] and nothing[1].startswith("Nothing has been measured")
    fell = verdict([ended("x", "a", 0.9, 0.9)])
    assert "no defense held: x fell;" in fell[1]


def test_every_setting_has_two_sentences() -> None:
    run = ended("x", "a", 0.0, 0.9)
    several = [replace(run, config={**run.config, "data": {"name": f"set{i}"}}) for i in range(6)]
    told = verdict(several)
    assert len(told) == 9 and told[0].startswith("On set0: Under") and told[-1].startswith("2 more settings")


@given(st.data())
def test_any_verdict_is_two_sentences(data: st.DataObject) -> None:
    share = st.none() | st.floats(0, 1)
    pairs = st.tuples(st.sampled_from("xyz"), st.sampled_from(["a", "b", None]), share, share, st.integers(0, 2))
    runs = [ended(*each) for each in data.draw(st.lists(pairs, min_size=1, max_size=12))]
    told = verdict(runs)
    assert len(told) == 2 and all(sentence.endswith(".") and "None" not in sentence for sentence in told)


# --- the front --------------------------------------------------------------------------------------------------------

shares = st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0])


@given(st.lists(st.tuples(shares, shares), max_size=12))
def test_the_front_is_what_nothing_beats(pairs: list[tuple[float, float]]) -> None:
    points = [Point(str(i), test, attack) for i, (test, attack) in enumerate(pairs)]
    kept = front(points)
    for p in points:
        better = [
            q
            for q in points
            if (q.test > p.test and q.attack <= p.attack) or (q.test >= p.test and q.attack < p.attack)
        ]
        assert (p in kept) == (not better)
    assert [p.test for p in kept] == sorted(p.test for p in kept)


def test_a_defense_stands_at_the_worst_of_the_attacks_that_all_met() -> None:
    runs = [ended("x", "a", 0.1, 0.9), ended("x", "b", 0.3, 0.8), ended("x", "c", 0.9, 0.1)]
    runs += [ended("y", "a", 0.2, 0.7), ended("y", "b", None, 0.6)]
    assert worst_cases(only(runs)) == [Point("x", 0.8, 0.3), Point("y", 0.6, 0.2)]  # nobody tried c against y
    assert worst_cases(only(runs[:3])) == []  # nothing to choose from
    assert worst_cases(only([runs[0], runs[4]])) == []  # no attack in common


def test_the_front_is_drawn_and_the_beaten_are_grey() -> None:
    drawn = charts([ended("x", "a", 0.1, 0.9), ended("y", "a", 0.5, 0.8), ended("z", "a", 0.05, 0.7)])["pareto-1"]
    spec = drawn.to_dict()
    kinds = {row["Defense"]: row["kind"] for rows in spec["datasets"].values() for row in rows}
    assert kinds == {"x": "not beaten", "y": "beaten in both", "z": "not beaten"}
    assert "x with 90.0% test accuracy and 10.0% attack accuracy" in " ".join(spec["title"]["subtitle"])


# --- k and L ----------------------------------------------------------------------------------------------------------


def test_runs_that_differ_in_k_alone_are_a_sweep() -> None:
    runs = [ended("s", "a", k / 100, 0.5 + k / 1000, seed, k=k, L=1) for k, seed in product((10, 50), (1, 2))]
    runs += [ended("s", "a", 0.1, 0.9, k=10, L=2), ended("t", "a", 0.1, 0.9)]
    (found,) = sweeps(runs, "k")
    assert found.name == "s under a" and list(found.rows) == [10.0, 50.0]
    assert [[row.attack_accuracy for row in rows] for rows in found.rows.values()] == [[0.1, 0.1], [0.5, 0.5]]
    drawn = charts(runs)
    assert "k-1" in drawn and "k-2" not in drawn and "clip-norm-1" not in drawn
    assert "at 50 attack accuracy 50.0%" in " ".join(drawn["k-1"].to_dict()["title"]["subtitle"])
    assert "clip-norm-1" in charts([ended("s", "a", 0.1, 0.9, clip_norm=norm) for norm in (1.0, 5.0)])


# --- pages that anyone can read ---------------------------------------------------------------------------------------


def rich(runs: Sequence[RunRecord]) -> list[RunRecord]:
    """The runs with all that a real one has: classes and who owns what."""
    labels = np.arange(300) % 3
    task = {
        "classes": list(CLASSES),
        "partition": packed(portrait(one_class(labels, None, 30, None, 0), labels, 3, 20)),
    }

    def more(run: RunRecord) -> RunRecord:
        rows = tuple(
            dict(row) | ({"class_accuracy": [0.5, 0.9, 0.1]} if "test_loss" in row else {}) for row in run.rows
        )
        return replace(run, manifest={**run.manifest, "task": task}, rows=rows)

    return [more(run) for run in runs]


def sixty() -> list[RunRecord]:
    """Five defenses, four attacks, three seeds, runs of 390 rounds."""
    made = [
        (plausible(f"{d}-{a}-{seed}", 0.8, 0.2 * i, 3.0, 390), d, a, seed)
        for (i, d), a, seed in product(enumerate("vwxyz"), ("pgd", "edge", "dba", "alie"), range(3))
    ]
    return [
        replace(run, config={**run.config, "seed": seed, "defense": {"name": d}, "attack": {"name": a}})
        for run, d, a, seed in made
    ]


@pytest.fixture(scope="module")
def whole() -> str:
    return html(rich(demo()))


@pytest.fixture(scope="module")
def page_of_sixty(shared: Shared) -> Path:
    """The report on sixty runs: seconds to make, and only read."""

    def make(folder: Path) -> list[str]:
        return [path.name for path in save(sixty(), folder / "sixty.html")]

    folder, names = shared.folder("sixty-runs", make)
    assert names == ["sixty.html"]
    return folder / "sixty.html"


def test_the_order_of_the_page(whole: str) -> None:
    titles = re.findall(r'<h2 id="[^>]*>([^<]+)</h2>', whole)
    assert titles == [
        *("Summary", "Curves", "Pareto front", "What the attack did", "Class by class", "Who owns what", "Norms"),
        *("Configs and versions", "How to run it again"),
    ]
    begins = [whole.index(piece) for piece in ('class="verdict"', "Attack accuracy</caption>", "What each run came to")]
    assert begins == sorted(begins)
    assert "sparsefed run sparsefed.toml" in whole and "torch==2.13.0" in whole and "git checkout 3f2c1d0e9b8a" in whole


def check_structure(text: Text) -> None:
    """Landmarks, headings in order, tables that say what their cells are."""
    tags = [tag for tag, _ in text.tags]
    assert [tags.count(landmark) for landmark in ("header", "main", "h1")] == [1, 1, 1]
    levels = [int(tag[1]) for tag in tags if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1 and all(b <= a + 1 for a, b in pairwise(levels))
    assert tags.count("table") == tags.count("caption") == tags.count("thead")
    assert all(attrs.get("scope") in ("row", "col") for tag, attrs in text.tags if tag == "th")
    ids = [attrs["id"] for _, attrs in text.tags if "id" in attrs]
    assert len(ids) == len(set(ids))
    labelled = [attrs["aria-labelledby"] for _, attrs in text.tags if "aria-labelledby" in attrs]
    assert set(labelled) <= set(ids)
    assert tags.count("details") == tags.count("summary")


def test_pages_are_built_for_those_who_hear_them(whole: str) -> None:
    labels = np.arange(120) % 3
    dealt = Dealt("pets", portrait(one_class(labels, None, 12, None, 0), labels, 3), CLASSES)
    for text in map(Text.of, (whole, partition_page(dealt), html([record("a", [{"round": 1}])]))):
        check_structure(text)


def test_a_page_without_charts_carries_no_library() -> None:
    empty = section("Nothing")
    made = page(Document("A <title>", "lead & more", (section("One", table("t", ("a", "b"), [("x", "1")])), empty)))
    assert len(made) < 20_000 and "vega-bundle" not in made and "<nav" not in made and "Nothing" not in made
    assert "<h1>A &lt;title&gt;</h1>" in made and "<p>lead &amp; more</p>" in made
    check_structure(Text.of(made))


def colours(dark: bool) -> Mapping[str, str]:
    css = files("sparsefed.reports").joinpath("shell.css").read_text(encoding="utf-8")
    blocks = re.findall(r":root \{(.*?)\}", css, re.S)
    assert len(blocks) == 2
    return dict(re.findall(r"(--[\w-]+): (#[0-9a-f]{6})", blocks[dark]))


def contrast(one: str, other: str) -> float:
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def mixed(one: str, other: str, share: float) -> str:
    """`color-mix(in srgb, one share, other)`."""
    parts = [[int(color[i : i + 2], 16) for i in (1, 3, 5)] for color in (one, other)]
    return "#" + "".join(f"{round(share * a + (1 - share) * b):02x}" for a, b in zip(*parts, strict=True))


@pytest.mark.parametrize("dark", [False, True])
def test_every_text_can_be_read_on_what_it_stands_on(dark: bool) -> None:
    of = colours(dark)
    assert set(of) == set(colours(not dark)), "both schemes name the same colours"
    papers = ("--paper", "--card", "--shade")
    pairs = [*product(("--ink", "--soft", "--link"), papers), ("--warn-ink", "--warn")]
    assert {
        pair: contrast(*(of[name] for name in pair)) for pair in pairs if contrast(*(of[n] for n in pair)) < 4.5
    } == {}
    hot = [mixed(of["--hot"], of["--card"], i / 20) for i in range(21)]
    assert min(contrast(of["--ink"], paper) for paper in hot) >= 4.5
    assert contrast(hot[0], hot[-1]) > 1.5, "hot can be told from cold"


def test_heat_never_leaves_its_scale_and_escapes() -> None:
    hot, cold = (cell_html(TableCell("x", heat=heat)) for heat in (7.0, -1.0))
    assert "--heat:100%" in hot and "--heat:0%" in cold and "style" not in cell_html(TableCell("x"))
    both = cell_html(TableCell("<b>", heat=0.5, under="<i>"))
    assert both == '<td style="--heat:50%">&lt;b&gt;<span class="under">&lt;i&gt;</span></td>'


def test_sixty_runs_make_a_light_page_with_legends_that_can_be_read(page_of_sixty: Path) -> None:
    runs = sixty()
    drawn = charts(runs)
    assert {"test-accuracy", "attack-accuracy", "norm-ratio", "clipped", "pareto-1"} <= set(drawn)
    for name in ("test-accuracy", "attack-accuracy", "norm-ratio", "clipped"):
        spec = drawn[name].to_dict()
        assert len(spec["layer"][0]["encoding"]["color"]["scale"]["domain"]) == 5
        assert sum(map(len, spec["datasets"].values())) <= MOST_IN_ALL
        assert "60 runs end between" in " ".join(spec["title"]["subtitle"])
    made = page_of_sixty.read_text(encoding="utf-8")
    assert len(made) < 2_000_000 and "<title>SparseFed: 60 runs</title>" in made
    check_structure(Text.of(made))


# --- in a real browser ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with browser(tmp_path_factory.mktemp("browser") / "profile") as found:
        yield found


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory, whole: str) -> Path:
    path = tmp_path_factory.mktemp("pages") / "whole.html"
    path.write_text(whole, encoding="utf-8")
    return path


def opened(tab: Page, path: Path, width: int, scheme: str) -> None:
    """Open a page and see that it is drawn, fits, asks nobody and complains of nothing."""
    tab.events.clear()
    tab.open(path, width, scheme)
    assert tab.value("document.documentElement.scrollWidth") == width
    assert tab.value("[...document.querySelectorAll('.chart')].every(c => c.querySelector('svg.marks'))")
    assert tab.complaints() == [] and set(tab.requests()) == {path.resolve().as_uri()}


@in_browser
@pytest.mark.parametrize(("width", "scheme"), list(product((1280, 360), ("light", "dark"))))
def test_the_whole_page_is_drawn_everywhere(tab: Page, file: Path, width: int, scheme: str) -> None:
    opened(tab, file, width, scheme)
    assert tab.value("document.querySelectorAll('.chart svg.marks').length") == 9
    # What the browser made of the colours, on the hottest cell.
    cell = "[...document.querySelectorAll('.heat td')].sort((a, b) => parseFloat(b.style.getPropertyValue('--heat'))"
    cell += " - parseFloat(a.style.getPropertyValue('--heat')))[0]"
    back = tab.value(f"getComputedStyle({cell}).backgroundColor")
    shares = re.findall(r"[\d.]+", back.removeprefix("color(srgb"))
    painted = "#" + "".join(f"{round(255 * float(share)):02x}" for share in shares[:3])
    assert contrast(painted, colours(scheme == "dark")["--ink"]) >= 4.5
    assert contrast(painted, colours(scheme == "dark")["--card"]) > 1.3


@in_browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_sixty_runs_and_a_partition_fit_a_phone(tab: Page, page_of_sixty: Path, tmp_path: Path, scheme: str) -> None:
    labels = np.arange(120) % 3
    dealt = Dealt("pets", portrait(one_class(labels, None, 12, None, 0), labels, 3), CLASSES)
    (tmp_path / "partition.html").write_text(partition_page(dealt), encoding="utf-8")
    for path in (tmp_path / "partition.html", page_of_sixty):
        opened(tab, path, 360, scheme)


@in_browser
def test_the_pointer_is_told_which_of_many_runs_it_is_at(tab: Page, page_of_sixty: Path) -> None:
    tab.open(page_of_sixty)
    seen = "(() => { const lines = document.querySelector('#chart-attack-accuracy .mark-line');"
    seen += " lines.scrollIntoView({block: 'center'}); const b = lines.getBoundingClientRect();"
    x, y = tab.value(seen + " return [b.x + b.width / 2, b.y + b.height / 2]; })()")
    for step in (3, 0):
        tab.ask("Input.dispatchMouseEvent", type="mouseMoved", x=x - step, y=y)
    tab.until("document.getElementById('vg-tooltip-element')?.classList.contains('visible')")
    told = tab.value("[...document.querySelectorAll('#vg-tooltip-element td')].map(cell => cell.textContent.trim())")
    assert told[0] == "Run" and told[1] in {run.name for run in sixty()} and told[2:4] == ["family", told[1][0]]
    assert tab.complaints() == []


@in_browser
def test_what_is_folded_opens_by_keyboard_and_shows_the_focus(tab: Page, file: Path) -> None:
    tab.open(file)
    tab.value("document.querySelector('details.fold > summary').focus()")
    key = {"key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 13, "text": "\r"}
    for kind in ("keyDown", "keyUp"):
        tab.ask("Input.dispatchKeyEvent", type=kind, **key)
    tab.until("document.querySelector('details.fold').open")
    assert tab.value("getComputedStyle(document.activeElement).outlineStyle") == "solid"


@in_browser
def test_paper_is_white_whole_and_unfolded(tab: Page, file: Path) -> None:
    tab.open(file, scheme="dark")
    folds = "document.querySelectorAll('details.fold').length"
    seen = "window.unfolded = 0; addEventListener('beforeprint', () => { window.unfolded = "
    tab.value(seen + "document.querySelectorAll('details.fold[open]').length; })")
    printed = tab.ask("Page.printToPDF", paperWidth=8.27, paperHeight=11.69)
    pdf = base64.b64decode(printed["data"])
    assert pdf.startswith(b"%PDF-") and len(re.findall(rb"/Type\s*/Page\b", pdf)) >= 3
    assert tab.value("window.unfolded") == tab.value(folds) > 3
    assert tab.value("document.querySelectorAll('details.fold[open]').length") == 0  # folded again on screen
    tab.ask("Emulation.setEmulatedMedia", media="print", features=[{"name": "prefers-color-scheme", "value": "dark"}])
    tab.ask("Emulation.setDeviceMetricsOverride", width=690, height=900, deviceScaleFactor=1, mobile=False)
    body = "getComputedStyle(document.body)"
    assert tab.value(f"[{body}.backgroundColor, {body}.color]") == ["rgb(255, 255, 255)", "rgb(28, 33, 39)"]
    cut = "[...document.querySelectorAll('.chart svg.marks, table')].filter(e => e.getBoundingClientRect().right > 690)"
    assert tab.value(f"{cut}.map(e => e.textContent.slice(0, 60))") == []
    tab.ask("Emulation.setEmulatedMedia", media="")


def test_the_page_in_the_documentation_can_be_made() -> None:
    text = (Path(__file__).parents[2] / "docs/report.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", text, re.S)
    runs = demo(20)
    made: dict[str, Any] = {"runs": runs, "chart": charts(runs)["test-accuracy"]}
    exec(compile(code, "docs/report.md", "exec"), made)
    check_structure(Text.of(made["text"]))
    assert made["text"].count('data-chart="') == 1 and "Attack accuracy</caption>" in made["text"]


def test_folds_are_real_ones() -> None:
    assert blocks_html([Fold("More <", ())]) == '<details class="fold"><summary>More &lt;</summary></details>'
