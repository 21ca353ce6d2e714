"""Aggregation rules: sentences of clip, combine and server. They know norms and rows, never ids, data or model."""

from __future__ import annotations

from sparsefed.defenses.aggregate import aggregate
from sparsefed.defenses.modes import MODES, PRESETS, Preset
from sparsefed.defenses.options import CommonOptions, RuleParts
from sparsefed.defenses.pipeline import Combine, Flow, PerUpdate, Transform, chain, identity, pipeline
from sparsefed.defenses.pre_aggregation import PRE
from sparsefed.defenses.registry import DEFENSES, Rule, assemble, build

__all__ = [
    "DEFENSES",
    "MODES",
    "PRE",
    "PRESETS",
    "Combine",
    "CommonOptions",
    "Flow",
    "PerUpdate",
    "Preset",
    "Rule",
    "RuleParts",
    "Transform",
    "aggregate",
    "assemble",
    "build",
    "chain",
    "identity",
    "pipeline",
]
