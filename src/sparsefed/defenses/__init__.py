"""Aggregation rules: sentences of clip, combine and server. They know norms and rows, never ids, data or model."""

from __future__ import annotations

from sparsefed.defenses.aggregate import aggregate
from sparsefed.defenses.base import Combine, Flow, PerUpdate, Transform, chain, identity, pipeline
from sparsefed.defenses.frame import Frame, Words
from sparsefed.defenses.modes import MODES, PRESETS, Preset
from sparsefed.defenses.named import DEFENSES, Rule, assemble, build
from sparsefed.defenses.pre import PRE

__all__ = [
    "DEFENSES",
    "MODES",
    "PRE",
    "PRESETS",
    "Combine",
    "Flow",
    "Frame",
    "PerUpdate",
    "Preset",
    "Rule",
    "Transform",
    "Words",
    "aggregate",
    "assemble",
    "build",
    "chain",
    "identity",
    "pipeline",
]
