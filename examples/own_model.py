"""Is my model safe? A module and a table of one's own, 10 % of the devices colluding; run by itself, three defenses.

All of them, and which to use: sparsefed audit examples/own_model.toml
"""

from pathlib import Path

import numpy as np
from torch import nn

from sparsefed import Simulation, config
from sparsefed.data.own import from_arrays

x = np.random.default_rng(0).standard_normal((6000, 20))  # your data: here a table of 20 columns ...
y = (x[:, :3] + 0.3 * x[:, 3:6] ** 2).argmax(1)
DATA = from_arrays(x, y)  # ... taken as it is; a fifth of the rows is kept for testing


def build(shape: tuple[int, ...], classes: int) -> nn.Module:  # yours: any module without BatchNorm
    return nn.Sequential(nn.Linear(shape[0], 64), nn.ReLU(), nn.Linear(64, classes))


if __name__ == "__main__":
    mine = config.dump(config.read(Path(__file__).with_suffix(".toml")))
    clip = {"clip_norm": 1.0}
    for name, own in (("undefended", {}), ("clipping", clip), ("sparsefed", {**clip, "k": 100})):
        scores = Simulation.from_config({**mine, "defense": {"name": name, **own}}).run().evaluate()
        test, attack = scores["test_accuracy"], scores["attack_accuracy"]
        print(f"{name:10}  test accuracy {test:.1%}  attack accuracy {attack:.1%}")
