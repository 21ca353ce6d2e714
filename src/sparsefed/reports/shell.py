"""The shell of every page: one head, one stylesheet, one script, and sections in between.

A page is one file that works offline: it carries the chart library once (or not at all where nothing is drawn), each
chart as a JSON specification, and a content policy that forbids the browser every request. A page is made of sections,
a section of pieces of HTML; text that comes from a run is escaped by `markup.element`.

    page("SparseFed audit", "three defenses, two attacks", [section("Summary", ...), section("Pareto front", ...)])
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from functools import cache
from importlib.resources import files
from string import Template
from typing import TYPE_CHECKING, Any, NamedTuple

from sparsefed.reports.markup import Html, element, joined

if TYPE_CHECKING:
    import altair as alt

DRAWN = "data-chart"  # the attribute of a chart's specification; no text can hold it with its quotes
LEAST_CONTENTS = 3  # sections from which a page says first what it has


class Section(NamedTuple):
    """A part of a page under a heading of its own."""

    title: str
    body: Html

    @property
    def id(self) -> str:
        """The title as an address within the page."""
        return re.sub(r"[^a-z0-9]+", "-", self.title.lower()).strip("-")


def section(title: str, *body: str) -> Section:
    """A part of a page; one without a body is left out."""
    return Section(title, joined(body))


def page(title: str, lead: str, sections: Iterable[Section], heading: str = "") -> str:
    """A whole page; the heading is the title unless there is a shorter one."""
    filled = [part for part in sections if part.body]
    body = joined(map(_section, filled), "\n")
    draws = f'{DRAWN}="' in body
    return Template(_text("shell.html")).substitute(
        title=joined([title]),
        heading=joined([heading or title]),
        lead=element("p", lead) if lead else "",
        style=_text("shell.css"),
        contents=_contents(filled) if len(filled) >= LEAST_CONTENTS else "",
        sections=joined([_NO_SCRIPT, body]) if draws else body,
        library=element("script", Html(library()), id="vega-bundle") if draws else "",
        script=_text("shell.js"),
    )


def figure(name: str, chart: alt.TopLevelMixin, said: str, *behind: Html) -> Html:
    """A chart with its title as a heading that wraps, a text alternative, what it is read for and what is behind."""
    spec = chart.to_dict()
    title = spec.pop("title")
    told = " ".join([title["subtitle"]] if isinstance(title["subtitle"], str) else title["subtitle"])
    # The page decides the width; a chart on its own has one of its own.
    spec |= {"width": "container", "autosize": {"type": "fit-x", "contains": "padding"}}
    place = element("div", class_="chart", id=f"chart-{name}", data_told=f"{title['text']}. {told}")
    data = element("script", script_json(spec), type="application/json", **{DRAWN: name})
    return element("figure", element("h3", title["text"]), place, data, element("figcaption", said), *behind)


def figures(drawn: Sequence[Html]) -> Html:
    """Charts side by side where there is room."""
    return element("div", *drawn, class_="charts") if drawn else Html("")


def script_json(value: Any) -> Html:
    """JSON that may stand inside a script element: nothing in it can end the element or open a comment."""
    text = json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    return Html(text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029"))


@cache
def library() -> str:
    """Vega, Vega-Lite (the version that Altair writes for) and Vega-Embed as one script."""
    import altair as alt
    import vl_convert

    version = ".".join(alt.SCHEMA_VERSION.lstrip("v").split(".")[:2])
    return str(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", vl_version=version))


def _section(part: Section) -> Html:
    heading = element("h2", part.title, id=f"{part.id}-title")
    return element("section", heading, part.body, id=part.id, aria_labelledby=f"{part.id}-title")


def _contents(sections: Sequence[Section]) -> Html:
    links = (element("li", element("a", part.title, href=f"#{part.id}")) for part in sections)
    return element("nav", element("ul", *links), aria_label="On this page")


def _text(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


_NO_SCRIPT = element(
    "noscript", element("p", "The charts need JavaScript; the tables do not.", class_="warning", role="note")
)
