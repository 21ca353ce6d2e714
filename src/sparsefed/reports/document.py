"""A report as a value: a `Document` of sections, paragraphs, tables and figures, independent of its rendering.

Every command builds one `Document`. `to_html`, `to_terminal`, `to_markdown` and `to_json` render it: a page shows all
of it; a terminal shows the tables and sentences of sections marked `terminal`, without figures and folds.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

if TYPE_CHECKING:
    import altair as alt

T = TypeVar("T")
Level = Literal["", "good", "fair", "poor"]  # how a terminal colours a cell: green, yellow, red
Kind = Literal["", "verdict", "note", "warning"]
Style = Literal["numbers", "facts", "prose", "lines"]  # numbers stand to the right; lines: a row is one on a terminal


class Code(str):
    """A piece of a paragraph that is code or a command."""


class Strong(str):
    """A piece of a paragraph that is emphasised."""


@dataclass(frozen=True)
class TableCell:
    """A cell of a table: its text, and how strongly it is to be marked."""

    text: str  # several lines where it has several
    value: Any = None  # the number behind the text, for programs
    heat: float | None = None  # 0 to 1, how strongly a page colours it; hot is bad
    level: Level = ""
    under: str = ""  # a second, smaller line
    badges: tuple[str, ...] = ()
    strong: bool = False
    fold: str = ""  # a title under which a page folds the text


@dataclass(frozen=True)
class Head:
    """The head of a column."""

    title: str
    left: bool = False  # aligned to the left also among numbers
    page_only: bool = False  # a terminal has no room for it
    terminal_only: bool = False  # replaces several columns that only a page has room for
    below: bool = False  # on a terminal its cells stand in brackets below those of the column before


@dataclass(frozen=True)
class Table:
    """A table: rows under named columns; the first cell of a row is its name."""

    caption: str
    head: tuple[Head, ...]
    rows: tuple[tuple[TableCell, ...], ...]
    style: Style
    page_only: bool

    def on_page(self) -> Table:
        """Return the table without the parts for a terminal alone."""
        kept = [i for i, head in enumerate(self.head) if not head.terminal_only]
        rows = tuple(tuple(row[i] for i in kept) for row in self.rows)
        return replace(self, head=tuple(self.head[i] for i in kept), rows=rows)


def table(
    caption: str,
    head: Iterable[str | Head],
    rows: Iterable[Iterable[Any]],
    style: Style = "numbers",
    page_only: bool = False,
) -> Table:
    """Return a table; its columns and cells may be plain strings."""
    heads = tuple(each if isinstance(each, Head) else Head(each) for each in head)
    cells = tuple(tuple(each if isinstance(each, TableCell) else TableCell(each) for each in row) for row in rows)
    return Table(caption, heads, cells, style, page_only)


@dataclass(frozen=True)
class Paragraph:
    """A paragraph of text; its `Code` and `Strong` pieces are set apart."""

    parts: tuple[str, ...]
    kind: Kind = ""
    page_only: bool = False

    @property
    def text(self) -> str:
        """Return the text without its markup."""
        return "".join(self.parts)


def paragraph(*parts: str, kind: Kind = "", page_only: bool = False) -> Paragraph:
    """Return a paragraph of these pieces."""
    return Paragraph(parts, kind, page_only)


def note(text: str, page_only: bool = True) -> Paragraph:
    """Return a small explanatory paragraph, which a terminal omits by default."""
    return Paragraph((text,), "note", page_only)


@dataclass(frozen=True)
class Heading:
    """A heading below that of the section."""

    text: str


@dataclass(frozen=True)
class Bullets:
    """A bulleted list."""

    lines: tuple[str, ...]
    page_only: bool = False


@dataclass(frozen=True)
class Listing:
    """Lines to be copied: a config, commands."""

    text: str


@dataclass(frozen=True)
class Figure:
    """A chart with a caption and its numbers; its title becomes a heading, its subtitle the text alternative."""

    name: str  # part of file names and addresses
    chart: alt.TopLevelMixin
    caption: str
    numbers: Table | None = None  # what is drawn, for readers who cannot see it

    def spec(self) -> tuple[str, str, dict[str, Any]]:
        """Return the title, the text alternative, and the Vega-Lite specification without these two."""
        spec = self.chart.to_dict()
        title = spec.pop("title")
        lines = title["subtitle"]
        return title["text"], lines if isinstance(lines, str) else " ".join(lines), spec


@dataclass(frozen=True)
class Fold:
    """A part that opens on a click; a terminal omits it."""

    title: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class Side:
    """Tables side by side, if there is room."""

    blocks: tuple[Block, ...]


Block = Paragraph | Heading | Bullets | Listing | Table | Figure | Fold | Side


def fold(title: str, *blocks: Block, when: bool = True) -> tuple[Block, ...]:
    """Return the blocks under a title that opens on a click, or as they are unless `when`."""
    return (Fold(title, blocks),) if when and blocks else blocks


@dataclass(frozen=True)
class Section:
    """A part of a document under its own heading; a section without blocks is omitted."""

    title: str
    blocks: tuple[Block, ...]
    terminal: bool = False

    @property
    def id(self) -> str:
        """Return the title as an anchor within the page."""
        return re.sub(r"[^a-z0-9]+", "-", self.title.lower()).strip("-")


def section(title: str, *blocks: Block | Iterable[Block], terminal: bool = False) -> Section:
    """Return a section of these blocks; iterables among them are flattened, in order."""
    flat = (inner for block in blocks for inner in ((block,) if isinstance(block, Block) else block))
    return Section(title, tuple(flat), terminal)


@dataclass(frozen=True)
class Document:
    """A whole report: a title, a lead and sections."""

    title: str
    lead: str
    parts: tuple[Section, ...]
    heading: str = ""  # a shorter title, where there is one

    @property
    def sections(self) -> tuple[Section, ...]:
        """Return the parts that have anything to show."""
        return tuple(part for part in self.parts if part.blocks)


def scored_by(part: T, score: str) -> T:
    """Return a document, or texts, about runs judged by another score than test accuracy, with that score's name in it.

    Sentences, tables and charts are written for test accuracy; the numbers in them are the task's score already.
    """
    if score == "test accuracy":
        return part
    title = score[:1].upper() + score[1:]
    words = {
        "Test accuracy": title,
        "test accuracy": score,
        "Accuracy lost": f"{title} lost",
        "points of accuracy": f"points of {score}",
        "Test error": f"1 - {score}",
        "How often the model is right on test data": f"{title} on test data",
        "the share of test data that the model gets right": "1 is a perfect model",
        "the accuracy at most 1.2 times that of always naming the most frequent class": f"the {score} hardly better "
        "than that of a model that ignores its inputs",
        "Test and attack accuracy": f"{title} and attack accuracy",
        "Test accuracy by class": "Accuracy by class",
        "Test error is 1 minus test accuracy. ": "",
    }
    longest_first = sorted(words, key=len, reverse=True)
    return cast("T", _reworded(part, re.compile("|".join(map(re.escape, longest_first))), words))


def _reworded(part: Any, pattern: re.Pattern[str], words: Mapping[str, str]) -> Any:
    """Return a document, or any part of one, with words replaced wherever there is text."""
    if isinstance(part, Listing | Code):
        return part
    if isinstance(part, str):
        return type(part)(pattern.sub(lambda found: words[found[0]], part))
    if isinstance(part, tuple | list):
        return type(part)(_reworded(each, pattern, words) for each in part)
    if isinstance(part, dict):
        return {_reworded(key, pattern, words): _reworded(each, pattern, words) for key, each in part.items()}
    if isinstance(part, Figure):
        chart = type(part.chart).from_dict(_reworded(part.chart.to_dict(), pattern, words))  # type: ignore[attr-defined]
        return Figure(part.name, chart, *_reworded((part.caption, part.numbers), pattern, words))
    if is_dataclass(part) and not isinstance(part, type):
        return replace(
            part, **{each.name: _reworded(getattr(part, each.name), pattern, words) for each in fields(part)}
        )
    return part
