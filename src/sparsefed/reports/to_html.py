"""A document as one HTML file that works offline: one head, one stylesheet, one script, and the sections.

A page embeds the chart library once (or not at all if nothing is drawn), each chart as a JSON specification, and a
content policy that forbids the browser every request. HTML cannot be written unescaped: `element` escapes text unless
it is already `Html`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from html import escape
from importlib.resources import files
from itertools import groupby
from string import Template
from typing import Any

from sparsefed.reports import document as doc

DRAWN = "data-chart"  # the attribute of a chart's specification; no text can hold it with its quotes
LEAST_CONTENTS = 3  # sections from which on a page has a table of contents


class Html(str):
    """A piece of finished HTML."""

    __slots__ = ()


def element(tag: str, *children: str, **attributes: str) -> Html:
    """Return an element without empty attributes; `class_` is written class, and `aria_label` aria-label.

    >>> element("td", "a < b", class_="number", role="")
    '<td class="number">a &lt; b</td>'
    """
    given = {name.rstrip("_").replace("_", "-"): escape(value) for name, value in attributes.items() if value}
    written = "".join(f' {name}="{value}"' for name, value in given.items())
    return Html(f"<{tag}{written}>{joined(children)}</{tag}>")


def joined(children: Iterable[str], between: str = "") -> Html:
    """Return the concatenated children, each escaped unless it is Html."""
    return Html(between.join(child if isinstance(child, Html) else escape(child) for child in children))


def page(document: doc.Document) -> str:
    """Return the whole page."""
    body = content(document)
    return Template(_text("shell.html")).substitute(
        body,
        style=_text("shell.css"),
        library=element("script", Html(library()), id="vega-bundle") if draws(body) else "",
        script=_text("shell.js"),
    )


def live_page(document: doc.Document, version: str) -> str:
    """Return a page that replaces its content as this changes; `live_files` are what it loads beside it."""
    return Template(_text("live.html")).substitute(content(document), version=joined([version]))


def live_files() -> dict[str, tuple[str, str]]:
    """Return what a live page loads, by path: the content type and the text."""
    return {
        "/style.css": ("text/css", _text("shell.css")),
        "/charts.js": ("text/javascript", library()),
        "/script.js": ("text/javascript", f"{_text('shell.js')}\n{_text('live.js')}"),
    }


def content(document: doc.Document) -> dict[str, Html]:
    """Return what a page's shell is filled with: title, heading, lead, contents and sections."""
    parts = document.sections
    body = joined(map(_section, parts), "\n")
    return {
        "title": joined([document.title]),
        "heading": joined([document.heading or document.title]),
        "lead": element("p", document.lead) if document.lead else Html(""),
        "contents": _contents(parts) if len(parts) >= LEAST_CONTENTS else Html(""),
        "sections": joined([_NO_SCRIPT, body]) if f'{DRAWN}="' in body else body,
    }


def draws(body: Mapping[str, str]) -> bool:
    """Return whether there is a chart in a page's content."""
    return f'{DRAWN}="' in body["sections"]


def framed(document: doc.Document, height: int = 640) -> str:
    """Return the page as an isolated element for a notebook, with which it shares no styles or scripts."""
    style = f"width:100%;height:{height}px;border:0"
    return element("iframe", srcdoc=page(document), style=style, title=document.title)


def blocks_html(blocks: Iterable[doc.Block]) -> Html:
    """Return the concatenated blocks; consecutive charts are side by side if there is room."""
    runs = ((drawn, list(several)) for drawn, several in groupby(blocks, lambda block: isinstance(block, doc.Figure)))
    return joined(
        element("div", *map(_block, several), class_="charts") if drawn else joined(map(_block, several))
        for drawn, several in runs
    )


def _block(block: doc.Block) -> Html:
    match block:
        case doc.Paragraph():
            role = "note" if block.kind == "warning" else ""
            return element("p", *map(_inline, block.parts), class_=block.kind, role=role)
        case doc.Heading(text):
            return element("h3", text)
        case doc.Bullets(lines):
            return element("ul", *(element("li", line) for line in lines))
        case doc.Listing(text):
            return element("pre", element("code", text), tabindex="0")
        case doc.Table():
            return _table(block.on_page())
        case doc.Figure():
            return _figure(block)
        case doc.Fold(title, blocks):
            return element("details", element("summary", title), blocks_html(blocks), class_="fold")
        case doc.Side(blocks):
            return element("div", *map(_block, blocks), class_="side")


def _inline(part: str) -> str:
    tags = {doc.Code: "code", doc.Strong: "strong"}
    return element(tags[type(part)], part) if type(part) in tags else part


def _table(table: doc.Table) -> Html:
    """Return a real table: a caption, column heads, and the first cell of each row as its head."""
    heads = element("thead", element("tr", *(element("th", column.title, scope="col") for column in table.head)))
    rows = (element("tr", element("th", _content(row[0]), scope="row"), *map(cell_html, row[1:])) for row in table.rows)
    heat = " heat" * any(cell.heat is not None for row in table.rows for cell in row)
    style = "facts" if table.style == "lines" else table.style + heat
    whole = element("table", element("caption", table.caption), heads, element("tbody", *rows), class_=style)
    return element("div", whole, class_="scroll", role="region", tabindex="0", aria_label=table.caption)


def cell_html(cell: doc.TableCell) -> Html:
    """Return a cell, coloured from nothing at 0 to the page's full `--hot` at 1.

    >>> cell_html(doc.TableCell("42%", heat=0.42))
    '<td style="--heat:42%">42%</td>'
    """
    colour = "" if cell.heat is None else f"--heat:{100 * min(1.0, max(0.0, cell.heat)):.0f}%"
    return element("td", _content(cell), style=colour)


def _content(cell: doc.TableCell) -> Html:
    lines = cell.text.split("\n")
    text = joined([cell.text] if len(lines) == 1 else [element("div", line) for line in lines])
    text = element("strong", text) if cell.strong else text
    text = element("details", element("summary", cell.fold), text, class_="fold") if cell.fold else text
    badges = [joined([" ", element("span", badge, class_="badge")]) for badge in cell.badges]
    return joined([text, *badges, *([element("span", cell.under, class_="under")] if cell.under else [])])


def _figure(figure: doc.Figure) -> Html:
    title, alternative, spec = figure.spec()
    # On a page, the page decides the width; a standalone chart keeps its own.
    spec |= {"width": "container", "autosize": {"type": "fit-x", "contains": "padding"}}
    place = element("div", class_="chart", id=f"chart-{figure.name}", data_told=f"{title}. {alternative}")
    data = element("script", script_json(spec), type="application/json", **{DRAWN: figure.name})
    numbers = [] if figure.numbers is None else [_block(doc.Fold("Numbers", (figure.numbers,)))]
    return element("figure", element("h3", title), place, data, element("figcaption", figure.caption), *numbers)


def script_json(value: Any) -> Html:
    """Return JSON that is safe inside a script element: nothing in it can end the element or open a comment."""
    text = json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    return Html(text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029"))


@cache
def library() -> str:
    """Return Vega, Vega-Lite (the version that Altair writes for) and Vega-Embed as one script."""
    import altair as alt
    import vl_convert

    version = ".".join(alt.SCHEMA_VERSION.lstrip("v").split(".")[:2])
    return str(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", vl_version=version))


def _section(part: doc.Section) -> Html:
    heading = element("h2", part.title, id=f"{part.id}-title")
    return element("section", heading, blocks_html(part.blocks), id=part.id, aria_labelledby=f"{part.id}-title")


def _contents(sections: Sequence[doc.Section]) -> Html:
    links = (element("li", element("a", part.title, href=f"#{part.id}")) for part in sections)
    return element("nav", element("ul", *links), aria_label="On this page")


def _text(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


_NO_SCRIPT = element(
    "noscript", element("p", "The charts need JavaScript; the tables do not.", class_="warning", role="note")
)
