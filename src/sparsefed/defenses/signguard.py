"""SignGuard: updates of unusual length, or with an unusual share of positive and negative coordinates, are left out.

Byzantine-robust Federated Learning through Collaborative Malicious Gradient Filtering (Xu, Huang, Song, Lan 2022,
Algorithm 2). With M the median of the norms,

    S_1  =  { i : L <= ||u_i|| / M <= R }                                           L = 0.1, R = 3
    S_2  =  the largest cluster of the sign statistics: on a tenth of the coordinates, drawn at random, the shares of
            positive, zero and negative ones, each divided by the largest of the cohort (as the authors' code does)
    u    =  the mean over S_1 and S_2 both of  u_i min(1, M / ||u_i||)

The clustering is mean shift with a flat kernel (Comaniciu, Meer 2002): every point climbs to the mean of the points
within a bandwidth until it stops; summits closer than the bandwidth are one, the one with more points around it; a
point belongs to the nearest summit within the bandwidth, or to none. The bandwidth is the mean distance of a point to
the n/2-th nearest, itself the first. `signguard_sim` clusters a fourth number too, the cosine similarity.

*Departures.*

- Every point climbs, and every point counts for the bandwidth; the authors start from bins and take 50 points at most.
  So the order of the rows does not matter.
- The coordinates are drawn one by one, as the paper says; the authors' code takes a random window of neighbours.
- M is the mean of the middle two for an even n also where it clips; the authors' code clips to the lower of them.
- The bandwidth reaches at least to the nearest other row, so that cohorts of two and three are not all singletons; if
  it is 0 (most rows agree), a cluster is the rows of equal statistics. Of equally large clusters the denser one is
  taken, then the one with more positive coordinates. Distances are compared to within 1e-10.
- If nobody passes both filters, the result is zero.
- `signguard_sim` takes the median of an update's cosines with the others in every round, where the authors' code
  goes over to the cosine with the last aggregate after three epochs: nothing need be remembered, and a poisoned
  round does not become the reference of the next.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Annotated, Unpack

import numpy as np
import torch
from torch import Tensor

from sparsefed.core.rng import rng
from sparsefed.core.types import Block, Context, State
from sparsefed.defenses.combine import accepted, stack
from sparsefed.defenses.options import CommonKeywords
from sparsefed.defenses.pipeline import Combine, Flow, clip_factors, no_state, require
from sparsefed.defenses.rule import rule
from sparsefed.kernels.compilation import warm_up
from sparsefed.kernels.distances import gram, rehearse
from sparsefed.kernels.rows import row_norms, weighted_sum

PAPER = "Xu et al. 2022, Byzantine-robust Federated Learning through Collaborative Malicious Gradient Filtering"

DECIMALS = 9  # decimals kept of a statistic; the rest is rounding
SAME = 1e-10  # distances that differ by less are equal; two different statistics differ by more
STILL = 1e-3  # relative to the bandwidth: a point that moves less has arrived
MOST_STEPS = 300  # per climb

Features = Callable[[Tensor], Tensor]  # rows [n, d] -> more statistics, float64 [n, p]
Lower = Annotated[float, "L, the shortest update let through, as a multiple of the median norm"]
Upper = Annotated[float, "R, the longest update let through, as a multiple of the median norm"]
Share = Annotated[float, "share of the coordinates whose signs are looked at"]


@rule(paper=PAPER, needs=("all rows",))
def signguard(lower: Lower = 0.1, upper: Upper = 3.0, share: Share = 0.1, **_: Unpack[CommonKeywords]) -> Combine:
    """The mean of updates of usual length and in the largest cluster by shares of signs, clipped to the median norm."""
    return _guard(lower, upper, share, lambda rows: rows.new_zeros(len(rows), 0, dtype=torch.float64))


@rule(paper=PAPER, needs=("all rows",))
def signguard_sim(lower: Lower = 0.1, upper: Upper = 3.0, share: Share = 0.1, **_: Unpack[CommonKeywords]) -> Combine:
    """SignGuard that clusters by the cosine similarity to the other updates as well."""
    return replace(_guard(lower, upper, share, similarity), init=_prepared)


def _prepared(d: int) -> State:  # noqa: ARG001
    warm_up(rehearse)
    return {}


def _guard(lower: float, upper: float, share: float, more: Features) -> Combine:
    require(
        0 <= lower <= 1 <= upper,
        f"lower is {lower} and upper is {upper}, but the median itself must pass: choose 0 <= lower <= 1 <= upper",
    )
    require(0 < share <= 1, f"share is {share}, but it is a share of the coordinates: choose 0 < share <= 1")

    def step(state: State, blocks: Iterable[Block], context: Context) -> Flow:
        rows, senders, *_ = stack(blocks, context)
        if not len(rows):
            return Flow(state, rows.new_zeros(rows.shape[1]))
        norms = row_norms(rows)
        median = float(_median(norms))
        usual = (norms >= lower * median) & (norms <= upper * median)
        statistics = torch.cat([sign_shares(_seen(rows, share, context)), more(rows)], dim=1)
        good = usual & largest_cluster(statistics)
        selected = int(good.sum())
        weights = torch.where(good, clip_factors(norms, median), 0.0) / max(1, selected)
        stats = {"selected": float(selected), "usual_norms": float(usual.sum())}
        return Flow(state, weighted_sum(rows, weights), stats, accepted(senders, good))

    return Combine(no_state, step)


def coordinates(d: int, share: float, context: Context) -> Tensor:
    """Draw the coordinates of the round, ascending; at least one."""
    drawn = rng(context.seed, "signguard", context.round).choice(
        d, max(1, math.floor(share * d)), replace=False, shuffle=False
    )
    return torch.from_numpy(np.sort(drawn))


def _seen(rows: Tensor, share: float, context: Context) -> Tensor:
    return rows if share == 1 else rows[:, coordinates(rows.shape[1], share, context).to(rows.device)]


def sign_shares(rows: Tensor) -> Tensor:
    """Return the counts of positive, zero and negative coordinates, relative to the largest row's; float64 [n, 3]."""
    positive, negative = (rows > 0).sum(1), (rows < 0).sum(1)
    counts = torch.stack([positive, rows.shape[1] - positive - negative, negative], dim=1).double()
    return counts / counts.amax(0).clamp_min(1)


def similarity(rows: Tensor) -> Tensor:
    """Return each median cosine with the other rows, cut to [0, its median], scaled to 0.2; float64 [n, 1]."""
    n = len(rows)
    if n == 1:
        return rows.new_zeros(1, 1, dtype=torch.float64)
    norms = row_norms(rows)
    directions = torch.where(norms > 0, 1 / norms, 0.0)
    cosines = gram(rows) * directions[:, None] * directions
    others = cosines[~torch.eye(n, dtype=torch.bool, device=rows.device)].reshape(n, n - 1)
    typical = _median(others).round(decimals=DECIMALS)
    most = float(_median(typical))
    return typical.clamp(0, most)[:, None] / (5 * most) if most > 0 else torch.zeros_like(typical)[:, None]


def largest_cluster(points: Tensor) -> Tensor:
    """Return which points [n, p] are in the largest mean-shift cluster, bool [n]; points are float64."""
    points = points.round(decimals=DECIMALS)
    width = _bandwidth(points) + SAME
    summits = _apart(*_climbed(points, width), width)
    away = _distances(points, summits)
    least = away.amin(1)
    # argmax takes the first of equally near summits; they come densest first.
    nearest = (away <= least[:, None] + SAME).int().argmax(1)
    sizes = torch.bincount(nearest[least <= width], minlength=len(summits))
    return (nearest == sizes.argmax()) & (least <= width)


def _median(values: Tensor) -> Tensor:
    """Return the median along the last dimension; for an even number, the mean of the middle two."""
    ordered, n = values.sort().values, values.shape[-1]
    return (ordered[..., (n - 1) // 2] + ordered[..., n // 2]) / 2


def _distances(a: Tensor, b: Tensor) -> Tensor:
    return torch.cdist(a, b, compute_mode="donot_use_mm_for_euclid_dist")  # products would round small distances away


def _bandwidth(points: Tensor) -> float:
    n = len(points)
    return float(_distances(points, points).kthvalue(min(n, max(2, n // 2)), dim=1).values.mean())


def _climbed(points: Tensor, width: float) -> tuple[Tensor, Tensor]:
    """Return where each point's climb ends, and how many points were within the bandwidth at the end."""
    ends, crowd = points.clone(), torch.ones(len(points), dtype=torch.long, device=points.device)
    moving = torch.arange(len(points), device=points.device)
    for _ in range(MOST_STEPS):
        near = _distances(ends[moving], points) <= width
        seen = near.sum(1)
        there = near.double() @ points / seen[:, None]
        moved = (there - ends[moving]).norm(dim=1) > STILL * width
        ends[moving], crowd[moving] = there, seen
        moving = moving[moved]
        if not len(moving):
            break
    return ends, crowd


def _apart(ends: Tensor, crowd: Tensor, width: float) -> Tensor:
    """Return the summits, densest first, without those within the bandwidth of a denser one; float64 [m, p]."""
    places = {(seen, *end) for seen, end in zip(crowd.tolist(), ends.round(decimals=DECIMALS).tolist(), strict=True)}
    summits = ends[:0]
    for _, *place in sorted(places, reverse=True):
        candidate = ends.new_tensor([place])
        if not bool((_distances(candidate, summits) <= width).any()):
            summits = torch.cat([summits, candidate])
    return summits
