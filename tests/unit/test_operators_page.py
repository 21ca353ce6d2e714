"""The operators' page explains every reason for which the door refuses a reply, and no other."""

from __future__ import annotations

import re
from pathlib import Path

from sparsefed.flower.door import REASONS

PAGE = Path(__file__).parents[2] / "docs" / "flower_operators.md"
SOURCE = Path(__file__).parents[2] / "src" / "sparsefed" / "flower"


def test_every_reason_is_explained_in_the_order_of_the_door() -> None:
    rows = re.findall(r"^\| `([\w ]+)` \| (.+?) \| (.+?) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert [reason for reason, _, _ in rows] == [*REASONS]
    assert all(len(meaning) > 15 and len(cure) > 15 for _, meaning, cure in rows)


def test_every_reason_that_the_code_gives_is_among_them() -> None:
    given = set()
    for path in SOURCE.glob("*.py"):
        given |= set(re.findall(r"(?:Refusal|_RefusedError)\(\s*\"([\w ]+)\"", path.read_text(encoding="utf-8")))
    assert len(given) > 10 and given <= REASONS.keys()
