"""Attacks, one published attack a file; a new one is a file and a line in `ATTACKS`."""

from __future__ import annotations

from sparsefed.attacks.base import NEEDS, Attack, Knowledge, Need
from sparsefed.attacks.goals import Goal, Scene, auxiliary_set
from sparsefed.attacks.named import ATTACKS, Attacker, equip
from sparsefed.attacks.pgd import pgd

__all__ = [
    "ATTACKS",
    "NEEDS",
    "Attack",
    "Attacker",
    "Goal",
    "Knowledge",
    "Need",
    "Scene",
    "auxiliary_set",
    "equip",
    "pgd",
]
