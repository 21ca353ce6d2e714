"""The attacks by name: a method, and the goal it usually serves."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sparsefed.attacks import goals
from sparsefed.attacks.base import Attack, Craft
from sparsefed.attacks.goals import Goal, Scene
from sparsefed.attacks.pgd import pgd
from sparsefed.errors import ConfigError
from sparsefed.parameters import check_arguments, parameters

GoalBuilder = Callable[..., Goal | None]


def untargeted(scene: Scene) -> None:
    """No labels that are wanted: a model that is good for nothing."""


@dataclass(frozen=True)
class Attacker:
    """A line of the dict: how to build the attack, whose it is, and what it is after."""

    method: Callable[..., Attack]  # (goal, **parameters)
    paper: str
    goal: GoalBuilder = untargeted  # (scene, **parameters)


_TARGETED = "Bhagoji et al. 2019, Analyzing Federated Learning through an Adversarial Lens"
_SEMANTIC = "Bagdasaryan et al. 2020, How To Backdoor Federated Learning"

ATTACKS: Mapping[str, Attacker] = {
    "pgd": Attacker(pgd, _TARGETED, goals.labels),
    "semantic": Attacker(pgd, _SEMANTIC, goals.semantic),
}


def equip(name: str, attacker: Attacker, scene: Scene, given: Mapping[str, Any]) -> tuple[Goal | None, Attack]:
    """The goal in this scene, and the attack that serves it, with the parameters of both."""
    check_parameters(name, attacker, given)
    after = {p.name for p in parameters(attacker.goal, 1)}
    goal = attacker.goal(scene, **{key: value for key, value in given.items() if key in after})
    made: Attack | Craft = attacker.method(goal, **{key: value for key, value in given.items() if key not in after})
    if not callable(made):
        raise ConfigError(f"{name} makes a thing of type {type(made).__name__}; it must return an Attack")
    return goal, made if isinstance(made, Attack) else Attack(made)


def check_parameters(name: str, attacker: Attacker, given: Mapping[str, Any]) -> None:
    """Refuse what neither the method nor the goal takes."""
    check_arguments(name, attacker.method, given, skip=1, beside=attacker.goal, beside_skip=1)
