"""A defended, attacked simulation: your module, your tensors, a defense and an attack. One device in ten is compromised."""
import torch
from torch import nn

from sparsefed import Simulation, attacks, defenses

x = torch.randn(6000, 20, generator=torch.Generator().manual_seed(0))  # your data ...
y = (x[:, :3] + 0.3 * x[:, 3:6] ** 2).argmax(1)
model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 3))  # ... and your module
attack = attacks.pgd(auxiliary=50, step=0.1)  # attackers want 50 test examples labelled wrongly
for defense in (defenses.undefended(), defenses.clipping(clip_norm=1.0), defenses.sparsefed(k=100, clip_norm=1.0)):
    options = {"threat": 0.1, "devices": 500, "cohort": 50, "rounds": 200, "schedule": 0.1}
    scores = Simulation(model, (x, y), defense=defense, attack=attack, **options).run().evaluate()
    print(f"{defense!r:34} test {scores['test_accuracy']:.1%}, attack {scores['attack_accuracy']:.1%}")
