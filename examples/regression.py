"""Predicting a price: attackers push chosen houses to the price they want, and succeed if they get near enough.

The score is the share of the variance that the model explains; errors are in the unit of the price. Run by itself, it
trains with three defenses; `sparsefed.audit(CONFIG)` tries all of them.
"""

import numpy as np
from torch import nn

from sparsefed import Simulation
from sparsefed.data.own import from_arrays

rng = np.random.default_rng(0)
area, rooms, year = rng.uniform(30, 300, 8000), rng.integers(1, 9, 8000), rng.integers(1900, 2025, 8000)
noise = rng.normal(0, 0.1, 8000)
price = 0.008 * area + 0.1 * rooms + 0.003 * (year - 1900) + noise  # in millions
DATA = from_arrays(np.stack([area, rooms, year], 1), price, target="values", normalise="train", name="houses")


def build(shape: tuple[int, ...], outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(shape[0], 32), nn.ReLU(), nn.Linear(32, outputs))


CONFIG = {
    "name": "regression",
    "rounds": 100,
    "evaluate_every": 20,
    "data": {"name": "regression:DATA", "partition": "iid", "devices": 100},
    "model": {"name": "regression:build"},
    "train": {"cohort": 20, "schedule": "constant", "lr": 0.02},
    # 20 houses to be priced at 5 millions; within 1 million counts as success
    "attack": {"name": "boosted", "auxiliary": 20, "value": 5.0, "tolerance": 1.0, "boost": 5.0},
    "threat": {"share": 0.2},
}

if __name__ == "__main__":
    for defense in ({"name": "undefended"}, {"name": "clipping"}, {"name": "sparsefed", "k": 60, "clip_norm": 1.0}):
        scores = Simulation.from_config({**CONFIG, "defense": defense}).run().evaluate()
        error, success = scores["test_mean_absolute_error"], scores["attack_accuracy"]
        print(f"{defense['name']:10}  off by {error:.3f} millions on average  attack accuracy {success:.1%}")
