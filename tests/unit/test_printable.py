"""What the terminal gets: text of others is printed as text, whatever it holds."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.table import Table
from rich.text import Text

from sparsefed.cli.printable import PrintableConsole, visible


def shown(thing: object) -> str:
    file = io.StringIO()
    PrintableConsole(file=file, width=60, color_system="truecolor", force_terminal=True).print(thing, markup=False)
    return file.getvalue()


@pytest.mark.parametrize("hostile", ["\x1b[2J", "\x1b]0;title\x07", "\x9b31m", "\u202etxt", "\r", "\x08"])
def test_escape_codes_never_reach_the_terminal(hostile: str) -> None:
    table = Table("name", title=Text(hostile))
    table.add_row(Text(f"a{hostile}b"))
    for thing in (Text(hostile), f"in a sentence {hostile}", table):
        assert hostile not in shown(thing)


def test_colours_of_ours_do() -> None:
    assert "\x1b[31mred" in shown(Text("red", style="red"))


@given(st.text())
def test_printable_text_has_no_control_characters(text: str) -> None:
    left = [char for char in visible(text) if not char.isprintable()]
    assert all(char == "\n" or char.isspace() or ord(char) > 160 for char in left)
    assert visible(visible(text)) == visible(text)
