"""A rare disease in a table: 40 columns in their own units, 2 % positives, hospitals of which some are compromised.

Accuracy says nothing here (a model that never says "ill" is right in 98 %), so runs are judged by AUC. Run by itself,
it trains with three defenses; `sparsefed.audit(CONFIG)` tries all of them.
"""

import numpy as np
from torch import nn

from sparsefed import Simulation
from sparsefed.data.own import from_arrays

rng = np.random.default_rng(0)
units = 10.0 ** rng.uniform(-6, 6, 40)  # milligrams beside cells per litre
patients = rng.standard_normal((10_000, 40))
risk = 1.5 * patients[:, 0] - patients[:, 1] + patients[:, 2] * patients[:, 3]
ill = risk > np.quantile(risk, 0.98)
DATA = from_arrays(patients * units, ill, target="binary", normalise="train", name="patients")
# A pandas or polars frame: from_frame(frame, label="ill", user="hospital", target="binary", normalise="train")


def build(shape: tuple[int, ...], outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(shape[0], 32), nn.ReLU(), nn.Linear(32, outputs))


CONFIG = {
    "name": "tabular",
    "rounds": 100,
    "evaluate_every": 20,
    "data": {"name": "tabular:DATA", "partition": "iid", "devices": 100},
    "model": {"name": "tabular:build"},
    "train": {"cohort": 20, "schedule": "constant", "lr": 0.3},
    "attack": {"name": "pgd", "auxiliary": 100},  # patients of the attackers' choice called healthy, or ill
    "threat": {"share": 0.2},
}

if __name__ == "__main__":
    for defense in ({"name": "undefended"}, {"name": "clipping"}, {"name": "sparsefed", "k": 100, "clip_norm": 1.0}):
        scores = Simulation.from_config({**CONFIG, "defense": defense}).run().evaluate()
        print(f"{defense['name']:10}  AUC {scores['test_auc']:.1%}  attack accuracy {scores['attack_accuracy']:.1%}")
