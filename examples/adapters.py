"""Fine-tuning by adapters under attack: a pretrained transformer stays frozen, devices train small additions (LoRA).

Hu et al. 2021: beside a frozen matrix W stands the product of two thin ones, W + B A with B = 0 at first. Only A, B and
the last layer are in the vector that devices send, that attackers poison, and that the server defends.

The task is made on the spot: sequences of 8 tokens. Pretrained is: which token is the most frequent? Fine-tuned by 60
devices, a tenth of them compromised: which is the most frequent in the second half?
"""

import numpy as np
import torch
from torch import Tensor, nn

from sparsefed import Simulation, attacks, defenses

TOKENS, LENGTH, WIDTH, RANK = 3, 8, 16, 2


class Attention(nn.Module):
    """One head of attention over all positions, by plain linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:  # [M, T, width]
        weights = (self.query(x) @ self.key(x).transpose(1, 2) / WIDTH**0.5).softmax(-1)
        return weights @ self.value(x)  # type: ignore[no-any-return]


class Transformer(nn.Module):
    """A small transformer that reads tokens [M, T] and classifies the sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(TOKENS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.attention, self.before = nn.ModuleList(Attention() for _ in range(2)), nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))
        self.scores = nn.Linear(WIDTH, TOKENS)

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device).expand(tokens.shape)
        x = self.tokens(tokens) + self.places(places)
        for attention in self.attention:
            x = x + attention(self.before(x))
        return self.scores((x + self.mlp(x)).mean(1))  # type: ignore[no-any-return]


class Adapted(nn.Module):
    """A frozen linear layer and its adapter."""

    def __init__(self, frozen: nn.Linear) -> None:
        super().__init__()
        self.frozen = frozen.requires_grad_(False)
        self.down, self.up = nn.Linear(frozen.in_features, RANK, bias=False), nn.Linear(RANK, frozen.out_features)
        nn.init.zeros_(self.up.weight)
        nn.init.zeros_(self.up.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.frozen(x) + self.up(self.down(x))  # type: ignore[no-any-return]


def with_adapters(model: Transformer) -> Transformer:
    """Freeze a model, and give its attention layers adapters and the last layer its freedom."""
    model.requires_grad_(False)
    for attention in model.attention:
        for name in ("query", "value"):
            setattr(attention, name, Adapted(getattr(attention, name)))
    model.scores.requires_grad_(True)
    return model


def sequences(count: int, seed: int, first: int = 0) -> tuple[Tensor, Tensor]:
    """Return sequences, and the most frequent token of each from position `first` on."""
    tokens = np.random.default_rng(seed).integers(TOKENS, size=(count, LENGTH))
    counts = (tokens[:, first:, None] == np.arange(TOKENS)).sum(1)
    return torch.from_numpy(tokens), torch.from_numpy(counts.argmax(1))


def pretrain(model: Transformer) -> Transformer:
    """Train all of a model on the easier question, as one would in a data centre."""
    x, y = sequences(3000, seed=1)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for step in range(150):
        part = torch.arange(step * 60, step * 60 + 60) % len(y)
        loss = nn.functional.cross_entropy(model(x[part]), y[part])
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return model


if __name__ == "__main__":
    torch.default_generator.manual_seed(0)
    model = with_adapters(pretrain(Transformer()))
    everything = sum(p.numel() for p in model.parameters())
    data = (*sequences(1800, seed=2, first=LENGTH // 2), *sequences(600, seed=3, first=LENGTH // 2))
    for defense in ("undefended", defenses.sparsefed(k=200, clip_norm=1.0)):
        simulation = Simulation(
            model,
            data,
            defense=defense,
            attack=attacks.pgd(attacks.goals.labels(auxiliary=50), boost=10.0),
            threat=0.1,
            devices=60,
            cohort=20,
            rounds=60,
            schedule=1.0,
            evaluate_every=60,
        )
        start, end = simulation.evaluate(), simulation.run().evaluate()
        print(
            f"{getattr(defense, 'name', defense):10} {len(simulation.theta)} of {everything} parameters trained, "
            f"test accuracy {start['test_accuracy']:.1%} -> {end['test_accuracy']:.1%}, "
            f"attack accuracy {end['attack_accuracy']:.1%}"
        )
