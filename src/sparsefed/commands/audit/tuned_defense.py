"""The result of tuning a defense: what was found, the attackers' answers, and the moves that led there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sparsefed.commands.audit.defense_specs import DefenseSpec

Params = Mapping[str, Any]


@dataclass(frozen=True)
class Move:
    """One move of the search: who moved, the best defense after it, and its worst attack."""

    who: str  # 'opening', 'defender' or 'attackers'
    defense: str
    attack: str
    harm: float
    cost: float  # test accuracy that the defense costs without attackers
    runs: int  # so far


@dataclass(frozen=True)
class TunedDefense:
    """The defense that a search found, the variants that attackers answered with, and the moves on the way."""

    spec: DefenseSpec
    answers: Mapping[str, Mapping[str, Params]]  # by attack: variants by name
    moves: tuple[Move, ...]
    settled: bool  # neither side gains any more; otherwise the budget was used up
    seed: int
    budget: int
