"""A document as Markdown, for a note, an issue or a README: everything but the pictures, whose numbers are tables."""

from __future__ import annotations

import re
from collections.abc import Iterator

from sparsefed.reports import document as doc


def markdown(document: doc.Document) -> str:
    """Return the whole document as Markdown."""
    head = [f"# {_plain(document.heading or document.title)}", *([_plain(document.lead)] if document.lead else [])]
    parts = [text for part in document.sections for text in (f"## {_plain(part.title)}", *_texts(part.blocks))]
    return "\n\n".join([*head, *parts]) + "\n"


def _texts(blocks: tuple[doc.Block, ...]) -> Iterator[str]:
    for block in blocks:
        match block:
            case doc.Paragraph():
                yield "".join(map(_inline, block.parts))
            case doc.Heading(text):
                yield f"### {_plain(text)}"
            case doc.Bullets(lines):
                yield "\n".join(f"- {_plain(line)}" for line in lines)
            case doc.Listing(text):
                fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
                yield f"{fence}\n{text.rstrip()}\n{fence}"
            case doc.Table():
                yield _table(block.on_page())
            case doc.Figure():
                title, alternative, _ = block.spec()
                yield f"**{_plain(title)}.** {_plain(alternative)}"
                yield from _texts(() if block.numbers is None else (block.numbers,))
            case doc.Fold(title, inside):
                yield f"**{_plain(title)}**"
                yield from _texts(inside)
            case doc.Side(inside):
                yield from _texts(inside)


def _table(table: doc.Table) -> str:
    rows = [[_plain(column.title) for column in table.head], *([_cell(cell) for cell in row] for row in table.rows)]
    right = [table.style == "numbers" and i > 0 and not column.left for i, column in enumerate(table.head)]
    under = "|".join(" ---: " if each else " --- " for each in right)
    head, *lines = (f"| {' | '.join(row)} |" for row in rows)
    return "\n".join([f"{_plain(table.caption)}\n", head, f"|{under}|", *lines])


def _cell(cell: doc.TableCell) -> str:
    text = _plain(" ".join([cell.text, *cell.badges])).replace("|", "\\|").replace("\n", "<br>")
    text = f"**{text}**" if cell.strong else text
    return f"{text} ({_plain(cell.under)})" if cell.under else text


def _inline(part: str) -> str:
    if isinstance(part, doc.Code):
        return f"`{part}`"
    return f"**{_plain(part)}**" if isinstance(part, doc.Strong) else _plain(part)


def _plain(text: str) -> str:
    """Return text escaped for Markdown."""
    return text.replace("\\", "\\\\").replace("<", "&lt;").replace("*", "\\*").replace("_", "\\_")
