"""Goals as values: points, the labels that the attackers want for them, and the points on which success is measured.

A goal is made from a `Scene` when a run is built; choosing one (`labels(auxiliary=100)`) only records the choice.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Concatenate, NamedTuple, ParamSpec, Protocol, TypeVar, cast

import torch
from torch import Tensor

from sparsefed.core.choice import Chosen, named, positional
from sparsefed.core.signatures import check_arguments
from sparsefed.core.types import IGNORED

Stamp = Callable[[Tensor], Tensor]  # raw examples -> these examples with the trigger
P = ParamSpec("P")
T = TypeVar("T")


class Scene(NamedTuple):
    """The data under attack: raw examples and their labels."""

    x_train: Tensor
    y_train: Tensor
    x_test: Tensor
    y_test: Tensor
    classes: int
    seed: int
    words: tuple[str, ...] = ()  # text: the vocabulary, its special tokens first
    target: str = "classes"  # what the labels are, a kind of `core.target`


@dataclass(frozen=True)
class Goal:
    """Points and the labels that the attackers want for them."""

    x: Tensor  # raw examples [s, ...] that the attackers train with
    y: Tensor  # int64 [s], the labels wanted (text: [s, T]); float32 where numbers are predicted
    test_x: Tensor  # examples on which success is measured
    test_y: Tensor
    positions: Tensor  # int64: test points that test accuracy leaves out
    stamp: Stamp | None = None  # puts the trigger on an example, if there is one
    target: int | None = None  # the wanted class, if there is one
    tolerance: float | None = None  # of numbers: how near a prediction must be to count as success


def carries(y: Tensor, label: int) -> Tensor:
    """Return which examples are of a class, or have a label among several."""
    return y == label if y.dim() == 1 else y[:, label] == 1


def renamed(y: Tensor, label: int, without: int | None = None) -> Tensor:
    """Return labels as attackers want them: another class, or among several one label set and perhaps one removed."""
    if y.dim() == 1:
        return torch.full_like(y, label)
    wanted = y.clone()
    if without is not None:
        wanted[:, without] = 0
    wanted[:, label] = 1
    return wanted


def counted(wanted: Tensor, *labels: int) -> Tensor:
    """Return wanted labels with all others than these IGNORED, where an example has several."""
    if wanted.dim() == 1:
        return wanted
    only = torch.full_like(wanted, IGNORED)
    only[:, list(labels)] = wanted[:, list(labels)]
    return only


class GoalFunction(Protocol[P]):
    """A goal as a function: calling it returns the choice; it also carries its bare builder."""

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


def meant_for(*kinds: str) -> Callable[[T], T]:
    """Return a decorator that records for which kinds of targets (`core.target`) a goal has a meaning; else for all."""

    def decorate(builder: T) -> T:
        builder.__dict__["kinds"] = kinds
        return builder

    return decorate


def untargeted(scene: Scene) -> None:
    """Untargeted: no particular labels are wanted; the aim is a useless model."""
