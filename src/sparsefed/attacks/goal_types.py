"""What a goal is: points, the labels that the attackers want for them, and where it is measured whether they get them.

A goal is made from a `Scene` when a run is built, so choosing one (`labels(auxiliary=100)`) only writes it down.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Concatenate, NamedTuple, ParamSpec, Protocol, cast

from torch import Tensor

from sparsefed.core.choice import Chosen, named, positional
from sparsefed.core.signatures import check_arguments

Stamp = Callable[[Tensor], Tensor]  # raw examples in, the same with the trigger out
P = ParamSpec("P")


class Scene(NamedTuple):
    """What there is to attack: raw examples and their labels."""

    x_train: Tensor
    y_train: Tensor
    x_test: Tensor
    y_test: Tensor
    classes: int
    seed: int
    words: tuple[str, ...] = ()  # text: the vocabulary, its special tokens first


@dataclass(frozen=True)
class Goal:
    """Points and the labels that the attackers want for them."""

    x: Tensor  # raw examples [s, ...] that they train with
    y: Tensor  # int64 [s], the labels wanted (text: [s, T])
    test_x: Tensor  # where it is measured whether the model says so
    test_y: Tensor
    positions: Tensor  # int64: test points that test accuracy leaves out
    stamp: Stamp | None = None  # what puts the trigger on an example, where there is one
    target: int | None = None  # the class wanted, where there is one


class GoalFunction(Protocol[P]):
    """A goal by import: a function that returns the choice, with its bare builder beside it."""

    __name__: str

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Chosen: ...

    def __wrapped__(self, scene: Scene, *args: P.args, **kwargs: P.kwargs) -> Goal: ...


def goal(builder: Callable[Concatenate[Scene, P], Goal]) -> GoalFunction[P]:
    """Make a goal of a function `(scene, *, parameters) -> Goal`."""

    @functools.wraps(builder)
    def chosen(*args: Any, **given: Any) -> Chosen:
        name = named(chosen, "sparsefed.attacks.")
        params = positional(name or builder.__name__, [], args, given)
        check_arguments(f"goal {name or builder.__name__}", builder, params, skip=1)
        return Chosen("goal", name, builder, params)

    own = list(inspect.signature(builder).parameters.values())[1:]
    chosen.__dict__.update(bare=builder, __signature__=inspect.Signature(own, return_annotation="Chosen"))
    return cast("GoalFunction[P]", chosen)


def untargeted(scene: Scene) -> None:
    """No labels that are wanted: a model that is good for nothing."""
