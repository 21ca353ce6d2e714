"""The attackers' goals by name; a goal is passed to an attack: `pgd(goals.labels(auxiliary=100))`.

    labels        test points with wrong labels (Bhagoji et al. 2019; SparseFed's "auxiliary set"); where an example has
                  several labels one of them wrong, for regression another value, reached within a tolerance
    semantic      every example of a source class called the target class (SparseFed's 7 -> 1)
    patch, bars   any image that carries a trigger, called the target class; of several labels, given that one
    edge          the least typical examples of a class, called another
    continuation  a phrase that is followed by the attackers' words (text)

An untargeted attack has no goal but to spoil the model, and is measured by test accuracy, or the task's score, alone.
"""

from __future__ import annotations

from sparsefed.attacks.backdoor_goals import bars, edge, patch
from sparsefed.attacks.continuation import continuation
from sparsefed.attacks.goal_types import Goal, Scene, Stamp, goal, meant_for, untargeted
from sparsefed.attacks.label_goals import auxiliary_set, labels, semantic

__all__ = [
    "Goal",
    "Scene",
    "Stamp",
    "auxiliary_set",
    "bars",
    "continuation",
    "edge",
    "goal",
    "labels",
    "meant_for",
    "patch",
    "semantic",
    "untargeted",
]
