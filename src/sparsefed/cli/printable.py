"""A console that prints foreign text as text: escape codes from files, names and servers never reach the terminal."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

_HIDDEN = {"Cc", "Cf", "Cs"}  # control characters, invisible ones that change the direction of text, halves of pairs


def visible(text: str) -> str:
    """Return text with a visible sign in the place of every character that a terminal could take for a command.

    >>> visible("\\x1b[31mred\\x07"), visible("plain")
    ('␛[31mred␇', 'plain')
    """
    if text.isascii() and text.replace("\n", "").isprintable():
        return text
    return "".join(map(_shown, text))


def _shown(char: str) -> str:
    if char == "\n" or unicodedata.category(char) not in _HIDDEN:
        return char
    return chr(0x2400 + ord(char)) if ord(char) < 32 else "\N{REPLACEMENT CHARACTER}"


class PrintableConsole(Console):
    """A Rich console on which only Rich itself can send control codes."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield the segments of something to be printed, with all their text made printable."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(visible(segment.text), segment.style)
