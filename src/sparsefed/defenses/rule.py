"""Rules: a builder with facts about it, and the `Rule` with its parameters that calling it returns.

@rule(paper="...", needs=("all rows",), largest_f=lambda n: (n - 3) // 2)
def krum(f: Attackers, **_: Unpack[CommonKeywords]) -> Combine: ...

krum(f=2, clip_norm=3.0)           a Rule: parameters checked, not yet built
krum(f=2).build(mode="fedavg")     the Defense
krum.__wrapped__(2)                the bare builder: its own stage of the pipeline alone
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, ParamSpec, Protocol, TypeVar, cast

from sparsefed.core.choice import Chosen, named, positional
from sparsefed.core.errors import ConfigError, unknown
from sparsefed.core.signatures import check_arguments, parameters
from sparsefed.core.types import Defense
from sparsefed.defenses.modes import Mode, PresetName
from sparsefed.defenses.options import REGIME, CommonOptions, RuleParts
from sparsefed.defenses.pipeline import Combine

# The information that a rule needs beyond the norms and sums of updates:
#   rows      the updates themselves, a block at a time
#   all rows  every update at once, so that a round's memory grows with the cohort
#   history   each sender's updates in earlier rounds
#   root      an update that the server computes on clean data of its own
#   layers    which coordinates make up which parameter tensor
#   model     the current model
Need = Literal["rows", "all rows", "history", "root", "layers", "model"]

P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)


def minority(n: int) -> int:
    """Return the largest number of attackers that are fewer than half of n updates."""
    return (n - 1) // 2


@dataclass(frozen=True)
class RuleInfo:
    """The facts of a rule besides its code: its paper, the information it needs, and how commands treat it."""

    builder: Callable[..., Any]
    paper: str = ""
    needs: tuple[Need, ...] = ()
    usual: Mapping[str, Any] = field(default_factory=dict)  # its own defaults of the common options
    largest_f: Callable[[int], int] = minority  # the most attackers among n updates for which it is defined
    audit: bool = False  # whether an audit compares it by default
    weights: bool = False  # whether it is a sum, so that updates may have different weights
    slices: bool = False  # whether slices of columns are enough, so that no machine needs to hold all rows

    @property
    def summary(self) -> str:
        return (self.builder.__doc__ or "").strip().partition("\n")[0]


@dataclass(frozen=True, repr=False)
class Rule(Chosen):
    """A chosen aggregation rule, with its own parameters and the common ones."""

    def build(self, mode: Mode = "uncompressed", preset: PresetName = "paper", local_steps: float = 1) -> Defense:
        """Return the defense.

        Args:
            mode: whether updates are gradients (uncompressed) or include the learning rate already (fedavg).
            preset: which reading of the paper to follow.
            local_steps: steps that a device takes in a round, each counted with its share of the first one's rate
                (fedavg only).

        Raises:
            ConfigError: if the parameters contradict each other or the mode.
        """
        regime = {"mode": mode, "preset": preset, "local_steps": local_steps}
        given = {**rule_info(self.function).usual, **regime, **self.parameters}
        return assemble(self.name or self.function.__name__, self.function, given, hidden=REGIME)


class RuleFunction(Protocol[P, R_co]):
    """A rule as a function: calling it returns a `Rule`; it also carries its facts and its bare builder."""

    info: RuleInfo
    __name__: str

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Rule: ...

    def __wrapped__(self, *args: P.args, **kwargs: P.kwargs) -> R_co: ...


def rule(
    *,
    paper: str = "",
    needs: tuple[Need, ...] = (),
    usual: Mapping[str, Any] | None = None,
    largest_f: Callable[[int], int] = minority,
    audit: bool = False,
    weights: bool = False,
    slices: bool = False,
) -> Callable[[Callable[P, R_co]], RuleFunction[P, R_co]]:
    """Return a decorator that makes a rule of a builder; `RuleInfo` documents the arguments."""

    def decorate(builder: Callable[P, R_co]) -> RuleFunction[P, R_co]:
        @functools.wraps(builder)
        def chosen(*args: Any, **given: Any) -> Rule:
            return choose(chosen, *args, **given)

        info = RuleInfo(builder, paper, needs, usual or {}, largest_f, audit, weights, slices)
        chosen.__dict__.update(info=info, __signature__=_signature(builder, info.usual))
        return cast("RuleFunction[P, R_co]", chosen)

    return decorate


def rule_info(function: Callable[..., Any]) -> RuleInfo:
    """Return the facts of a rule; an undecorated builder has the defaults, and may see every update."""
    info = getattr(function, "info", None)
    return info if isinstance(info, RuleInfo) else RuleInfo(function, needs=("all rows",))


def choose(function: Callable[..., Any], *args: Any, **given: Any) -> Rule:
    """Return the rule of a function, decorated or not, with these parameters, all of them checked."""
    builder = rule_info(function).builder
    name = named(function, "sparsefed.defenses.")
    label = name or getattr(function, "__name__", "defense")
    params = positional(label, [p.name for p in parameters(builder)], args, given)
    own = {p.name for p in parameters(builder)}
    for key in [key for key in params if key in ("mode", "preset") and key not in own]:
        raise ConfigError(f"{label}: {key} follows from how devices train; give it to what builds the rule")
    check_arguments(label, builder, params, hidden=REGIME, beside=CommonOptions)
    chosen = Rule("defense", name, function, params)
    chosen.build("fedavg")  # raises on impossible values here, where they are written
    return chosen


def assemble(name: str, builder: Callable[..., Any], given: Mapping[str, Any], hidden: Collection[str] = ()) -> Defense:
    """Return the defense made of a builder's parts and the common options; a builder may make a whole `Defense`."""
    builder = rule_info(builder).builder
    check_arguments(name, builder, given, hidden=hidden, beside=CommonOptions)
    takes = {parameter.name for parameter in parameters(builder)}
    own = {key: value for key, value in given.items() if key in takes}
    made = builder(**own)
    if isinstance(made, Combine):
        made = RuleParts(made)
    around = {key: value for key, value in given.items() if key not in takes}
    if isinstance(made, RuleParts):
        return CommonOptions(**around).around(made, own.get("f"))
    if not isinstance(made, Defense):
        raise ConfigError(f"{name} makes a thing of type {type(made).__name__}; it must return a Defense")
    for key in around.keys() - set(hidden):
        raise ConfigError(f"{name}: {unknown('parameter', key, sorted(takes - set(hidden)))}")
    return made


def _signature(builder: Callable[..., Any], usual: Mapping[str, Any]) -> inspect.Signature:
    """Return the builder's own parameters, then the common ones, which are keyword-only."""
    own = [p for p in inspect.signature(builder).parameters.values() if p.kind is not p.VAR_KEYWORD]
    taken = {p.name for p in own} | {*REGIME}
    common = [
        p.replace(default=usual.get(p.name, p.default))
        for p in inspect.signature(CommonOptions).parameters.values()
        if p.name not in taken
    ]
    return inspect.Signature([*own, *common], return_annotation="Rule")
