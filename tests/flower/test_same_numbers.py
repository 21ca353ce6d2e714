"""The same config in simulation and in a deployment gives the same bits, for every rule."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("flwr", reason="Flower is not installed here; `make flower-test` runs these in its own environment")

from sparsefed import Simulation
from sparsefed.config import parse
from sparsefed.core.round import ServerState
from sparsefed.defenses import DEFENSES
from sparsefed.flower.apps import client_app, run
from sparsefed.flower.journal import state_of
from tests.flower.grid import LocalGrid

# Numbers that a rule needs besides its defaults, for 10 devices and a model of 650 coordinates.
NEEDED: dict[str, dict[str, Any]] = {
    "clipping": {"clip_norm": 0.5},
    "sparsefed": {"k": 100, "clip_norm": 0.5},
    "fetchsgd": {"k": 100},
    "dp_noise": {"clip_norm": 0.5, "sigma": 0.1},
    "crfl": {"model_norm": 5.0, "sigma": 0.01},
    "rlr": {"threshold": 3},
    "centered_clipping": {"radius": 0.5},
    "dnc": {"f": 2},
    "local_topk": {"k": 100},
    "trimmed_mean": {"f": 2},
    "krum": {"f": 2},
    "multi_krum": {"f": 2},
    "bulyan": {"f": 1},
}


def table(rule: str, **params: Any) -> dict[str, Any]:
    return {
        "rounds": 3,
        "seed": 5,
        "evaluate_every": 3,
        "data": {"name": "digits", "partition": "iid", "devices": 12, "per_device": 20},
        "model": {"name": "softmax"},
        "train": {"cohort": 10, "sampling": "uniform", "lr": 0.1, "engine": "loop"},
        "defense": {"name": rule, **NEEDED.get(rule, {}), **params},
    }


def same(state: ServerState, other: ServerState) -> bool:
    """Whether two states are the same, bit for bit."""
    tensors, others = ({"theta": s.theta, **s.defense} for s in (state, other))
    return tensors.keys() == others.keys() and all(
        t.numpy().tobytes() == others[name].numpy().tobytes() for name, t in tensors.items()
    )


@pytest.mark.parametrize("rule", sorted(DEFENSES))
def test_a_deployment_has_the_bits_of_the_simulation(rule: str) -> None:
    config = parse(table(rule))
    expected = Simulation.from_config(config).run()
    nodes = [10**15 + 7 * i for i in range(12)]
    strategy = run(config, LocalGrid(nodes, client_app(config)))
    assert same(state_of(strategy.session.server), expected.state)
    assert strategy.session.refused == []
    ours = strategy.session.result.evaluate_metrics_serverapp[3]["test_accuracy"]
    assert ours == expected.history[-1]["test_accuracy"]
