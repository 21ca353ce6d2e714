"""Rules that look at one coordinate at a time: the trimmed mean and the median of its values over all clients.

Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates (Yin et al. 2018, Definitions 1 and 2):

    trimmed mean   u_j = mean of the n - 2 f values that are left of u_1j .. u_nj without the f smallest and f largest
    median         u_j = med(u_1j .. u_nj), for even n the mean of the two in the middle

*Departures.* The paper trims a share beta of the values on either side; f = beta n is given as a number here. The
median of updates with weights has half of the weight on either side. The trimmed mean has no such form: it tolerates a
number of attackers, whatever they weigh.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Unpack

from sparsefed.core.types import Block, Context, State
from sparsefed.defenses.combine import robust, stack
from sparsefed.defenses.options import CommonKeywords
from sparsefed.defenses.parameter_types import Attackers
from sparsefed.defenses.pipeline import Combine, Flow
from sparsefed.defenses.rule import rule
from sparsefed.kernels import columns
from sparsefed.kernels.compilation import warm_up

PAPER = "Yin et al. 2018, Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates"


@rule(paper=PAPER, needs=("all rows",), audit=True, slices=True)
def trimmed_mean(f: Attackers, **_: Unpack[CommonKeywords]) -> Combine:
    """The mean of each coordinate without its f largest and f smallest values; needs n > 2 f."""
    return replace(robust("trimmed_mean", columns.trimmed_mean, f, lambda n: (n - 1) // 2, sliced=True), init=_prepared)


@rule(paper=PAPER, needs=("all rows",), audit=True, weights=True, slices=True)
def median(**_: Unpack[CommonKeywords]) -> Combine:
    """The median of each coordinate; for an even number of updates the mean of the two in the middle."""

    def step(state: State, blocks: Iterable[Block], context: Context) -> Flow:
        updates = stack(blocks, context, sliced=True)
        rows, shares = updates.rows, updates.shares
        if not len(rows):
            return Flow(state, rows.new_zeros(rows.shape[1]))
        return Flow(state, columns.median(rows) if shares is None else columns.weighted_median(rows, shares))

    return Combine(_prepared, step)


def _prepared(d: int) -> State:  # noqa: ARG001
    warm_up(columns.rehearse)
    return {}
