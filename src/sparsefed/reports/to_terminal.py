"""A document on a terminal: first tables, then sentences, so that what matters most is right above the prompt."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from rich.console import Console, RenderableType
from rich.markup import escape
from rich.table import Table as RichTable

from sparsefed.reports.document import Block, Bullets, Document, Figure, Paragraph, Side, Table, TableCell

HEAD_WIDTH = 11
COLOURS = {"good": "green", "fair": "yellow", "poor": "red"}
STYLES = {"note": "dim", "warning": "yellow"}


def show(document: Document, console: Console) -> None:
    """Print the sections that are marked for a terminal."""
    console.print(f"[bold]{escape(document.heading or document.title)}[/bold]", highlight=False, soft_wrap=True)
    for table in tables(document):
        console.print(table)
    for sentence in sentences(document):
        console.print(sentence, highlight=False, soft_wrap=True)


def tables(document: Document) -> Iterator[RenderableType]:
    """Yield the tables, ready to be printed."""
    for block in _blocks(document):
        if isinstance(block, Table) and block.style != "lines" and not block.page_only:
            yield rich_table(block)


def sentences(document: Document) -> Iterator[str]:
    """Yield the sentences, with rich's markup."""
    for block in _blocks(document):
        if isinstance(block, Paragraph) and not block.page_only:
            style = STYLES.get(block.kind)
            yield f"[{style}]{escape(block.text)}[/]" if style else escape(block.text)
        elif isinstance(block, Bullets) and not block.page_only:
            yield from map(escape, block.lines)
        elif isinstance(block, Table) and block.style == "lines":
            yield from (line for row in block.rows for line in _lines(row))


def _blocks(document: Document) -> Iterator[Block]:
    """Yield the blocks of the sections for a terminal: those side by side in turn, and the numbers of figures."""
    for block in (block for part in document.sections if part.terminal for block in part.blocks):
        for inner in block.blocks if isinstance(block, Side) else (block,):
            yield inner.numbers if isinstance(inner, Figure) and inner.numbers is not None else inner


def _lines(row: Sequence[TableCell]) -> Iterator[str]:
    """Yield a row as a line, with cells of several lines indented below it."""
    yield " · ".join(_text(cell) for cell in row if "\n" not in cell.text or cell.fold)
    long = (cell for cell in row if "\n" in cell.text and not cell.fold)
    yield from (f"    [dim]{escape(line)}[/dim]" for cell in long for line in cell.text.split("\n"))


def rich_table(table: Table) -> RichTable:
    """Return a table that rich prints."""
    shown = [i for i, head in enumerate(table.head) if not head.page_only and not head.below]
    pairs = {i for i in shown if i + 1 < len(table.head) and table.head[i + 1].below}
    made = RichTable(title=escape(table.caption) or None, title_justify="left")
    for i in shown:
        right = table.style == "numbers" and i > 0 and not table.head[i].left
        # Heads of number columns are wrapped to leave room for names.
        lines = textwrap.wrap(table.head[i].title, HEAD_WIDTH) if right else [table.head[i].title]
        below = [f"({table.head[i + 1].title.rpartition(', ')[2]})"] if i in pairs else []  # whose: 'Loss, paper'
        title = escape("\n".join([*lines, *below]))
        made.add_column(title, justify="right" if right else "left", overflow="fold")
    for row in table.rows:
        cells = (f"{_text(row[i])}\n({_text(row[i + 1])})" if i in pairs else _text(row[i]) for i in shown)
        made.add_row(*cells, style="bold" if any(cell.strong for cell in row) else "")
    return made


def _text(cell: TableCell) -> str:
    text = cell.fold or cell.text
    whole = "\n".join(filter(None, [" ".join([text, *cell.badges]), cell.under]))
    return f"[{COLOURS[cell.level]}]{escape(whole)}[/]" if cell.level else escape(whole)
