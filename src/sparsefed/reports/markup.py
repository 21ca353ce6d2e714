"""HTML that cannot be written unescaped: text is escaped unless it is already `Html`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape


class Html(str):
    """A piece of finished HTML."""

    __slots__ = ()


class Cell(Html):
    """A finished cell of a table, with attributes of its own."""

    __slots__ = ()


def element(tag: str, *children: str, **attributes: str) -> Html:
    """An element; a trailing underscore in an attribute's name is dropped and the others become hyphens.

    >>> element("td", "a < b", class_="number")
    '<td class="number">a &lt; b</td>'
    """
    written = "".join(f' {name.rstrip("_").replace("_", "-")}="{escape(value)}"' for name, value in attributes.items())
    return Html(f"<{tag}{written}>{joined(children)}</{tag}>")


def joined(children: Iterable[str], between: str = "") -> Html:
    """The children one after the other, each escaped unless it is Html."""
    return Html(between.join(child if isinstance(child, Html) else escape(child) for child in children))


def table(caption: str, head: Sequence[str], body: Iterable[Sequence[str]], class_: str = "") -> Html:
    """A real table: a caption, column heads, and the first cell of each row as its head."""
    heads = element("thead", element("tr", *(element("th", cell, scope="col") for cell in head)))
    rows = (element("tr", element("th", row[0], scope="row"), *map(_cell, row[1:])) for row in body)
    whole = element("table", element("caption", caption), heads, element("tbody", *rows), class_=class_)
    return element("div", whole, class_="scroll", role="region", tabindex="0", aria_label=caption)


def _cell(content: str) -> Html:
    return content if isinstance(content, Cell) else element("td", content)


def folded(title: str, *children: str) -> Html:
    """A part that opens on a click, and by itself on paper."""
    return element("details", element("summary", title), *children, class_="fold")


def foldable(title: str, content: Html, fold: bool) -> Html:
    """The content, folded where it would be in the way of what follows."""
    return folded(title, content) if fold and content else content


def note(*children: str) -> Html:
    """A paragraph that explains, in small."""
    return element("p", *children, class_="note")


def code(text: str) -> Html:
    """Lines to be copied."""
    return element("pre", element("code", text), tabindex="0")
