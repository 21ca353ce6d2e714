"""A report as a value: a `Document` of sections, paragraphs, tables and figures, apart from how it is shown.

Every command builds one `Document`. `to_html`, `to_terminal`, `to_markdown` and `to_json` render it: a page shows all
of it; a terminal the tables and sentences of the sections that are marked `terminal`, but no figures and no folds.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import altair as alt

Level = Literal["", "good", "fair", "poor"]  # how a terminal colours a cell: green, yellow, red
Kind = Literal["", "verdict", "note", "warning"]
Style = Literal[
    "numbers", "facts", "prose", "lines"
]  # numbers to the right; facts; sentences; on a terminal a line each


class Code(str):
    """A piece of a paragraph that is to be typed."""

    __slots__ = ()


class Strong(str):
    """A piece of a paragraph that stands out."""

    __slots__ = ()


@dataclass(frozen=True)
class TableCell:
    """A cell of a table: what is displayed, and what it says beyond that."""

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
    terminal_only: bool = False  # there it stands for several that a page has room for
    below: bool = False  # on a terminal its cells stand in brackets below those of the column before


@dataclass(frozen=True)
class Table:
    """Rows under named columns; the first cell of a row is its name."""

    caption: str
    head: tuple[Head, ...]
    rows: tuple[tuple[TableCell, ...], ...]
    style: Style
    page_only: bool

    def on_page(self) -> Table:
        """Return the table without what is for a terminal alone."""
        kept = [i for i, head in enumerate(self.head) if not head.terminal_only]
        rows = tuple(tuple(row[i] for i in kept) for row in self.rows)
        return replace(self, head=tuple(self.head[i] for i in kept), rows=rows)

    @property
    def hot(self) -> bool:
        """Whether cells are coloured by what they say."""
        return any(cell.heat is not None for row in self.rows for cell in row)


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
    """A sentence or several; `Code` and `Strong` pieces are set apart."""

    parts: tuple[str, ...]
    kind: Kind = ""
    page_only: bool = False

    @property
    def text(self) -> str:
        """The words alone."""
        return "".join(self.parts)


def paragraph(*parts: str, kind: Kind = "", page_only: bool = False) -> Paragraph:
    """Return a paragraph of these pieces."""
    return Paragraph(parts, kind, page_only)


def note(text: str, page_only: bool = True) -> Paragraph:
    """Return a paragraph that explains, in small; a terminal leaves it out unless told otherwise."""
    return Paragraph((text,), "note", page_only)


@dataclass(frozen=True)
class Heading:
    """A heading below that of the section."""

    text: str


@dataclass(frozen=True)
class Bullets:
    """A list."""

    lines: tuple[str, ...]
    page_only: bool = False


@dataclass(frozen=True)
class Listing:
    """Lines to be copied: a config, commands."""

    text: str


@dataclass(frozen=True)
class Figure:
    """A chart whose title becomes a heading and its subtitle the text alternative, with a caption and its numbers."""

    name: str  # part of file names and addresses
    chart: alt.TopLevelMixin
    caption: str
    numbers: Table | None = None  # what is drawn, for those who cannot see it

    def spec(self) -> tuple[str, str, dict[str, Any]]:
        """Return the title, the text alternative and the Vega-Lite specification without them."""
        spec = self.chart.to_dict()
        title = spec.pop("title")
        alternative = title["subtitle"] if isinstance(title["subtitle"], str) else " ".join(title["subtitle"])
        return title["text"], alternative, spec


@dataclass(frozen=True)
class Fold:
    """A part that opens on a click; a terminal leaves it out."""

    title: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class Side:
    """Tables side by side where there is room."""

    blocks: tuple[Block, ...]


Block = Paragraph | Heading | Bullets | Listing | Table | Figure | Fold | Side


def fold(title: str, *blocks: Block, when: bool = True) -> tuple[Block, ...]:
    """Return the blocks under a title that opens on a click, or as they are where they are not in the way."""
    return (Fold(title, blocks),) if when and blocks else blocks


@dataclass(frozen=True)
class Section:
    """A part of a document under a heading of its own; one without blocks is left out."""

    title: str
    blocks: tuple[Block, ...]
    terminal: bool = False

    @property
    def id(self) -> str:
        """The title as an address within the page."""
        return re.sub(r"[^a-z0-9]+", "-", self.title.lower()).strip("-")


def section(title: str, *blocks: Block | Iterable[Block], terminal: bool = False) -> Section:
    """Return a section of these blocks; an iterable among them gives its own, in order."""
    return Section(title, tuple(_flat(blocks)), terminal)


def _flat(blocks: Iterable[Block | Iterable[Block]]) -> Iterator[Block]:
    for block in blocks:
        if isinstance(block, Block):
            yield block
        else:
            yield from block


@dataclass(frozen=True)
class Document:
    """A whole report."""

    title: str
    lead: str
    parts: tuple[Section, ...]
    heading: str = ""  # a shorter title, where there is one

    @property
    def sections(self) -> tuple[Section, ...]:
        """The parts that have anything to show."""
        return tuple(part for part in self.parts if part.blocks)


def walk(blocks: Sequence[Block], folds: bool = True) -> Iterator[Block]:
    """Yield every block in order, with those inside folds (unless left out), sides and figures."""
    for block in blocks:
        if isinstance(block, Side) or (isinstance(block, Fold) and folds):
            yield from walk(block.blocks, folds)
        elif not isinstance(block, Fold):
            yield block
            if isinstance(block, Figure) and block.numbers is not None:
                yield block.numbers
