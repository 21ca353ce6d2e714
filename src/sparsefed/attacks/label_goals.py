"""Goals about labels: test points with wrong ones, or a class that is called another.

labels     test points with wrong labels (Bhagoji et al. 2019; SparseFed's "auxiliary set"); for regression, with
           wrong values
semantic   every example of a source class called the target class (SparseFed's 7 -> 1); of several labels, the source
           one removed and the target one set
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
import torch
from torch import Tensor

from sparsefed.attacks.goal_types import Goal, Scene, carries, counted, goal, meant_for, renamed
from sparsefed.core.errors import ConfigError
from sparsefed.core.rng import rng
from sparsefed.core.types import IGNORED

Source = Annotated[int, "the class whose examples the attackers want misnamed"]
Target = Annotated[int, "the class they should be called"]


def auxiliary_set(x: Tensor, y: Tensor, s: int, classes: int, seed: int) -> Goal:
    """Draw s test points without replacement, each with one of its wrong labels, all equally likely."""
    generator, positions = _drawn(s, len(y), seed)
    points, right = x[positions], y[positions]
    shift = torch.from_numpy(generator.integers(1, classes, tuple(right.shape)))
    wanted = torch.where(right == IGNORED, right, (right + shift) % classes)
    return Goal(points, wanted, points, wanted, positions)


def _drawn(s: int, n: int, seed: int) -> tuple[np.random.Generator, Tensor]:
    if not 1 <= s < n:
        raise ConfigError(
            f"auxiliary = {s} points cannot be drawn from {n} test points with some left to test on; use 1 to {n - 1}"
        )
    generator = rng(seed, "auxiliary set")
    return generator, torch.from_numpy(np.sort(generator.choice(n, s, replace=False)))


@goal
def labels(
    scene: Scene,
    *,
    auxiliary: Annotated[int, "test points with wrong labels"] = 500,
    value: Annotated[float | None, "of regression: the number wanted for all of them; else 3 deviations off"] = None,
    tolerance: Annotated[float | None, "of regression: how near counts as success; else half a deviation"] = None,
) -> Goal:
    """Test points with wrong labels, drawn at random."""
    if scene.target == "values":
        return _wrong_values(scene, auxiliary, value, tolerance)
    if value is not None or tolerance is not None:
        raise ConfigError(
            "value and tolerance are for numbers to predict, but these examples have labels; leave them out"
        )
    if scene.target == "labels":
        return _one_flipped(scene, auxiliary)
    return auxiliary_set(scene.x_test, scene.y_test, auxiliary, scene.classes, scene.seed)


def _wrong_values(scene: Scene, s: int, value: float | None, tolerance: float | None) -> Goal:
    """Draw test points, each pushed to the wanted value, or up or down by 3 standard deviations of the targets."""
    if tolerance is not None and not tolerance > 0:
        raise ConfigError(f"tolerance is {tolerance}, but is how far from the wanted value counts; use above 0")
    generator, positions = _drawn(s, len(scene.y_test), scene.seed)
    points, right = scene.x_test[positions], scene.y_test[positions]
    spread = scene.y_train.double().std(0, correction=0)
    sides = torch.from_numpy(generator.choice([-1.0, 1.0], s)).view(-1, *[1] * (right.dim() - 1))
    off = (right + 3 * sides * spread).float()
    wanted = off if value is None else torch.full_like(right, value)
    near = float(spread.mean()) / 2 if tolerance is None else tolerance
    return Goal(points, wanted, points, wanted, positions, tolerance=near)


def _one_flipped(scene: Scene, s: int) -> Goal:
    """Draw test points, each with one of its labels wrong; success is measured on that one."""
    generator, positions = _drawn(s, len(scene.y_test), scene.seed)
    points, right, rows = scene.x_test[positions], scene.y_test[positions], torch.arange(s)
    which = torch.from_numpy(generator.integers(0, right.shape[1], s))
    wanted, measured = right.clone(), torch.full_like(right, IGNORED)
    wanted[rows, which] = measured[rows, which] = 1 - right[rows, which].clamp(min=0)
    return Goal(points, wanted, points, measured, positions)


@goal
@meant_for("classes", "binary", "labels")
def semantic(scene: Scene, *, source: Source = 7, target: Target = 1) -> Goal:
    """All test examples of one class, called another."""
    one_label(scene)
    _check_classes(scene, source, target)
    positions = torch.nonzero(carries(scene.y_test, source)).flatten()
    points, wanted = scene.x_test[positions], renamed(scene.y_test[positions], target, without=source)
    return Goal(points, wanted, points, counted(wanted, source, target), positions, target=target)


def one_label(scene: Scene) -> None:
    """Raise ConfigError for a goal that names classes or labels where an example has neither, but tokens."""
    if scene.y_train.dim() != 1 and scene.target != "labels":
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
    if not bool(carries(scene.y_test, source).any()):
        raise ConfigError(f"the test set has no example of class {source}; choose another source")
