"""Your own defense, from a function to a trained model: the updates nearest to the coordinate-wise median, averaged.

In a config beside this file, `defense.name = "own_defense:near_the_median"` is this rule.
"""

from typing import Annotated, Unpack

import torch
from torch import Tensor

import sparsefed
from sparsefed.defenses import Combine, CommonKeywords, rule
from sparsefed.defenses.combine import stacked


@rule(needs=("all rows",), audit=True)
def near_the_median(
    share: Annotated[float, "of the updates, those nearest to the median, that are averaged"] = 0.5,
    **_: Unpack[CommonKeywords],
) -> Combine:
    """The mean of the updates that are nearest to the coordinate-wise median."""

    def combine(rows: Tensor) -> Tensor:  # [n, d] -> [d]
        distances = (rows - rows.median(0).values).norm(dim=1)
        nearest = distances.argsort()[: max(1, round(share * len(rows)))]
        return rows[nearest].mean(0)

    return stacked(combine)


if __name__ == "__main__":
    honest = torch.ones(8, 5) + 0.1 * torch.randn(8, 5, generator=torch.Generator().manual_seed(0))
    updates = torch.cat([honest, torch.full((2, 5), -100.0)])  # two attackers
    for defense in (sparsefed.defenses.undefended(), near_the_median(share=0.5, clip_norm=10.0)):
        step = sparsefed.Server(defense, like=5).step(updates, lr=1.0)
        print(f"{defense}: moves the model by {step.delta.mean():+.2f} a coordinate; honest devices want +1.00")
