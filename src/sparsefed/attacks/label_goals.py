"""Goals about labels: test points with wrong ones, or a class that is called another.

labels     test points with wrong labels (Bhagoji et al. 2019; SparseFed's "auxiliary set")
semantic   every example of a source class called the target class (SparseFed's 7 -> 1)
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
import torch
from torch import Tensor

from sparsefed.attacks.goal_types import Goal, Scene, goal
from sparsefed.core.errors import ConfigError
from sparsefed.core.rng import rng
from sparsefed.core.types import IGNORED

Source = Annotated[int, "the class whose examples the attackers want misnamed"]
Target = Annotated[int, "the class they should be called"]


def auxiliary_set(x: Tensor, y: Tensor, s: int, classes: int, seed: int) -> Goal:
    """Draw s test points without replacement, each with one of its wrong labels, all equally likely."""
    if not 1 <= s < len(y):
        raise ConfigError(
            f"auxiliary = {s} points cannot be drawn from {len(y)} test points with some left to test on; "
            f"use 1 to {len(y) - 1}"
        )
    generator = rng(seed, "auxiliary set")
    positions = torch.from_numpy(np.sort(generator.choice(len(y), s, replace=False)))
    points, right = x[positions], y[positions]
    shift = torch.from_numpy(generator.integers(1, classes, tuple(right.shape)))
    wanted = torch.where(right == IGNORED, right, (right + shift) % classes)
    return Goal(points, wanted, points, wanted, positions)


@goal
def labels(scene: Scene, *, auxiliary: Annotated[int, "test points with wrong labels"] = 500) -> Goal:
    """Test points with wrong labels, drawn at random."""
    return auxiliary_set(scene.x_test, scene.y_test, auxiliary, scene.classes, scene.seed)


@goal
def semantic(scene: Scene, *, source: Source = 7, target: Target = 1) -> Goal:
    """All test examples of one class, called another."""
    one_label(scene)
    _check_classes(scene, source, target)
    positions = torch.nonzero(scene.y_test == source).flatten()
    points, wanted = scene.x_test[positions], torch.full((len(positions),), target)
    return Goal(points, wanted, points, wanted, positions, target=target)


def one_label(scene: Scene) -> None:
    """Raise ConfigError for a goal that names classes where an example has no single class."""
    if scene.y_train.dim() != 1:
        raise ConfigError(
            "this attack wants images called another class, but text has no classes; use 'replacement_text', or an "
            "attack on labels or without a goal, such as 'pgd' or 'sign_flip'"
        )


def _check_classes(scene: Scene, source: int, target: int) -> None:
    for name, value in (("source", source), ("target", target)):
        if not 0 <= value < scene.classes:
            raise ConfigError(f"{name} is {value}, but classes run from 0 to {scene.classes - 1}")
    if source == target:
        raise ConfigError(f"source and target are both {source}; nothing would change: choose two classes")
    if not bool((scene.y_test == source).any()):
        raise ConfigError(f"the test set has no example of class {source}; choose another source")
