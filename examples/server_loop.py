"""A training loop of your own around SparseFed's server, with a checkpoint that it goes on from.

The devices here are a few lines of PyTorch; yours may be anywhere. An update is the model before less the model after.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

import sparsefed

torch.set_num_threads(1)  # the model is tiny
RULE = sparsefed.defenses.sparsefed(k=20, clip_norm=1.0)
generator = torch.Generator().manual_seed(0)
truth = torch.randn(10, 3, generator=generator)
devices = [torch.randn(20, 10, generator=generator) for _ in range(30)]


def train(model: nn.Module, x: Tensor) -> dict[str, Tensor]:
    """What a device does: one step on its own examples."""
    names, parameters = zip(*model.named_parameters(), strict=True)
    loss = nn.functional.cross_entropy(model(x), (x @ truth).argmax(1))
    before_less_after = [0.1 * gradient for gradient in torch.autograd.grad(loss, parameters)]
    return dict(zip(names, before_less_after, strict=True))


def cohort(model: nn.Module, ids: list[int]) -> Iterator[dict[str, Tensor]]:
    """One update at a time, so that memory does not grow with the cohort; device 0 is broken."""
    for i in ids:
        update = train(model, devices[i])
        yield {name: part * float("nan") for name, part in update.items()} if i == 0 else update


model = nn.Linear(10, 3)
server = sparsefed.Server(RULE, like=model, mode="fedavg")
with tempfile.TemporaryDirectory() as folder:
    checkpoint = Path(folder) / "server.safetensors"
    for round in range(30):
        ids = [(7 * round + i) % len(devices) for i in range(10)]
        step = server.step(cohort(server.model, ids), senders=ids, weights=[len(devices[i]) for i in ids])
        if step.round % 10 == 0:
            server.save(checkpoint)
            server = sparsefed.Server.load(checkpoint, RULE, like=model, mode="fedavg")  # as after a restart
            x = torch.cat(devices)
            right = (step.model(x).argmax(1) == (x @ truth).argmax(1)).float().mean()
            print(f"round {step.round}: accuracy {right:.1%}, {step.applied} coordinates moved, dropped {step.dropped}")
