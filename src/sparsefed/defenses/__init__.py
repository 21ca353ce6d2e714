"""Aggregation rules: pipelines of clip, combine and server. They see norms and rows, never ids, data or model.

krum(f=2, clip_norm=3.0)     a rule by import, with its own parameters and the common ones (`CommonOptions`)
build("krum", f=2)           a rule by name, built at once
aggregate("krum", updates, f=2)
"""

from __future__ import annotations

from sparsefed.defenses.aggregate import aggregate
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
from sparsefed.defenses.modes import MODES, PRESETS, Preset
from sparsefed.defenses.options import CommonKeywords, CommonOptions, RuleParts
from sparsefed.defenses.pipeline import Combine, Flow, PerUpdate, Transform, chain, identity, pipeline
from sparsefed.defenses.pre_aggregation import PRE
from sparsefed.defenses.registry import DEFENSES, as_rule, build
from sparsefed.defenses.rlr import rlr
from sparsefed.defenses.rule import Rule, RuleInfo, assemble, rule, rule_info
from sparsefed.defenses.signguard import signguard, signguard_sim
from sparsefed.defenses.sparsefed import sparsefed
from sparsefed.defenses.undefended import clipping, undefended

__all__ = [
    "DEFENSES",
    "MODES",
    "PRE",
    "PRESETS",
    "Combine",
    "CommonKeywords",
    "CommonOptions",
    "Flow",
    "PerUpdate",
    "Preset",
    "Rule",
    "RuleInfo",
    "RuleParts",
    "Transform",
    "aggregate",
    "as_rule",
    "assemble",
    "build",
    "bulyan",
    "centered_clipping",
    "chain",
    "clipping",
    "crfl",
    "dnc",
    "dp_noise",
    "fetchsgd",
    "flame",
    "fltrust",
    "foolsgold",
    "geometric_median",
    "identity",
    "krum",
    "lasa",
    "local_topk",
    "median",
    "multi_krum",
    "pipeline",
    "rlr",
    "rule",
    "rule_info",
    "signguard",
    "signguard_sim",
    "sparsefed",
    "trimmed_mean",
    "undefended",
]
