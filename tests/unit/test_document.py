"""A document is the same on a terminal, as a page, as Markdown and as JSON; a result is all of them."""

from __future__ import annotations

import io
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import altair as alt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from sparsefed.core.errors import ConfigError, RunError
from sparsefed.core.progress import AtWork, Progress
from sparsefed.reports import document as doc
from sparsefed.reports.progress_view import ProgressView
from sparsefed.reports.result import Report
from sparsefed.reports.to_html import framed, page
from sparsefed.reports.to_json import as_values
from sparsefed.reports.to_markdown import markdown
from sparsefed.reports.to_terminal import show


@dataclass(frozen=True)
class Fruit(Report, described_by=__name__):
    """A result that this module describes."""

    name: str


def document(fruit: Fruit) -> doc.Document:
    chart = alt.Chart(alt.InlineData(values=[{"x": 1}])).mark_point().encode(x="x:Q")
    drawn = chart.properties(title=alt.Title("A chart", subtitle="One point."))
    numbers = doc.table("Drawn", ("x",), [("one",)])
    cells = [doc.TableCell(fruit.name, badges=("best",), strong=True), doc.TableCell("42%", 0.42, 0.42, "good", "held")]
    heads = ("Fruit", "Share", doc.Head("Weight", page_only=True))
    parts = (
        doc.section("Summary", doc.paragraph("Eat ", doc.Code(fruit.name), ".", kind="verdict"), terminal=True),
        doc.section("Shares", doc.table("Shares", heads, [(*cells, "7 g")]), doc.note("Only here."), terminal=True),
        doc.section("Lines", doc.table("Claims", ("A", "B"), [("It holds", "a\nb")], "lines"), terminal=True),
        doc.section("More", doc.Figure("c", drawn, "Read it.", numbers), doc.fold("Folded", doc.Listing("a = `1`"))),
        doc.section("Nothing"),
    )
    return doc.Document(f"About {fruit.name}", "A lead.", parts)


def records(fruit: Fruit) -> list[dict[str, Any]]:
    return [{"name": fruit.name, "share": 0.42}]


def printed(found: doc.Document) -> str:
    console = Console(file=io.StringIO(), width=100)
    show(found, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_terminal_shows_tables_first_and_leaves_out_what_belongs_to_a_page() -> None:
    text = printed(document(Fruit("kiwi")))
    assert text.index("42%") < text.index("Eat kiwi.") and "held" in text and "kiwi best" in text
    assert "It holds\n    a\n    b\n" in text
    assert not any(word in text for word in ("Only here", "Weight", "7 g", "Folded", "Drawn"))


def test_a_page_shows_all_of_it_but_what_is_empty() -> None:
    text = page(document(Fruit("kiwi")))
    for part in ("<code>kiwi</code>", "--heat:42%", "Only here.", "7 g", "Folded", "A chart. One point.", ">Numbers<"):
        assert part in text, part
    assert 'id="nothing"' not in text and text.count('class="charts"') == 1
    assert framed(document(Fruit("kiwi"))).startswith("<iframe srcdoc=")


@given(st.text(min_size=1))
def test_no_text_becomes_html_or_breaks_a_table(name: str) -> None:
    named = doc.table("<i>", ("<u>",), [(doc.TableCell(name, under=name, badges=(name,), fold=name),)])
    found = doc.Document(name, name, (doc.section("s", named, doc.Bullets((name,)), doc.Listing(name)),))
    inside = page(found).partition("<main>")[2].partition("</main>")[0]
    assert "<i>" not in inside and "<u>" not in inside and "<script" not in inside
    rows = [line for line in markdown(found).split("\n") if line.startswith("| ") and line.endswith(" |")]
    assert len(rows) >= 2 or "\n" in name or "\r" in name


def test_markdown_has_the_tables_and_says_what_is_drawn() -> None:
    text = markdown(document(Fruit("ki_wi|")))
    assert text.startswith("# About ki\\_wi|\n\nA lead.\n\n## Summary\n\nEat `ki_wi|`.")
    assert "| Fruit | Share | Weight |\n| --- | ---: | ---: |\n| **ki\\_wi\\| best** | 42% (held) | 7 g |" in text
    assert "**A chart.** One point." in text and "```\na = `1`\n```" in text


def test_json_has_the_numbers_behind_the_cells() -> None:
    found = json.loads(json.dumps(as_values(document(Fruit("kiwi")))))
    blocks = [block for part in found["sections"] for block in part["blocks"]]
    shares = next(block for block in blocks if block.get("caption") == "Shares")
    assert shares["rows"] == [["kiwi", 0.42, "7 g"]]
    assert next(block for block in blocks if "vega_lite" in block)["text"] == "One point."


def test_a_result_is_shown_saved_and_taken_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fruit = Fruit("kiwi")
    plain = json.loads(json.dumps(as_values(fruit.document())))
    assert fruit.to_html() == page(fruit.document()) and json.loads(fruit.to_json()) == plain
    assert fruit.to_markdown() == markdown(fruit.document()) and "iframe" in fruit._repr_html_()
    assert [path.name for path in fruit.save(tmp_path / "new")] == ["report.html", "report.json"]
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match=r"cannot write to .*file"):
        fruit.save(tmp_path / "file" / "folder")
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ConfigError, match="pip install pandas"):
        fruit.to_dataframe()


def test_a_result_becomes_a_data_frame() -> None:
    pytest.importorskip("pandas")
    assert Fruit("kiwi").to_dataframe().to_dict("records") == [{"name": "kiwi", "share": 0.42}]


def test_one_view_shows_everything_long() -> None:
    paper, screen = io.StringIO(), io.StringIO()
    half = Progress("cells", 2, 4, [AtWork("a run", 3, 9, {"test": "50.0%"})], left=75.0, line="cell 2/4: done")
    for stream, terminal in ((paper, False), (screen, True)):
        with ProgressView(Console(file=stream, width=100, force_terminal=terminal)) as view:
            view.show(Progress("cells", 1, 4))
            view.show(half)
            view.show(half)
            view._bars.refresh()
    assert paper.getvalue() == "cell 2/4: done; 1 min 15 s left\n"
    for part in ("cells", "2/4", "a run", "3/9", "50.0%", "1 min 15 s left"):
        assert part in screen.getvalue(), part
