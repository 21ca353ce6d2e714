"""Docstrings as reStructuredText: what is laid out in columns or indented as in Markdown becomes a literal block.

Docstrings of this code base are plain text with Google's sections (which `napoleon` reads), formulas as indented
blocks, and small tables whose columns are made of spaces. reStructuredText would make paragraphs of both.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import groupby

COLUMNS = re.compile(r"\S {3,}\S")  # words that are set apart by three spaces or more
SECTION = re.compile(r"^(Args|Returns|Raises|Yields|Attributes|Example|Examples|Note|Notes):$")
LISTED = re.compile(r"^([-*]|\d+\.) ")


def as_rst(lines: list[str]) -> list[str]:
    """Return a docstring's lines with formulas and tables as literal blocks, and no other mark misread.

    >>> as_rst(["The sum:", "", "    s = |a| + |b|", "", "with |a| > 0."])
    ['The sum:', '', '::', '', '    s = |a| + |b|', '', 'with \\\\|a\\\\| > 0.']
    """
    made: list[str] = []
    before = ""  # the last line of the paragraph before
    for paragraph in _paragraphs(lines):
        if not paragraph[0].strip() or paragraph[0].startswith(">>>"):
            made += paragraph
            continue
        if SECTION.match(paragraph[0]):
            return made + lines[len(lines) - _left(lines, paragraph) :]  # the rest is napoleon's
        if _is_formula(paragraph, before) or _is_table(paragraph):
            made += ["::", "", *(line if line.startswith("    ") else f"    {line}" for line in paragraph)]
        else:
            made += [line.replace("|", r"\|") for line in paragraph]
            before = paragraph[-1]
    return made


def _paragraphs(lines: list[str]) -> Iterator[list[str]]:
    """Yield runs of blank and of other lines, in turn."""
    for _, run in groupby(lines, key=lambda line: not line.strip()):
        yield list(run)


def _left(lines: list[str], paragraph: list[str]) -> int:
    """Return how many lines there are from the first of a paragraph on."""
    return next(len(lines) - i for i in range(len(lines)) if lines[i : i + len(paragraph)] == paragraph)


def _is_formula(paragraph: list[str], before: str) -> bool:
    return all(line.startswith("    ") for line in paragraph) and not LISTED.match(before)


def _is_table(paragraph: list[str]) -> bool:
    return sum(bool(COLUMNS.search(line)) for line in paragraph) >= 2
