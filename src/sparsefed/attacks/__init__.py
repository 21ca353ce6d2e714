"""Attacks, one published attack a file; a new one is a file and a line in `ATTACKS`."""

from __future__ import annotations

from sparsefed.attacks.goals import Goal, Scene, auxiliary_set
from sparsefed.attacks.pgd import pgd
from sparsefed.attacks.registry import ATTACKS, Attacker, equip
from sparsefed.core.threat import NEEDS, Attack, Knowledge, Need

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
