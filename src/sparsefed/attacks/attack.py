"""Attacks as values: a method with facts about it, and the `ChosenAttack` with its parameters that calling it returns.

@attack(paper="...", goal=goals.labels, needs={"own data"})
def pgd(goal: Goal, *, epochs: int = 5) -> Attack: ...

pgd(epochs=3)                                parameters checked, not yet built; with its usual goal
pgd(goals.labels(auxiliary=100), epochs=3)   with another goal, which can also be your own `Goal`
pgd.__wrapped__(goal, epochs=3)              the bare method: an `Attack`
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Concatenate, NamedTuple, ParamSpec, Protocol, TypeVar, cast

from sparsefed.attacks.goal_types import Goal, Scene, untargeted
from sparsefed.attacks.label_goals import labels
from sparsefed.core.choice import Chosen, named, positional
from sparsefed.core.errors import ConfigError
from sparsefed.core.signatures import check_arguments, parameters
from sparsefed.core.threat import NEEDS, Attack, Craft, Need

P = ParamSpec("P")
G_contra = TypeVar("G_contra", contravariant=True)

OWN: frozenset[Need] = frozenset({"own data"})
HONEST: frozenset[Need] = frozenset({"honest updates"})
SERVER: frozenset[Need] = frozenset(NEEDS) - OWN  # everything needed to try out an update on the server
LAST = 100


class Otherwise(NamedTuple):
    """The parameters with which an attack needs other knowledge than usual."""

    when: str  # in words, for people
    given: Mapping[str, Any]  # an example of such parameters
    needs: frozenset[Need]


@dataclass(frozen=True)
class Attacker:
    """The facts of an attack besides its code: its paper, its goal, the knowledge it needs, how commands treat it.

    `needs` describes the attack before it is built, for people who choose one; a run checks the needs that the built
    attack declares.
    """

    method: Callable[..., Any]  # (goal, **parameters)
    paper: str
    goal: Callable[..., Any] = untargeted  # (scene, **parameters)
    needs: frozenset[Need] = frozenset()
    otherwise: Otherwise | None = None
    place: int = LAST  # order in an audit among the attacks on the same goal: those with most knowledge first
    weaker: bool = False  # another attack can do all that it does: audited only on request
    search: Mapping[str, str | None] = field(default_factory=dict)  # "LOW:HIGH" for tune; None: left alone
    kinds: tuple[str, ...] = ()  # of targets (`core.target`) for which the method has a meaning; (): for all

    def fits(self, kind: str) -> bool:
        """Return whether the attack, with its goal, has a meaning for this kind of targets."""
        return all(not only or kind in only for only in (self.kinds, getattr(self.goal, "kinds", ())))

    def __post_init__(self) -> None:
        for name in ("method", "goal"):  # store the bare functions
            given = getattr(self, name)
            object.__setattr__(self, name, getattr(given, "bare", given))


@dataclass(frozen=True, repr=False)
class ChosenAttack(Chosen):
    """A chosen attack, with its parameters and its goal."""

    goal: Goal | Chosen | None = None  # None: the attack's usual goal, with its usual parameters

    def build(self, scene: Scene) -> tuple[Goal | None, Attack]:
        """Return the goal in this scene and the attack that serves it.

        Raises:
            ConfigError: if the goal is impossible in the scene, or a parameter for the goal.
        """
        usual = attack_info(self.function)
        goal = self.goal if isinstance(self.goal, Goal) else _made(self.goal or Chosen("goal", "", usual.goal), scene)
        return goal, _attack(self.name or self.function.__name__, usual.method(goal, **self.parameters))

    def to_config(self) -> dict[str, Any]:
        """Return the table that a config would have: name, the goal's parameters and the attack's own."""
        table = super().to_config()
        if self.goal is None:
            return table
        if isinstance(self.goal, Goal) or self.goal.function is not attack_info(self.function).goal:
            raise ConfigError(f"{self.name} with a goal of your own cannot be written into a config; keep it in Python")
        return {"name": self.name, **self.goal.parameters, **self.parameters}


class AttackFunction(Protocol[G_contra, P]):
    """An attack as a function: calling it returns a `ChosenAttack`; it also carries its facts and bare method."""

    info: Attacker
    __name__: str

    def __call__(self, goal: Goal | Chosen | None = None, *args: P.args, **kwargs: P.kwargs) -> ChosenAttack: ...

    def __wrapped__(self, goal: G_contra, *args: P.args, **kwargs: P.kwargs) -> Attack: ...


def attack(
    *,
    paper: str = "",
    goal: Callable[..., Any] = untargeted,
    needs: Collection[Need] = (),
    otherwise: Otherwise | None = None,
    place: int = LAST,
    weaker: bool = False,
    search: Mapping[str, str | None] | None = None,
    name: str = "",
    kinds: tuple[str, ...] = (),
) -> Callable[[Callable[Concatenate[G_contra, P], Any]], AttackFunction[G_contra, P]]:
    """Return a decorator that makes an attack of a method or of a crafting function.

    A method is `(goal, *, parameters) -> Attack`, a crafting function `(knowledge, *, parameters) -> Tensor`.
    `Attacker` documents the arguments; `name` gives the attack another name."""

    def decorate(function: Callable[Concatenate[G_contra, P], Any]) -> AttackFunction[G_contra, P]:
        method = _method(function, frozenset(needs))

        @functools.wraps(method)
        def chosen(goal: Goal | Chosen | None = None, *args: Any, **given: Any) -> ChosenAttack:
            return choose(chosen, goal, *args, **given)

        info = Attacker(method, paper, goal, frozenset(needs), otherwise, place, weaker, search or {}, kinds)
        chosen.__dict__.update(info=info, bare=method, __wrapped__=method, __signature__=_signature(method))
        chosen.__name__ = chosen.__qualname__ = name or method.__name__
        return cast("AttackFunction[G_contra, P]", chosen)

    return decorate


def attack_info(attack: Callable[..., Any] | Attacker) -> Attacker:
    """Return the facts of an attack; an undecorated method serves the paper's goal, test points with wrong labels."""
    info = attack if isinstance(attack, Attacker) else getattr(attack, "info", None)
    if isinstance(info, Attacker):
        return info
    function = cast("Callable[..., Any]", attack)
    return Attacker(_method(function, frozenset()), "", untargeted if _crafts(function) else labels)


def choose(function: Callable[..., Any], goal: Goal | Chosen | None = None, *args: Any, **given: Any) -> ChosenAttack:
    """Return the attack of a function, decorated or not, with these parameters, all of them checked.

    Parameters of the attack's usual goal may stand beside its own, as in a config.
    """
    info, name = attack_info(function), named(function, "sparsefed.attacks.")
    label = f"attack {name or function.__name__}"
    if not (goal is None or isinstance(goal, Goal) or (isinstance(goal, Chosen) and goal.kind == "goal")):
        raise ConfigError(f"{label}: the goal is {goal!r}, but must be one of attacks.goals, a Goal or None")
    params = positional(label, [], args, given)
    check_arguments(label, info.method, params, skip=1, beside=None if goal else info.goal, beside_skip=1)
    after = {p.name for p in parameters(info.goal, 1)} if goal is None else set()
    wanted = {key: value for key, value in params.items() if key in after}
    own = {key: value for key, value in params.items() if key not in after}
    chosen = Chosen("goal", named(info.goal, "sparsefed.attacks."), info.goal, wanted) if wanted else goal
    if isinstance(goal, Goal) or info.goal is untargeted:
        info.method(goal, **own)  # raises on impossible values early; with a scene's goal, when built
    return ChosenAttack("attack", name, function, own, chosen)


def _made(goal: Chosen, scene: Scene) -> Goal | None:
    made: Goal | None = goal.function(scene, **goal.parameters)
    return made


def _attack(name: str, made: Attack | Craft) -> Attack:
    if not callable(made):
        raise ConfigError(f"{name} makes a thing of type {type(made).__name__}; it must return an Attack")
    return made if isinstance(made, Attack) else Attack(made)


def _crafts(function: Callable[..., Any]) -> bool:
    """Return whether a function takes a round's `Knowledge` itself, rather than being a method that makes an attack."""
    first = next(iter(inspect.signature(function).parameters.values()), None)
    return first is not None and (first.name == "knowledge" or "Knowledge" in str(first.annotation))


def _method(function: Callable[..., Any], needs: frozenset[Need]) -> Callable[..., Attack]:
    if not _crafts(function):
        return function

    @functools.wraps(function)
    def method(goal: Goal | None, **given: Any) -> Attack:  # noqa: ARG001
        return Attack(functools.partial(function, **given), needs)

    return method


def _signature(method: Callable[..., Any]) -> inspect.Signature:
    """Return the method's own parameters after an optional goal."""
    goal = inspect.Parameter("goal", inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None)
    return inspect.Signature([goal, *list(inspect.signature(method).parameters.values())[1:]])
