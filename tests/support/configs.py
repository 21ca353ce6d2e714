"""Small configs, the runs they make, and the sentence with which a wrong one is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sparsefed import config as configs
from sparsefed.config import BuiltSimulation
from sparsefed.core.errors import ConfigError
from sparsefed.core.round import RoundReport, ServerState, simulate, start


def refusal(act: Callable[[], object]) -> str:
    """The one sentence with which something is refused."""
    with pytest.raises(ConfigError) as caught:
        act()
    sentence = str(caught.value)
    assert "\n" not in sentence
    assert "pydantic" not in sentence
    assert "Input should" not in sentence
    assert 20 < len(sentence) < 400
    return sentence


BASE: dict[str, Any] = {
    "seed": 3,
    "rounds": 12,
    "data": {"name": "digits", "partition": "one_class", "devices": 300},
    "model": {"name": "softmax"},
    "train": {"cohort": 30, "lr": 0.5},
    "defense": {"name": "sparsefed", "k": 60, "clip_norm": 1.0},
    "threat": {"share": 0.1},
    "attack": {"name": "pgd", "auxiliary": 20, "batch": 20},
}


def experiment(**changes: Any) -> BuiltSimulation:
    return configs.build(configs.parse({**BASE, **changes}))


def run(built: BuiltSimulation, state: ServerState | None = None, rounds: int = 12) -> list[RoundReport]:
    begin = state or start(built.setup, built.theta)
    return list(simulate(built.setup, begin, rounds, built.evaluate, 5))
