"""A defended, attacked simulation: your module, your tensors, a defense and an attack."""

import torch
from torch import nn

from sparsefed import Simulation, attacks, defenses

x = torch.randn(6000, 20)  # your data ...
y = (x[:, :3] + 0.3 * x[:, 3:6] ** 2).argmax(1)
model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 3))  # ... and your module
attack = attacks.pgd(attacks.goals.labels(auxiliary=50), step=0.1)  # 50 test examples labelled wrongly
for defense in (defenses.undefended(), defenses.sparsefed(k=100, clip_norm=1.0)):
    world = Simulation(model, (x, y), defense=defense, attack=attack, threat=0.1, devices=500, cohort=50, schedule=0.1)
    scores = world.run().evaluate()  # a tenth of the devices is compromised
    print(f"{defense}: test accuracy {scores['test_accuracy']:.1%}, attack accuracy {scores['attack_accuracy']:.1%}")
