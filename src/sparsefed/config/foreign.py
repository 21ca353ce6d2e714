"""Errors of code that a config names: which line of whose file raised them, in a few words."""

from __future__ import annotations

import traceback
from pathlib import Path

from sparsefed.core.errors import printable

OURS = Path(__file__).parents[1]


def located(error: BaseException) -> str:
    """Return an exception with the user's file and line that it came from, if it came through one of theirs.

    >>> located(ValueError("no"))
    'ValueError: no'
    """
    what = f"{type(error).__name__}: {printable(error)}" if str(error) else type(error).__name__
    frame = users_frame(error)
    return what if frame is None else f"{what} ({frame.filename}, line {frame.lineno}, in {frame.name})"


def users_frame(error: BaseException) -> traceback.FrameSummary | None:
    """Return the last frame of an exception that is neither ours, nor an installed package's, nor Python's."""
    frames = traceback.extract_tb(error.__traceback__)
    return next((frame for frame in reversed(frames) if _is_users(frame.filename)), None)


def _is_users(file: str) -> bool:
    path = Path(file)
    library = Path(traceback.__file__).parent
    installed = {"site-packages", "dist-packages"} & set(path.parts)
    return path.is_absolute() and not installed and not path.is_relative_to(OURS) and not path.is_relative_to(library)
