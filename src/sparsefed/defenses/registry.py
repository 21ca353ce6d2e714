"""The rules by name; a new rule is a file and a line in `DEFENSES`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from sparsefed.core.errors import ConfigError, unknown
from sparsefed.core.signatures import check_arguments, parameters
from sparsefed.core.types import Defense
from sparsefed.defenses.bulyan import bulyan
from sparsefed.defenses.centered_clipping import centered_clipping
from sparsefed.defenses.combine import mean
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
from sparsefed.defenses.options import CommonOptions, RuleParts
from sparsefed.defenses.parameter_types import TopK
from sparsefed.defenses.pipeline import Combine
from sparsefed.defenses.pre_aggregation import PRE
from sparsefed.defenses.rlr import rlr
from sparsefed.defenses.signguard import signguard, signguard_sim
from sparsefed.defenses.topk_memory import Feedback, Masking, topk_memory

# What a rule must see beyond the norms and sums of updates:
#   rows      the updates themselves, a block at a time
#   all rows  every update at once, so that a round's memory grows with the cohort
#   history   who sent what in earlier rounds
#   root      an update that the server computes on clean data of its own
#   layers    which coordinates make up which parameter tensor
#   model     the current model
Need = Literal["rows", "all rows", "history", "root", "layers", "model"]


@dataclass(frozen=True)
class Rule:
    """A line of the dict: how to build the rule, whose it is, what it must see, and its own usual frame."""

    builder: Callable[..., Combine | RuleParts]
    paper: str
    needs: tuple[Need, ...] = ()
    usual: Mapping[str, Any] = field(default_factory=dict)

    @property
    def summary(self) -> str:
        return (self.builder.__doc__ or "").strip().partition("\n")[0]


def undefended() -> Combine:
    """The plain mean of all finite updates, with server momentum: no defense."""
    return mean()


def clipping() -> Combine:
    """Every update clipped to an l2 norm, then the mean, with server momentum."""
    return mean()


def sparsefed(
    k: TopK,
    feedback: Annotated[Feedback | None, "what the memory adds up; by default as the preset says"] = None,
    masking: Annotated[Masking | None, "how momentum forgets what was applied; by default as the preset says"] = None,
) -> RuleParts:
    """Clip, mean, and only the k largest coordinates of an error memory reach the model."""
    return RuleParts(
        mean(),
        lambda frame: topk_memory(k, frame.rho, feedback or frame.reading.feedback, masking or frame.reading.masking),
    )


_FEDAVG = "McMahan et al. 2017, Communication-Efficient Learning of Deep Networks from Decentralized Data"
_CLIPPING = "Sun et al. 2019, Can You Really Backdoor Federated Learning?"
_SPARSEFED = (
    "Panda et al. 2022, SparseFed: Mitigating Model Poisoning Attacks in Federated Learning with Sparsification"
)
_YIN = "Yin et al. 2018, Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates"
_KRUM = "Blanchard et al. 2017, Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent"
_BULYAN = "El Mhamdi et al. 2018, The Hidden Vulnerability of Distributed Learning in Byzantium"
_RFA = "Pillutla et al. 2022, Robust Aggregation for Federated Learning"
_CENTERED = "Karimireddy et al. 2021, Learning from History for Byzantine Robust Optimization"
_FETCHSGD = "Rothchild et al. 2020, FetchSGD: Communication-Efficient Federated Learning with Sketching"
_FLTRUST = "Cao et al. 2021, FLTrust: Byzantine-robust Federated Learning via Trust Bootstrapping"
_FOOLSGOLD = "Fung et al. 2020, The Limitations of Federated Learning in Sybil Settings"
_RLR = "Ozdayi et al. 2021, Defending against Backdoors in Federated Learning with Robust Learning Rate"
_DNC = "Shejwalkar and Houmansadr 2021, Manipulating the Byzantine: Optimizing Model Poisoning Attacks and Defenses"
_SIGNGUARD = "Xu et al. 2022, Byzantine-robust Federated Learning through Collaborative Malicious Gradient Filtering"
_FLAME = "Nguyen et al. 2022, FLAME: Taming Backdoors in Federated Learning"
_CRFL = "Xie et al. 2021, CRFL: Certifiably Robust Federated Learning against Backdoor Attacks"
_LASA = (
    "Xu et al. 2025, Achieving Byzantine-Resilient Federated Learning via Layer-Adaptive Sparsified Model Aggregation"
)
_LOCAL = "Stich et al. 2018, Sparsified SGD with Memory"
_CLIPPED = {"clip_norm": 5.0}

DEFENSES: Mapping[str, Rule] = {
    "mean": Rule(undefended, _FEDAVG),
    "undefended": Rule(undefended, _FEDAVG),
    "clipping": Rule(clipping, _CLIPPING, usual=_CLIPPED),
    "sparsefed": Rule(sparsefed, _SPARSEFED, usual=_CLIPPED),
    "fetchsgd": Rule(fetchsgd, _FETCHSGD, usual=_CLIPPED),
    "dp_noise": Rule(dp_noise, _CLIPPING, usual=_CLIPPED),
    "trimmed_mean": Rule(trimmed_mean, _YIN, ("all rows",)),
    "median": Rule(median, _YIN, ("all rows",)),
    "krum": Rule(krum, _KRUM, ("all rows",)),
    "multi_krum": Rule(multi_krum, _KRUM, ("all rows",)),
    "bulyan": Rule(bulyan, _BULYAN, ("all rows",)),
    "geometric_median": Rule(geometric_median, _RFA, ("all rows",)),
    "centered_clipping": Rule(centered_clipping, _CENTERED, ("all rows",)),
    "fltrust": Rule(fltrust, _FLTRUST, ("rows", "root")),
    "foolsgold": Rule(foolsgold, _FOOLSGOLD, ("all rows", "history")),
    "rlr": Rule(rlr, _RLR, ("rows",)),
    "dnc": Rule(dnc, _DNC, ("all rows",)),
    "signguard": Rule(signguard, _SIGNGUARD, ("all rows",)),
    "signguard_sim": Rule(signguard_sim, _SIGNGUARD, ("all rows",)),
    "flame": Rule(flame, _FLAME, ("all rows", "model")),
    "crfl": Rule(crfl, _CRFL, ("model",)),
    "lasa": Rule(lasa, _LASA, ("all rows", "layers")),
    "local_topk": Rule(local_topk, _LOCAL, ("rows", "history"), _CLIPPED),
}


def build(name: str, **params: Any) -> Defense:
    """The named rule with these parameters, its own and the frame's, or one sentence that says what is wrong with them.

    >>> from sparsefed.core.types import Context
    >>> build("sparsefed", k=1000, clip_norm=3.0).budget({}, Context(round=0, lr=0.1))
    3.0
    """
    if name in PRE:
        raise ConfigError(f"'{name}' is a pre-aggregation: choose a rule and put pre = ['{name}'] beside it")
    if name not in DEFENSES:
        raise ConfigError(unknown("defense", name, DEFENSES))
    return assemble(name, DEFENSES[name].builder, {**DEFENSES[name].usual, **params})


def assemble(name: str, builder: Callable[..., Any], given: Mapping[str, Any], hidden: Collection[str] = ()) -> Defense:
    """The defense that a builder's words and the frame make; a builder may make a whole `Defense` on its own."""
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
    for key in around.keys() - hidden:
        raise ConfigError(f"{name}: {unknown('parameter', key, sorted(takes - set(hidden)))}")
    return made
