"""Several labels at once: which of five faults does a machine have? Most answers of engineers are incomplete.

A fault that was not looked for is -100 and counts nowhere. Runs are judged by AUC, the mean over the faults; attackers
want one fault of each chosen machine hidden, or invented. Run by itself, it trains with three defenses;
`sparsefed.audit(CONFIG)` tries all of them.
"""

import numpy as np
from torch import nn

from sparsefed import Simulation
from sparsefed.data.own import from_arrays

FAULTS = ("bearing", "belt", "motor", "pump", "sensor")
rng = np.random.default_rng(0)
readings = rng.standard_normal((8000, 20))  # temperatures, pressures, vibrations
causes = rng.standard_normal((20, len(FAULTS))) / 20**0.5
faults = (readings @ causes + 0.5 * readings[:, :5] ** 2 > [1.2, 1.5, 1.0, 1.8, 1.4]).astype(np.int64)
known, tested = faults[:6400].copy(), faults[6400:]
known[rng.random(known.shape) < 0.3] = -100
DATA = from_arrays(
    readings[:6400], known, test=(readings[6400:], tested), classes=FAULTS, target="labels", name="machines"
)


def build(shape: tuple[int, ...], outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(shape[0], 64), nn.ReLU(), nn.Linear(64, outputs))


CONFIG = {
    "name": "multilabel",
    "rounds": 100,
    "evaluate_every": 20,
    "data": {"name": "multilabel:DATA", "partition": "iid", "devices": 100},
    "model": {"name": "multilabel:build"},
    "train": {"cohort": 20, "schedule": "constant", "lr": 1.0},
    "attack": {"name": "pgd", "auxiliary": 20},
    "threat": {"share": 0.1},
}

if __name__ == "__main__":
    for defense in ({"name": "undefended"}, {"name": "clipping"}, {"name": "sparsefed", "k": 20, "clip_norm": 0.2}):
        scores = Simulation.from_config({**CONFIG, "defense": defense}).run().evaluate()
        print(f"{defense['name']:10}  AUC {scores['test_auc']:.1%}  attack accuracy {scores['attack_accuracy']:.1%}")
