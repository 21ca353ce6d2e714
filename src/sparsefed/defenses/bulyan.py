"""Bulyan: Krum picks updates one after the other, and each coordinate takes the middle of their values.

The Hidden Vulnerability of Distributed Learning in Byzantium (El Mhamdi, Guerraoui, Rouault 2018, section 4):

    repeat theta = n - 2f times:  move krum(U, f) from U to S
    u  =  coordinate by coordinate, a mean of the theta - 2f values in the middle of S

It needs n >= 4f + 3. Krum's scores are taken anew among the updates that are left: with r of them, over the r - f - 2
nearest others; ties as in Krum. Distances are computed once; only sums over the n x n table are repeated.

*Departures.* The middle is by default the trimmed mean, as in SparseFed's box (Panda et al. 2022, appendix): without
the f smallest and f largest. The variant 'around_median' is the authors' own: the theta - 2f values nearest to the
median. The last picks are among fewer than the 2f + 3 updates that Krum asks for, as in both papers; where r - f - 2
would be 0 (f = 1, the last pick), one neighbour counts, or every update would score the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Annotated, Literal, Unpack, get_args

import numpy as np
import torch
from torch import Tensor

from sparsefed.core.errors import ConfigError, unknown
from sparsefed.core.types import State
from sparsefed.defenses.combine import robust
from sparsefed.defenses.krum import keep_company, lowest
from sparsefed.defenses.options import CommonKeywords
from sparsefed.defenses.parameter_types import Attackers
from sparsefed.defenses.pipeline import Combine, no_state
from sparsefed.defenses.rule import rule
from sparsefed.kernels import columns, distances
from sparsefed.kernels.compilation import warm_up
from sparsefed.kernels.sliced import Rows, SlicedRows

Variant = Literal["trimmed_mean", "around_median"]
Middle = Callable[[Tensor, int], Tensor]  # [theta, w], f -> [w]

COLUMNS = 1 << 14  # columns of the selected rows gathered at a time, so that they stay in the cache


@rule(
    paper="El Mhamdi et al. 2018, The Hidden Vulnerability of Distributed Learning in Byzantium",
    needs=("all rows",),
    largest_f=lambda n: (n - 3) // 4,
    audit=True,
    slices=True,
)
def bulyan(
    f: Attackers,
    variant: Annotated[
        Variant, "of what Krum picked: 'trimmed_mean', or 'around_median', the n - 4f values nearest to the median"
    ] = "trimmed_mean",
    **_: Unpack[CommonKeywords],
) -> Combine:
    """Bulyan: the trimmed mean of n - 2f updates that Krum picks one by one."""
    if variant not in get_args(Variant):
        raise ConfigError(unknown("variant", variant, get_args(Variant)))
    middles: Mapping[Variant, Middle] = {"trimmed_mean": columns.trimmed_mean, "around_median": around_median}

    def rule(rows: Rows, f: int) -> tuple[Tensor, list[int]]:
        chosen = select(rows, f)
        middle = partial(middle_of, chosen=chosen, f=f, middle=middles[variant])
        return (rows.columnwise(middle) if isinstance(rows, SlicedRows) else middle(rows)), chosen

    def init(d: int) -> State:
        warm_up(distances.rehearse)
        warm_up(columns.rehearse)
        return no_state(d)

    return replace(robust("bulyan", rule, f, lambda n: (n - 3) // 4, sliced=True), init=init)


def middle_of(rows: Tensor, chosen: list[int], f: int, middle: Middle) -> Tensor:
    """Return the middle of each column of the chosen rows."""
    return torch.cat([middle(_gathered(part, chosen), f) for part in torch.split(rows, COLUMNS, dim=1)])


def select(rows: Rows, f: int) -> list[int]:
    """Return the n - 2f rows that Krum picks one after the other, each time among those that are left."""
    n = len(rows)
    if f == 0:
        return list(range(n))  # all are picked, in whatever order
    from sparsefed.kernels.distance_kernels import strike

    company = keep_company(rows, distances.squared_distances(rows))
    order, ordered, alive = company.order.copy(), company.ordered.copy(), np.ones(n, np.bool_)
    for left in range(n, 2 * f, -1):
        score = np.where(alive, ordered[:, : max(1, left - f - 2)].sum(axis=1), np.inf)
        [pick] = lowest(company, score, 1)
        alive[pick] = False
        strike(pick, alive, left - 1, order, ordered)
    return [i for i in range(n) if not alive[i]]


def _gathered(part: Tensor, chosen: list[int]) -> Tensor:
    if part.device.type != "cpu":
        return part[chosen]
    # NumPy, because torch would wake its thread pool for every part and hold the cores that the kernels need.
    return torch.from_numpy(part.detach().numpy()[chosen])


def around_median(rows: Tensor, f: int) -> Tensor:
    """Return each column's mean of the n - 2f values nearest to its median, float32 [d]; ties take the smaller.

    Sorted, those values are neighbours: a window, which moves up as long as its lowest value is farther from the median
    than the next value above it.

    >>> around_median(torch.tensor([[0.0], [5.0], [6.0], [7.0], [9.0]]), 1)
    tensor([6.])
    """
    kept = len(rows) - 2 * f
    ordered = rows.double().sort(dim=0).values
    middle = (ordered[(len(rows) - 1) // 2] + ordered[len(rows) // 2]) / 2
    start = (middle - ordered[: 2 * f] > ordered[kept:] - middle).sum(0)
    return ordered.gather(0, start + torch.arange(kept, device=rows.device)[:, None]).mean(0).to(torch.float32)
