"""Attacks, one published attack per file; to add one, write a file and a line in `ATTACKS`.

pgd(epochs=3)                                an attack as a function, with its usual goal
pgd(goals.labels(auxiliary=100), epochs=3)   with another goal
"""

from __future__ import annotations

from sparsefed.attacks import goals
from sparsefed.attacks.adaptive import adaptive_push, adaptive_topk
from sparsefed.attacks.alie import alie, alie_searched
from sparsefed.attacks.attack import Attacker, ChosenAttack, attack, attack_info
from sparsefed.attacks.badnets import badnets
from sparsefed.attacks.boosted import boosted
from sparsefed.attacks.dba import dba
from sparsefed.attacks.drift import drift
from sparsefed.attacks.fang import fang_krum, fang_trimmed
from sparsefed.attacks.forge import forge
from sparsefed.attacks.goals import Goal, Scene, auxiliary_set, goal
from sparsefed.attacks.ipm import ipm, ipm_searched
from sparsefed.attacks.label_flip import label_flip
from sparsefed.attacks.lone_pgd import lone_pgd
from sparsefed.attacks.mimic import mimic
from sparsefed.attacks.min_max import min_max, min_sum
from sparsefed.attacks.neurotoxin import neurotoxin
from sparsefed.attacks.noise import gaussian, sign_flip
from sparsefed.attacks.pgd import edge, pgd, semantic
from sparsefed.attacks.registry import ATTACKS, as_attack, equip
from sparsefed.attacks.replacement import replacement, replacement_text
from sparsefed.core.threat import NEEDS, Attack, Knowledge, Need

__all__ = [
    "ATTACKS",
    "NEEDS",
    "Attack",
    "Attacker",
    "ChosenAttack",
    "Goal",
    "Knowledge",
    "Need",
    "Scene",
    "adaptive_push",
    "adaptive_topk",
    "alie",
    "alie_searched",
    "as_attack",
    "attack",
    "attack_info",
    "auxiliary_set",
    "badnets",
    "boosted",
    "dba",
    "drift",
    "edge",
    "equip",
    "fang_krum",
    "fang_trimmed",
    "forge",
    "gaussian",
    "goal",
    "goals",
    "ipm",
    "ipm_searched",
    "label_flip",
    "lone_pgd",
    "mimic",
    "min_max",
    "min_sum",
    "neurotoxin",
    "pgd",
    "replacement",
    "replacement_text",
    "semantic",
    "sign_flip",
]
