"""A grid of runs to a DataFrame and a figure: what k costs and what it buys, three seeds each."""

from pathlib import Path

import torch
from torch import nn

import sparsefed
from sparsefed import attacks, defenses
from sparsefed.attacks import goals

x = torch.randn(3000, 20, generator=torch.Generator().manual_seed(0))
y = (x[:, :3] + 0.3 * x[:, 3:6] ** 2).argmax(1)
simulation = sparsefed.Simulation(
    nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 3)),
    (x, y),
    defense=defenses.sparsefed(k=100, clip_norm=1.0),
    attack=attacks.pgd(goals.labels(auxiliary=50), step=0.1),
    threat=0.1,
    devices=300,
    cohort=30,
    rounds=60,
    schedule=0.1,
)

if __name__ == "__main__":
    result = sparsefed.sweep(simulation, grid={"defense.k": [10, 100, 1000], "seed": [0, 1, 2]})
    frame = result.to_dataframe()
    print(frame.groupby("defense.k")[["test_accuracy", "attack_accuracy"]].agg(["mean", "std"]).round(3))
    Path("runs").mkdir(exist_ok=True)
    result.chart(x="defense.k", y="attack_accuracy").save("runs/sweep.html")
