"""Limits on per-device history: how many devices' vectors of d numbers a rule keeps."""

from __future__ import annotations

from typing import Annotated

from sparsefed.defenses.pipeline import require

BYTES = 2 << 30  # all vectors together, where no number of devices is given

Remember = Annotated[
    int | None, "devices whose past is kept (4 d bytes each), the least recently seen forgotten; None: 2 GB of them"
]


def require_remember(remember: int | None) -> None:
    require(
        remember is None or remember >= 0,
        f"remember is {remember}, but it is a number of devices: choose remember >= 0 (0: none)",
    )


def most_devices(remember: int | None, d: int) -> int:
    """Return how many devices' vectors are kept at most.

    >>> most_devices(None, 6_568_640), most_devices(7, 6_568_640)
    (81, 7)
    """
    return max(1, BYTES // (4 * d)) if remember is None else remember
