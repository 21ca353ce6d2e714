"""Is my model safe? A user's own module and tensors, 10 % of the devices colluding, with and without SparseFed."""

import torch
from torch import nn

from sparsefed.attacks import auxiliary_set, pgd
from sparsefed.client import fused
from sparsefed.data.partition import iid
from sparsefed.defenses import build
from sparsefed.federation import ThreatModel, federate, uniform
from sparsefed.schedule import constant
from sparsefed.simulate import Protocol, simulate, start
from sparsefed.task import differentiator, evaluator, make_task

model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 3))  # yours: any module without BatchNorm
x = torch.randn(6000, 20)  # your data: any tensor, and integer labels
y = (x[:, :3] + 0.3 * x[:, 3:6] ** 2).argmax(1)

task, test_x, test_y = make_task(model), x[5000:], y[5000:]
devices = federate(
    x[:5000], y[:5000], iid(y[:5000].numpy(), None, 500, None, 0), uniform, 50, ThreatModel(share=0.1), 0
)
wrong = auxiliary_set(test_x, test_y, 50, classes=3, seed=0)
attack, gradient, evaluate = pgd(wrong, step=0.1), differentiator(task, torch.float32), evaluator(task, torch.float32)
for name, params in (("undefended", {}), ("clipping", {"clip_norm": 1.0}), ("sparsefed", {"k": 100, "clip_norm": 1.0})):
    protocol = Protocol(devices, fused(task), build(name, **params), constant(0.1), False, 0.0, 0, attack, gradient)
    *_, last = simulate(protocol, start(protocol, task.initial()), rounds=200)
    test, poisoned = (evaluate(last.state.theta, a, b).accuracy(b) for a, b in ((test_x, test_y), (wrong.x, wrong.y)))
    print(f"{name:10}  test accuracy {test:.1%}  attack accuracy {poisoned:.1%}")
