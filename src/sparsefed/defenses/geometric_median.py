"""The geometric median: Robust Aggregation for Federated Learning (RFA; Pillutla, Kakade, Harchaoui 2022).

    z*  =  argmin_z  sum_i ||x_i - z||          an arbitrary minority of rows cannot carry it away

by the paper's smoothed Weiszfeld iteration (Algorithm 2), each step a weighted mean of the rows:

    w_i  =  1 / max(nu, ||x_i - z||)            z  <-  sum_i w_i x_i / sum_i w_i

*How it is computed.* A step is one sweep over the rows (`recentre`). Updates of many coordinates settle within a few.
Where they do not, the sweeps that have been spent would have paid for the Gram matrix of the rows around the centre so
far; every later centre is a convex combination of the rows, so that further steps follow from its n x n numbers:

    G_ij = <x_i - c, x_j - c>,    z = c + sum_j w_j (x_j - c):    ||x_i - z||^2 = G_ii - 2 (G w)_i + w' G w

Around c, not around 0: no term is then larger than (||x_i - c|| + sum_j w_j ||x_j - c||)^2, where far rows have small
weights. Where z has come so close to a row that the difference drowns in these terms, sweeps go on from there, then
products around the new centre. Only a sweep decides that the median is reached.

*Departures.* Rows weigh the same unless the server is given weights, the paper's alpha_i, by which w_i and each term of
the sum of distances are then multiplied. The paper stops after a few steps (3 in its experiments); here the steps go on
until the median is reached, at no great cost. The paper's nu is 1e-6; here it is, by default, what float32 resolves at
the size of the updates, so that the rule commutes with scaling.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal, NamedTuple, Unpack, get_args

import torch
from torch import Tensor

from sparsefed.core.errors import ConfigError, unknown
from sparsefed.core.types import Block, Context, State
from sparsefed.defenses.combine import stack
from sparsefed.defenses.options import CommonKeywords
from sparsefed.defenses.parameter_types import require_iterations
from sparsefed.defenses.pipeline import Combine, Flow, require
from sparsefed.defenses.rule import rule
from sparsefed.kernels.compilation import warm_up
from sparsefed.kernels.rows import row_norms

Start = Literal["mean", "zero"]

RELATIVE_NU = 2.0**-24  # of the median norm: float32 rows cannot resolve less
LEAST_NU = 1e-300  # where every row is zero, so that nothing is divided by 0
GRAM_ROWS = 6  # the Gram matrix of n rows costs about n / 6 sweeps
GRAM_COLUMNS = 1 << 11  # columns multiplied at a time, in float64
DROWNED = 1e-4  # relative to the terms: a smaller distance has fewer than eight digits


class _Found(NamedTuple):
    point: Tensor  # float64: a centre [d], or weights [n]
    steps: int


@rule(
    paper="Pillutla et al. 2022, Robust Aggregation for Federated Learning",
    needs=("all rows",),
    audit=True,
    weights=True,
)
def geometric_median(
    nu: Annotated[float | None, "a distance below nu counts as nu; None: 2^-24 of the median norm"] = None,
    iterations: Annotated[int, "steps of Weiszfeld's iteration, at most"] = 1000,
    tolerance: Annotated[float, "stop where a step moves less than this share of the harmonic mean distance"] = 1e-6,
    start: Annotated[Start, "where the iteration starts: at the mean of the updates, or at zero"] = "mean",
    **_: Unpack[CommonKeywords],
) -> Combine:
    """The point with the least sum of distances to all updates (RFA), by smoothed Weiszfeld steps.

    Where several points attain it (an even number of rows on a line), the result is one of them: for two rows, their
    mean, if the start is the mean. Where the sum is nearly flat along a line, the steps are small and may run out a
    little above the least. The paper's budget is `iterations` = 3 with `tolerance` = 0.
    """
    require(nu is None or nu > 0, f"nu is {nu}, but it keeps distances from being 0: choose nu > 0, or None")
    require_iterations(iterations, "there must be a step")
    require(tolerance >= 0, f"tolerance is {tolerance}, but it is a share: choose tolerance >= 0 (0: take every step)")
    if start not in get_args(Start):
        raise ConfigError(unknown("start", start, get_args(Start)))

    def init(d: int) -> State:  # noqa: ARG001
        from sparsefed.kernels.centre_kernels import rehearse

        warm_up(rehearse)
        return {}

    def step(state: State, blocks: Iterable[Block], context: Context) -> Flow:
        updates = stack(blocks, context)
        rows, shares = updates.rows, updates.shares
        if not len(rows):
            return Flow(state, rows.new_zeros(rows.shape[1]))
        floor = max(nu or _resolution(rows), LEAST_NU)
        equal = torch.full((len(rows),), 1 / len(rows), dtype=torch.float64, device=rows.device)
        weights, alphas = (equal, None) if shares is None else (shares, shares * len(rows))
        if start == "zero":  # the first step, whose distances are the norms
            weights, _ = _reweighted(weights, row_norms(rows), floor, alphas)
        taken = 1 if start == "zero" else 0
        found = _median(rows, weights, floor, iterations - taken, tolerance, alphas)
        return Flow(state, found.point.float(), {"iterations": float(taken + found.steps)})

    return Combine(init, step)


def _resolution(rows: Tensor) -> float:
    """Return the default nu; where most rows are zero, the smallest of the others sets the scale."""
    norms = row_norms(rows).sort().values
    middle = norms[(len(norms) - 1) // 2]
    scale = middle if middle > 0 else norms[norms > 0].min() if norms[-1] > 0 else middle
    return max(RELATIVE_NU * float(scale), LEAST_NU)


def _median(
    rows: Tensor, weights: Tensor, nu: float, steps: int, tolerance: float, alphas: Tensor | None = None
) -> _Found:
    """Iterate from the weights' centre: sweeps over the rows, steps on inner products, and again."""
    from sparsefed.kernels.centre_kernels import recentre

    centre = recentre(rows, weights)
    taken = 0
    while taken < steps:
        for _ in range(min(steps - taken, len(rows) // GRAM_ROWS + 2)):
            better, moved = _reweighted(weights, centre.squares.sqrt(), nu, alphas)
            if moved <= tolerance:
                return _Found(centre.vector, taken)
            weights, centre, taken = better, recentre(rows, better), taken + 1
        if taken < steps:
            gram = _gram_around(rows, centre.vector)
            weights, more = _by_products(gram, weights, nu, steps - taken, tolerance, alphas)
            centre, taken = recentre(rows, weights), taken + more
    return _Found(centre.vector, taken)


def _by_products(
    gram: Tensor, weights: Tensor, nu: float, steps: int, tolerance: float, alphas: Tensor | None = None
) -> _Found:
    """Return the weights after steps on inner products alone, taken while these have enough digits."""
    squares = gram.diagonal()
    terms = squares.sqrt()
    for taken in range(steps):
        pulls = gram @ weights
        distances = (squares - 2 * pulls + weights @ pulls).clamp(min=0).sqrt()
        better, moved = _reweighted(weights, distances, nu, alphas)
        drowned = (distances.clamp(min=nu) < DROWNED * (terms + weights @ terms)).any()
        if taken and (drowned or moved <= tolerance):
            return _Found(weights, taken)
        weights = better
    return _Found(weights, steps)


def _reweighted(weights: Tensor, distances: Tensor, nu: float, alphas: Tensor | None = None) -> tuple[Tensor, float]:
    """Return the next weights, and a bound on how far they move the centre, in harmonic mean distances.

    |sum_i (w'_i - w_i) x_i|  <=  sum_i |w'_i - w_i| ||x_i - z||,  since the differences add up to 0. Unlike the mean
    distance, the harmonic one stays what it is when a few rows go far away.
    """
    inverse = 1 / distances.clamp(min=nu)
    inverse = inverse if alphas is None else inverse * alphas
    total = inverse.sum()
    better = inverse / total
    moved = (better - weights).abs() @ distances
    return better, float(moved * total / len(weights))


def _gram_around(rows: Tensor, centre: Tensor) -> Tensor:
    """Return <x_i - c, x_j - c>, float64 [n, n]."""
    gram = torch.zeros(len(rows), len(rows), dtype=torch.float64, device=rows.device)
    for start in range(0, rows.shape[1], GRAM_COLUMNS):
        part = rows[:, start : start + GRAM_COLUMNS].double() - centre[start : start + GRAM_COLUMNS]
        gram += part @ part.T
    return gram
