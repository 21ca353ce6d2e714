"""The assumptions of a certificate, how each is known, and the status of the result that follows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

# by construction  the code or the data make it so
# assumed          not checked, and where it is about the protocol: given by the user
# measured         in this run only; another run of the same protocol, attacked otherwise, may differ
# estimate         a number that may be too small
Mark = Literal["by construction", "assumed", "measured", "estimate"]
Status = Literal["certificate", "conditional", "estimate"]

TITLES: dict[Status, str] = {
    "certificate": "Certificate",
    "conditional": "Conditional certificate",
    "estimate": "Estimate, not a certificate",
}


@dataclass(frozen=True)
class Assumption:
    """An assumption that must hold."""

    about: str  # a word or two
    says: str
    mark: Mark
    binding: bool = False  # whether somebody other than the code vouches for it, so that the certificate is conditional


def status(assumptions: Iterable[Assumption]) -> Status:
    """Return the status of a number that rests on these assumptions.

    >>> status([Assumption("c", "from the data", "by construction"), Assumption("omega", "given", "assumed", True)])
    'conditional'
    """
    listed = list(assumptions)
    if any(each.mark == "estimate" for each in listed):
        return "estimate"
    return "conditional" if any(each.binding for each in listed) else "certificate"
