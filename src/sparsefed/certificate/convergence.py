"""The convergence theorem beside a run: a softmax layer is trained, its whole gradient measured, the bound drawn.

For `sparsefed certify CONFIG --convergence`:

    measure(config, watch) -> Convergence      trains; watch(rounds done, rounds in all)
    sentences(found) -> list[str]              what came out, for the terminal and the page
    heads() / rows(found)                      the table
    chart(found), html(found)                  the picture, the page
    save(found, folder) -> list[Path]          writes the page, says where
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sparsefed.config import Config

if TYPE_CHECKING:
    import altair as alt

PAGE = "convergence.html"
HEAD = ("Rounds", "Least |grad f|^2 so far", "Bound, measured", "Bound, worst case", "As printed")


@dataclass(frozen=True)
class Convergence:
    """What was measured, and the constants that the theorem needs."""

    config: Config


def measure(config: Config, watch: Callable[[int, int], None] = lambda done, rounds: None) -> Convergence:  # noqa: ARG005
    """Train as the config says, and every `evaluate_every` rounds compute the whole gradient."""
    raise NotImplementedError


def sentences(found: Convergence) -> list[str]:
    raise NotImplementedError


def rows(found: Convergence) -> Iterator[tuple[str, ...]]:
    """The table under HEAD, a row for some numbers of rounds."""
    raise NotImplementedError


def chart(found: Convergence) -> alt.LayerChart:
    raise NotImplementedError


def html(found: Convergence) -> str:
    raise NotImplementedError


def save(found: Convergence, folder: Path) -> list[Path]:
    raise NotImplementedError
