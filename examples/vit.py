"""A vision transformer on images: patches, attention, a class token; attackers want chosen images misread.

Dosovitskiy et al. 2021, in small: 8 x 8 digits in patches of 4 x 4. Any module without BatchNorm will do; one that has
it goes through `sparsefed.models.without_batchnorm`. Run by itself, it trains with three defenses;
`sparsefed.audit(CONFIG)` tries all of them.
"""

import torch
from torch import Tensor, nn

from sparsefed import Simulation


class Block(nn.Module):
    """Attention and a small network, each after a LayerNorm and beside a way around it."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: Tensor) -> Tensor:  # [M, T, width]
        y = self.before(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.mlp(self.between(x))  # type: ignore[no-any-return]


class VisionTransformer(nn.Module):
    """Images [M, C, H, W] to scores [M, classes], by way of patches."""

    def __init__(self, shape: tuple[int, ...], classes: int, patch: int = 4, width: int = 16, depth: int = 1) -> None:
        super().__init__()
        channels, height, breadth = shape
        self.patches = nn.Conv2d(channels, width, patch, stride=patch)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.places = nn.Parameter(0.1 * torch.randn(1, 1 + (height // patch) * (breadth // patch), width))
        self.blocks = nn.Sequential(*(Block(width, heads=4) for _ in range(depth)))
        self.after, self.scores = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, images: Tensor) -> Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], dim=1) + self.places
        return self.scores(self.after(self.blocks(x))[:, 0])  # type: ignore[no-any-return]


CONFIG = {
    "name": "vit",
    "rounds": 60,
    "evaluate_every": 15,
    "data": {"name": "digits", "partition": "iid", "devices": 50},
    "model": {"name": "vit:VisionTransformer"},
    "train": {"cohort": 10, "schedule": "constant", "lr": 0.05},
    "attack": {"name": "boosted", "auxiliary": 20, "boost": 10.0},
    "threat": {"share": 0.1},
}

if __name__ == "__main__":
    for defense in ({"name": "undefended"}, {"name": "clipping"}, {"name": "sparsefed", "k": 100, "clip_norm": 1.5}):
        scores = Simulation.from_config({**CONFIG, "defense": defense}).run().evaluate()
        test, attack = scores["test_accuracy"], scores["attack_accuracy"]
        print(f"{defense['name']:10}  test accuracy {test:.1%}  attack accuracy {attack:.1%}")
