"""Goals of the backdoor attacks: images that carry a trigger, or that hardly ever occur, called the target class.

Where an example has several labels, the target is one of them: it is wanted set, and success is measured on it alone.

    patch   a bright square in a corner, usually bottom right (Gu et al. 2017, BadNets)
    bars    four short bright bars in the top left corner, which attackers can share out (Xie et al. 2020, DBA)
    edge    the least typical examples of a class, as they are (Wang et al. 2020, Attack of the Tails)

A trigger is a stamp: some pixels overwritten with white, whatever was there. So its effect can be read off the stamp
itself, and `parts` splits any of them. This file knows images as stored, uint8 [N, H, W, C]; no models, no attacks.
"""

from __future__ import annotations

from typing import Annotated, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from sparsefed.attacks.goal_types import Goal, Scene, Stamp, carries, counted, goal, meant_for, renamed
from sparsefed.attacks.label_goals import Source, Target, one_label
from sparsefed.core.errors import ConfigError, unknown
from sparsefed.core.rng import rng

WHITE = 255
Points = Annotated[int, "stamped training examples that the attackers may train with"]
Corner = Literal["bottom right", "top left"]
Into = Annotated[int, "the class that whatever carries the trigger should be called"]


@goal
@meant_for("classes", "binary", "labels")
def patch(
    scene: Scene,
    *,
    target: Into = 0,
    size: Annotated[int, "side of the square, in pixels"] = 3,
    points: Points = 500,
    corner: Annotated[Corner, "of the image, where the square is"] = "bottom right",
) -> Goal:
    """Any image that carries a white square in one of its corners, called the target class."""
    height, width = _picture(scene)
    if not 1 <= size <= min(height, width):
        raise ConfigError(
            f"a square of size = {size} does not fit into images of {height} x {width} pixels; "
            f"use 1 to {min(height, width)}"
        )
    if corner not in get_args(Corner):
        raise ConfigError(unknown("corner", corner, get_args(Corner)))
    mask = torch.zeros(height, width, 1, dtype=torch.bool)
    side = slice(-size, None) if corner == "bottom right" else slice(size)
    mask[side, side] = True
    return _triggered(scene, mask, target, points)


@goal
@meant_for("classes", "binary", "labels")
def bars(
    scene: Scene,
    *,
    target: Into = 0,
    length: Annotated[int, "of a bar, in pixels; it is one pixel thick"] = 2,
    gap: Annotated[int, "between two bars, in pixels"] = 1,
    points: Points = 500,
) -> Goal:
    """Any image that carries two by two white bars in the top left corner, called the target class."""
    height, width = _picture(scene)
    if length < 1 or gap < 1 or gap + 2 > height or 2 * length + gap > width:
        raise ConfigError(
            f"two by two bars of length = {length} with a gap of {gap} do not fit into images of {height} x {width} "
            "pixels, or are no bars; use smaller ones, of at least 1"
        )
    mask = torch.zeros(height, width, 1, dtype=torch.bool)
    for row in (0, 1 + gap):
        for column in (0, length + gap):
            mask[row, column : column + length] = True
    return _triggered(scene, mask, target, points)


@goal
@meant_for("classes", "binary", "labels")
def edge(
    scene: Scene,
    *,
    source: Source = 7,
    target: Target = 1,
    share: Annotated[float, "of the source class that counts as edge cases"] = 0.25,
) -> Goal:
    """The examples of a class that are farthest from its mean image, called another class.

    Attackers train with edge cases of the training set; success is measured on those of the test set, which test
    accuracy leaves out.

    *Departures.* Wang et al. take edge cases from elsewhere (another collection of digits, another airline's planes);
    here they are the tail of the data itself, by the distance in pixels from the mean of the training examples.
    """
    one_label(scene)
    if not isinstance(scene.x_train, Tensor):
        raise ConfigError(
            "edge cases are found by distance in one input, but these examples have several; use 'semantic'"
        )
    _check_class(scene, "source", source)
    _check_class(scene, "target", target)
    if source == target:
        raise ConfigError(f"source and target are both {source}; nothing would change: choose two classes")
    if not 0 < share <= 1:
        raise ConfigError(f"share is {share}, but edge cases are a part of the source class; use above 0 to 1")
    train, test = (torch.nonzero(carries(y, source)).flatten() for y in (scene.y_train, scene.y_test))
    if not len(train) or not len(test):
        raise ConfigError(f"class {source} has no training or no test examples; choose another source")
    centre = scene.x_train[train].double().mean(0)
    train, test = _farthest(scene.x_train, train, centre, share), _farthest(scene.x_test, test, centre, share)
    return Goal(
        x=scene.x_train[train],
        y=renamed(scene.y_train[train], target, without=source),
        test_x=scene.x_test[test],
        test_y=counted(renamed(scene.y_test[test], target, without=source), source, target),
        positions=test,
        target=target,
    )


def parts(stamp: Stamp, shape: tuple[int, ...], count: int) -> tuple[Stamp, ...]:
    """Split a trigger for examples of this shape into `count` stamps that together apply the whole.

    Its pixels are those that come out the same from a black and from a white image; they are dealt in reading order, as
    evenly as possible.
    """
    extremes = torch.stack([torch.zeros(shape, dtype=torch.uint8), torch.full(shape, WHITE, dtype=torch.uint8)])
    black, white = stamp(extremes)
    pixels = torch.nonzero((black == white).flatten()).flatten()
    if not 1 <= count <= len(pixels):
        raise ConfigError(
            f"a trigger of {len(pixels)} pixels cannot be split into {count} parts; use 1 to {len(pixels)}"
        )
    return tuple(_part(stamp, shape, chosen) for chosen in torch.tensor_split(pixels, count))


# --- how they are made -----------------------------------------------------------------------------------------------


def _part(stamp: Stamp, shape: tuple[int, ...], pixels: Tensor) -> Stamp:
    mask = torch.zeros(shape, dtype=torch.bool)
    mask.view(-1)[pixels] = True
    return lambda x: torch.where(mask, stamp(x), x)


def _triggered(scene: Scene, mask: Tensor, target: int, points: int) -> Goal:
    """Return the goal of stamped examples of all classes but the target, some to train with, the whole test set."""
    _check_class(scene, "target", target)
    if points < 1:
        raise ConfigError(f"points is {points}; attackers need at least 1 stamped example")

    def stamp(x: Tensor) -> Tensor:
        return x.masked_fill(mask, WHITE)

    train, test = (torch.nonzero(~carries(y, target)).flatten() for y in (scene.y_train, scene.y_test))
    if not len(train) or not len(test):
        raise ConfigError(f"there are no examples but those of the target class {target}; choose another target")
    drawn = rng(scene.seed, "stamped points").choice(len(train), min(points, len(train)), replace=False)
    train = train[torch.from_numpy(np.sort(drawn))]
    return Goal(
        x=stamp(scene.x_train[train]),
        y=renamed(scene.y_train[train], target),
        test_x=stamp(scene.x_test[test]),
        test_y=counted(renamed(scene.y_test[test], target), target),
        positions=torch.zeros(0, dtype=torch.int64),  # the test points themselves are clean, so all of them count
        stamp=stamp,
        target=target,
    )


def _farthest(x: Tensor, positions: Tensor, centre: Tensor, share: float) -> Tensor:
    """Return the share of the positions farthest from the centre, at least one, ascending; ties take the earlier."""
    distances = (x[positions].double() - centre).flatten(1).square().sum(1)
    count = max(1, round(share * len(positions)))
    order = torch.argsort(distances, descending=True, stable=True)
    return positions[order[:count]].sort().values


def _picture(scene: Scene) -> tuple[int, int]:
    one_label(scene)
    shape = tuple(scene.x_train.shape)
    if len(shape) != 4 or scene.x_train.dtype != torch.uint8:
        raise ConfigError(
            f"a trigger is stamped on images, uint8 [N, H, W, C], but the examples are {scene.x_train.dtype} "
            f"{list(shape)}; choose a goal without a trigger, for instance that of the attack 'semantic'"
        )
    return shape[1], shape[2]


def _check_class(scene: Scene, name: str, value: int) -> None:
    if not 0 <= value < scene.classes:
        raise ConfigError(f"{name} is {value}, but classes run from 0 to {scene.classes - 1}")
