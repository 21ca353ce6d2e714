"""Is my model safe? A user's own module and data, 10 % of the devices colluding; run by itself, three defenses.

All of them, and which to use: PYTHONPATH=examples sparsefed audit examples/own_model.toml
"""

from pathlib import Path

import numpy as np
from torch import nn

from sparsefed import config
from sparsefed.data.own import from_arrays

draw = np.random.default_rng(0)
x = draw.standard_normal((6000, 20))  # your data: here a table of 20 columns ...
y = (x[:, :3] + 0.3 * x[:, 3:6] ** 2).argmax(1)
DATA = from_arrays(np.clip(x / 8 + 0.5, 0, 1)[:, None], y)  # ... from 0 to 1, as an image one pixel high


def build(shape: tuple[int, ...], classes: int) -> nn.Module:  # yours: any module without BatchNorm
    return nn.Sequential(nn.Flatten(), nn.Linear(shape[-1], 64), nn.ReLU(), nn.Linear(64, classes))


if __name__ == "__main__":
    for defense in ('"undefended"', '"clipping", clip_norm = 1.0', '"sparsefed", k = 100, clip_norm = 1.0'):
        mine = config.read(Path(__file__).with_suffix(".toml"), [f"defense={{ name = {defense} }}"])
        *_, last = (experiment := config.build(mine)).reports(experiment.begin())
        test, attack = last.metrics["test_accuracy"], last.metrics["attack_accuracy"]
        print(f"{mine.defense.name:10}  test accuracy {test:.1%}  attack accuracy {attack:.1%}")
