"""Notebooks as pages: cells and the outputs stored with them become Markdown, and nothing is executed.

A few lines in the place of a package that brings Jupyter with it. Shown are text, tables and pictures; a chart that
would load scripts from elsewhere is left out unless a picture is stored beside it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def as_markdown(notebook: str) -> str:
    """Return the cells of a notebook and their outputs as MyST Markdown.

    >>> print(as_markdown('{"cells": [{"cell_type": "markdown", "source": ["# One", " and two"]}]}'))
    # One and two
    """
    return "\n\n".join(part for cell in json.loads(notebook)["cells"] for part in _parts(cell))


def _parts(cell: Mapping[str, Any]) -> Iterator[str]:
    source = "".join(cell["source"])
    if cell["cell_type"] != "code":
        yield source
        return
    shell = source.startswith(("!", "%%bash"))
    yield _fenced("console" if shell else "python", source)
    streamed = "".join("".join(each["text"]) for each in cell["outputs"] if each["output_type"] == "stream")
    if streamed:
        yield _fenced("{code-block} text\n:class: output", COLOURS.sub("", streamed))
    for each in cell["outputs"]:
        yield from _shown(each.get("data", {}))


def _shown(data: Mapping[str, Any]) -> Iterator[str]:
    """Yield the best form of a result that needs no script: a picture, a table, text."""
    html = "".join(data.get("text/html", ()))
    if "image/png" in data:
        picture = "".join(data["image/png"]).replace("\n", "")
        yield _fenced(
            "{raw} html", f'<img class="output" alt="the output of the cell" src="data:image/png;base64,{picture}">'
        )
    elif html and "<script" not in html:
        table = re.sub(r"<style.*?</style>", "", html, flags=re.DOTALL)
        yield _fenced("{raw} html", f'<div class="output">{table}</div>')
    elif "text/plain" in data:
        yield _fenced("{code-block} text\n:class: output", "".join(data["text/plain"]))


def _fenced(kind: str, text: str) -> str:
    return f"````{kind}\n{text.rstrip()}\n````"
