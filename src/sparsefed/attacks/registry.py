"""The attacks by name: a method, the goal it usually serves, and what it must know."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from sparsefed.attacks import backdoor_goals, goals
from sparsefed.attacks.adaptive import adaptive_push, adaptive_topk
from sparsefed.attacks.alie import alie, alie_searched
from sparsefed.attacks.badnets import badnets
from sparsefed.attacks.boosted import boosted
from sparsefed.attacks.continuation import continuation
from sparsefed.attacks.dba import dba
from sparsefed.attacks.drift import drift
from sparsefed.attacks.fang import fang_krum, fang_trimmed
from sparsefed.attacks.goals import Goal, Scene
from sparsefed.attacks.ipm import ipm, ipm_searched
from sparsefed.attacks.label_flip import label_flip
from sparsefed.attacks.lone_pgd import lone_pgd
from sparsefed.attacks.mimic import mimic
from sparsefed.attacks.min_max import min_max, min_sum
from sparsefed.attacks.neurotoxin import neurotoxin
from sparsefed.attacks.noise import gaussian, sign_flip
from sparsefed.attacks.pgd import pgd
from sparsefed.attacks.replacement import replacement
from sparsefed.core.errors import ConfigError
from sparsefed.core.signatures import check_arguments, parameters
from sparsefed.core.threat import NEEDS, Attack, Craft, Need

GoalBuilder = Callable[..., Goal | None]


def untargeted(scene: Scene) -> None:
    """No labels that are wanted: a model that is good for nothing."""


class Otherwise(NamedTuple):
    """Parameters with which an attack must know something else than it usually does."""

    when: str  # as a person says it
    given: Mapping[str, Any]  # an instance
    needs: frozenset[Need]


@dataclass(frozen=True)
class Attacker:
    """A line of the dict: how to build the attack, whose it is, what it is after, and what it must know.

    `needs` describes the attack before it is built, for who has to choose one; what a run checks is what the built
    attack says itself.
    """

    method: Callable[..., Attack]  # (goal, **parameters)
    paper: str
    goal: GoalBuilder = untargeted  # (scene, **parameters)
    needs: frozenset[Need] = frozenset()
    otherwise: Otherwise | None = None


_TARGETED = "Bhagoji et al. 2019, Analyzing Federated Learning through an Adversarial Lens"
_SEMANTIC = "Bagdasaryan et al. 2020, How To Backdoor Federated Learning"

_EDGE = "Wang et al. 2020, Attack of the Tails: Yes, You Really Can Backdoor Federated Learning"
_BADNETS = "Gu et al. 2017, BadNets: Identifying Vulnerabilities in the Machine Learning Model Supply Chain"
_DBA = "Xie et al. 2020, DBA: Distributed Backdoor Attacks against Federated Learning"
_NEUROTOXIN = "Zhang et al. 2022, Neurotoxin: Durable Backdoors in Federated Learning"
_SIGN_FLIP = "Li et al. 2019, RSA: Byzantine-Robust Stochastic Aggregation Methods for Distributed Learning"
_GAUSSIAN = "Blanchard et al. 2017, Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent"
_LABEL_FLIP = "Tolpegin et al. 2020, Data Poisoning Attacks Against Federated Learning Systems"
_FANG = "Fang et al. 2020, Local Model Poisoning Attacks to Byzantine-Robust Federated Learning"
_ALIE = "Baruch et al. 2019, A Little Is Enough: Circumventing Defenses For Distributed Learning"
_IPM = "Xie et al. 2020, Fall of Empires: Breaking Byzantine-tolerant SGD by Inner Product Manipulation"
_MANIPULATING = (
    "Shejwalkar and Houmansadr 2021, Manipulating the Byzantine: Optimizing Model Poisoning Attacks and Defenses"
)
_MIMIC = "Karimireddy et al. 2022, Byzantine-Robust Learning on Heterogeneous Datasets via Bucketing"
_DRIFT = "Xie et al. 2025, Model Poisoning Attacks to Federated Learning via Multi-Round Consistency"
_ADAPTIVE = "Panda et al. 2022, SparseFed: Mitigating Model Poisoning Attacks in Federated Learning with Sparsification"

_OWN: frozenset[Need] = frozenset({"own data"})
_HONEST: frozenset[Need] = frozenset({"honest updates"})
_SERVER: frozenset[Need] = frozenset(NEEDS) - _OWN  # all that it takes to try out an update on the server
_PARTIAL = Otherwise('knowledge = "partial"', {"knowledge": "partial"}, _OWN)
_TOLD = Otherwise("coordinates is given", {"coordinates": 40}, frozenset())

ATTACKS: Mapping[str, Attacker] = {
    "pgd": Attacker(pgd, _TARGETED, goals.labels),
    "lone_pgd": Attacker(lone_pgd, _TARGETED, goals.labels),
    "boosted": Attacker(boosted, _TARGETED, goals.labels),
    "adaptive_topk": Attacker(adaptive_topk, _ADAPTIVE, goals.labels, _SERVER),
    "adaptive_push": Attacker(adaptive_push, _ADAPTIVE, goals.labels, _SERVER, _TOLD),
    "semantic": Attacker(pgd, _SEMANTIC, goals.semantic),
    "replacement": Attacker(replacement, _SEMANTIC, goals.semantic, _OWN),
    "replacement_text": Attacker(replacement, _SEMANTIC, continuation, _OWN),
    "edge": Attacker(pgd, _EDGE, backdoor_goals.edge),
    "badnets": Attacker(badnets, _BADNETS, backdoor_goals.patch, _OWN),
    "dba": Attacker(dba, _DBA, backdoor_goals.bars, _OWN),
    "neurotoxin": Attacker(neurotoxin, _NEUROTOXIN, backdoor_goals.patch, _OWN),
    "sign_flip": Attacker(sign_flip, _SIGN_FLIP, needs=_OWN),
    "gaussian": Attacker(gaussian, _GAUSSIAN),
    "label_flip": Attacker(label_flip, _LABEL_FLIP, needs=_OWN),
    "fang_trimmed": Attacker(fang_trimmed, _FANG, needs=_HONEST, otherwise=_PARTIAL),
    "fang_krum": Attacker(fang_krum, _FANG, needs=_HONEST, otherwise=_PARTIAL),
    "alie": Attacker(alie, _ALIE, needs=_HONEST),
    "alie_searched": Attacker(alie_searched, _ALIE, needs=_SERVER),
    "ipm": Attacker(ipm, _IPM, needs=_HONEST),
    "ipm_searched": Attacker(ipm_searched, _IPM, needs=_SERVER),
    "min_max": Attacker(min_max, _MANIPULATING, needs=_HONEST),
    "min_sum": Attacker(min_sum, _MANIPULATING, needs=_HONEST),
    "mimic": Attacker(mimic, _MIMIC, needs=_HONEST),
    "drift": Attacker(drift, _DRIFT, needs=_OWN),
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
