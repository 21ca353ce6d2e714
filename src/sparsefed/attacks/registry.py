"""The attacks by name; to add one, write a file and a line in `ATTACKS`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sparsefed.attacks.adaptive import adaptive_push, adaptive_topk
from sparsefed.attacks.alie import alie, alie_searched
from sparsefed.attacks.attack import Attacker, ChosenAttack, attack_info, choose
from sparsefed.attacks.badnets import badnets
from sparsefed.attacks.boosted import boosted
from sparsefed.attacks.dba import dba
from sparsefed.attacks.drift import drift
from sparsefed.attacks.fang import fang_krum, fang_trimmed
from sparsefed.attacks.forge import forge
from sparsefed.attacks.goal_types import Goal, Scene
from sparsefed.attacks.ipm import ipm, ipm_searched
from sparsefed.attacks.label_flip import label_flip
from sparsefed.attacks.lone_pgd import lone_pgd
from sparsefed.attacks.mimic import mimic
from sparsefed.attacks.min_max import min_max, min_sum
from sparsefed.attacks.neurotoxin import neurotoxin
from sparsefed.attacks.noise import gaussian, sign_flip
from sparsefed.attacks.pgd import edge, pgd, semantic
from sparsefed.attacks.replacement import replacement, replacement_text
from sparsefed.core.errors import ConfigError, unknown
from sparsefed.core.signatures import check_arguments, parameters
from sparsefed.core.threat import Attack, Craft

ATTACKS: dict[str, Callable[..., Any]] = {
    "pgd": pgd,
    "lone_pgd": lone_pgd,
    "boosted": boosted,
    "adaptive_topk": adaptive_topk,
    "adaptive_push": adaptive_push,
    "semantic": semantic,
    "replacement": replacement,
    "replacement_text": replacement_text,
    "edge": edge,
    "badnets": badnets,
    "dba": dba,
    "neurotoxin": neurotoxin,
    "sign_flip": sign_flip,
    "gaussian": gaussian,
    "label_flip": label_flip,
    "fang_trimmed": fang_trimmed,
    "fang_krum": fang_krum,
    "alie": alie,
    "alie_searched": alie_searched,
    "ipm": ipm,
    "ipm_searched": ipm_searched,
    "min_max": min_max,
    "min_sum": min_sum,
    "mimic": mimic,
    "drift": drift,
    "forge": forge,
}


def as_attack(attack: ChosenAttack | str | Callable[..., Any], **params: Any) -> ChosenAttack:
    """Return an attack from whatever names it.

    Args:
        attack: a chosen attack, the name of a listed one, or your own function.
        params: the parameters of an attack that is given by name or as a function, and of its usual goal.

    Raises:
        ConfigError: if the name is unknown or a parameter is not one of the attack's.
    """
    if isinstance(attack, ChosenAttack):
        if params:
            raise ConfigError(f"{attack} has its parameters already; put {', '.join(params)} between its parentheses")
        return attack
    if isinstance(attack, str):
        if attack not in ATTACKS:
            raise ConfigError(unknown("attack", attack, ATTACKS))
        attack = ATTACKS[attack]
    if not callable(attack):
        raise ConfigError(f"an attack is one such as attacks.pgd(epochs=5), a name or a function, but not {attack!r}")
    return choose(attack, **params)


def equip(
    name: str, attacker: Attacker | Callable[..., Any], scene: Scene, given: Mapping[str, Any]
) -> tuple[Goal | None, Attack]:
    """Return the goal in this scene, and the attack that serves it, with the parameters of both."""
    attacker = attack_info(attacker)
    check_parameters(name, attacker, given)
    if "classes" not in given and any(p.name == "classes" for p in parameters(attacker.method, 1)):
        given = {**given, "classes": 2 if scene.target == "labels" else scene.classes}
    after = {p.name for p in parameters(attacker.goal, 1)}
    goal = attacker.goal(scene, **{key: value for key, value in given.items() if key in after})
    made: Attack | Craft = attacker.method(goal, **{key: value for key, value in given.items() if key not in after})
    if not callable(made):
        raise ConfigError(f"{name} makes a thing of type {type(made).__name__}; it must return an Attack")
    return goal, made if isinstance(made, Attack) else Attack(made)


def require_meaning(name: str, attacker: Attacker | Callable[..., Any], kind: str, title: str) -> None:
    """Raise ConfigError for an attack without a meaning for this kind of targets; name those that have one."""
    if not attack_info(attacker).fits(kind):
        able = [known for known, attack in ATTACKS.items() if attack_info(attack).fits(kind)]
        raise ConfigError(f"{name} has no meaning for a task with {title}; these have: {', '.join(able)}")


def check_parameters(name: str, attacker: Attacker, given: Mapping[str, Any]) -> None:
    """Raise ConfigError for a parameter that neither the method nor the goal takes."""
    check_arguments(name, attacker.method, given, skip=1, beside=attacker.goal, beside_skip=1)
