"""The rules by name; a new rule is a file and a line in `DEFENSES`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sparsefed.core.errors import ConfigError, unknown
from sparsefed.core.signatures import shown
from sparsefed.core.types import Defense
from sparsefed.defenses.bulyan import bulyan
from sparsefed.defenses.centered_clipping import centered_clipping
from sparsefed.defenses.coordinate import median, trimmed_mean
from sparsefed.defenses.crfl import crfl
from sparsefed.defenses.dnc import dnc
from sparsefed.defenses.dp_noise import dp_noise
from sparsefed.defenses.fetchsgd import fetchsgd
from sparsefed.defenses.flame import flame
from sparsefed.defenses.fltrust import fltrust
from sparsefed.defenses.foolsgold import foolsgold
from sparsefed.defenses.geometric_median import geometric_median
from sparsefed.defenses.krum import krum, multi_krum
from sparsefed.defenses.lasa import lasa
from sparsefed.defenses.local_topk import local_topk
from sparsefed.defenses.pre_aggregation import PRE
from sparsefed.defenses.rlr import rlr
from sparsefed.defenses.rule import Rule, assemble, choose, rule_info
from sparsefed.defenses.signguard import signguard, signguard_sim
from sparsefed.defenses.sparsefed import sparsefed
from sparsefed.defenses.undefended import clipping, undefended

DEFENSES: dict[str, Callable[..., Any]] = {
    "mean": undefended,
    "undefended": undefended,
    "clipping": clipping,
    "sparsefed": sparsefed,
    "fetchsgd": fetchsgd,
    "dp_noise": dp_noise,
    "trimmed_mean": trimmed_mean,
    "median": median,
    "krum": krum,
    "multi_krum": multi_krum,
    "bulyan": bulyan,
    "geometric_median": geometric_median,
    "centered_clipping": centered_clipping,
    "fltrust": fltrust,
    "foolsgold": foolsgold,
    "rlr": rlr,
    "dnc": dnc,
    "signguard": signguard,
    "signguard_sim": signguard_sim,
    "flame": flame,
    "crfl": crfl,
    "lasa": lasa,
    "local_topk": local_topk,
}


def build(name: str, **params: Any) -> Defense:
    """Build the named rule with these parameters, its own and the common ones; raise ConfigError if one is wrong.

    >>> from sparsefed.core.types import Context
    >>> build("sparsefed", k=1000, clip_norm=3.0).budget({}, Context(round=0, lr=0.1))
    3.0
    """
    rule = _listed(name)
    return assemble(name, rule, {**rule_info(rule).usual, **params})


def as_rule(rule: Rule | str | Callable[..., Any] | Defense, **params: Any) -> Rule:
    """Return a rule from whatever names it.

    Args:
        rule: a chosen rule, the name of a listed one, a function that makes one, or a finished `Defense`.
        params: the parameters of a rule that is given by name or as a function.

    Raises:
        ConfigError: if the name is unknown or a parameter is not one of the rule's.
    """
    if isinstance(rule, Rule):
        if params:
            raise ConfigError(f"{rule} has its parameters already; put {', '.join(params)} between its parentheses")
        return rule
    if isinstance(rule, Defense):
        return Rule("defense", "", lambda: rule, params)
    if isinstance(rule, str):
        rule = _listed(rule)
    if not callable(rule):
        raise ConfigError(
            f"a defense is a rule such as sparsefed.defenses.krum(f=2), a name or a function, not {shown(rule)}"
        )
    return choose(rule, **params)


def _listed(name: str) -> Callable[..., Any]:
    if not isinstance(name, str):
        raise ConfigError(f"a rule's name is a text such as 'krum', not {shown(name)}")
    if name in PRE:
        raise ConfigError(f"'{name}' is a pre-aggregation: choose a rule and put pre = ['{name}'] beside it")
    if name not in DEFENSES:
        raise ConfigError(unknown("defense", shown(name)[1:-1], DEFENSES))
    return DEFENSES[name]
