"""Aggregation rules: sentences of clip, combine and server. They know norms and rows, never ids, data or model."""

from __future__ import annotations

from sparsefed.defenses.aggregate import aggregate
from sparsefed.defenses.base import Combine, Flow, PerUpdate, Transform, chain, identity, pipeline
from sparsefed.defenses.modes import MODES, PRESETS, Preset
from sparsefed.defenses.named import DEFENSES, Rule, build

__all__ = [
    "DEFENSES",
    "MODES",
    "PRESETS",
    "Combine",
    "Flow",
    "PerUpdate",
    "Preset",
    "Rule",
    "Transform",
    "aggregate",
    "build",
    "chain",
    "identity",
    "pipeline",
]
