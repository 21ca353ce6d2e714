"""Attacks, one published attack a file; a new one is a file and a line: (auxiliary set, **parameters) -> Attack."""

from __future__ import annotations

from collections.abc import Callable

from sparsefed.attacks.base import Attack, AuxiliarySet, Knowledge, auxiliary_set
from sparsefed.attacks.pgd import pgd

ATTACKS: dict[str, Callable[..., Attack]] = {
    "pgd": pgd,
}

__all__ = ["ATTACKS", "Attack", "AuxiliarySet", "Knowledge", "auxiliary_set", "pgd"]
