"""Directed deviation against trimmed mean, median and Krum: push each parameter against its honest direction.

Local Model Poisoning Attacks to Byzantine-Robust Federated Learning (Fang, Cao, Jia, Gong 2020, section 3). Let s be
the sign of the update that an unattacked round would end in, [d]: the server subtracts, so -s is where each parameter
would go, and the c attackers of the round send what takes it the other way.

    fang_trimmed  full     u_j from [b l_j, l_j]  (from [l_j / b, l_j] if l_j > 0),  l_j = min honest u_j,  if s_j = 1
                           u_j from [h_j, b h_j]  (from [h_j, h_j / b] if h_j < 0),  h_j = max honest u_j,  if s_j = -1
                  partial  u_j from [mu_j - 4 sigma_j, mu_j - 3 sigma_j]  if s_j = 1, mirrored if s_j = -1
    fang_krum     full     u = -lambda s,  lambda the upper bound of Theorem 1, halved until Krum picks u from c copies
                           of it and the honest updates
                  partial  the same with what the attackers would have sent honestly in place of the honest updates,
                           and q copies: one, and one more whenever no lambda is found

With full knowledge the attackers see the honest updates of the round; with partial knowledge they have their own data,
and mu and sigma are over the updates of these. `fang_trimmed` draws evenly, for each attacker apart, and is meant for
trimmed mean and median alike; against Krum, all attackers stay within `epsilon` of one update. All is cut to the norm
that the server enforces, and the honest updates are seen as it will cut them.

*Departures.* The paper speaks of local models, theta - u; the intervals [w, b w] are taken around updates here, as in
its authors' later code (FLTrust): what a rule trims is the same either way. s is the sign of Krum's pick from the
honest updates for `fang_krum` with full knowledge, else that of the mean (for trimmed mean and median as in their code,
with partial knowledge as in the paper). `epsilon` is a share of the update's norm, not a distance, since honest updates
may be shorter than the paper's 0.01. Krum's f is the number of attackers of the round unless given; where all
neighbours that count are copies, Theorem 1 would divide by nothing, and divides by one.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal, NamedTuple, get_args

import numpy as np
import torch
from torch import Tensor

from sparsefed.attacks.attack import HONEST, OWN, Otherwise, attack
from sparsefed.attacks.base import granted, project, projected, rescale
from sparsefed.attacks.goals import Goal
from sparsefed.attacks.own_data import own_updates
from sparsefed.core.errors import ConfigError, unknown
from sparsefed.core.rng import rng
from sparsefed.core.threat import Attack, Knowledge, Need
from sparsefed.kernels.compilation import warm_up
from sparsefed.kernels.distances import rehearse, squared_distances

PAPER = "Fang et al. 2020, Local Model Poisoning Attacks to Byzantine-Robust Federated Learning"
PARTIAL = Otherwise('knowledge = "partial"', {"knowledge": "partial"}, OWN)

Scope = Literal["full", "partial"]
Seen = Annotated[Scope, "'full': the honest updates of the round; 'partial': the attackers' own data"]


# --- trimmed mean and median -----------------------------------------------------------------------------------------


@attack(paper=PAPER, needs=HONEST, otherwise=PARTIAL, place=4, search={"b": "1.1:10"})
def fang_trimmed(
    goal: Goal | None,  # noqa: ARG001
    *,
    knowledge: Seen = "full",
    b: Annotated[float, "full knowledge: how many times beyond the outermost honest value, at most"] = 2.0,
) -> Attack:
    """Values beyond all honest ones in each coordinate, on the side opposite to the honest direction."""
    needs = _needs("fang_trimmed", knowledge)
    if not (b > 1 and math.isfinite(b)):
        raise ConfigError(f"fang_trimmed: b is {b}; it must be above 1, or nothing would lie beyond the honest values")

    def craft(known: Knowledge) -> Tensor:
        others = _others(known, knowledge)
        near, far = _beyond(others, b) if knowledge == "full" else _outside(others)
        rows = [near + (far - near) * _uniform(known, i) for i in range(known.attackers)]
        return projected(torch.stack(rows), known.budget)

    return Attack(craft, needs)


def _beyond(honest: Tensor, b: float) -> tuple[Tensor, Tensor]:
    """Return intervals from the outermost honest value to b times it, or to a b-th of it where b times leads inside."""
    direction = _sign(honest.mean(0))
    near = torch.where(direction > 0, honest.amin(0), honest.amax(0))
    outwards = near * direction < 0
    return near, torch.where(outwards, near * b, near / b)


def _outside(own: Tensor) -> tuple[Tensor, Tensor]:
    """Return intervals from three to four standard deviations from the mean, beyond nearly all honest values."""
    mean = own.mean(0)
    away = -_sign(mean) * own.std(0, correction=0)
    return mean + 3 * away, mean + 4 * away


def _uniform(known: Knowledge, attacker: int) -> Tensor:
    draw = rng(known.seed, "fang values", known.round, attacker)
    return torch.from_numpy(draw.random(len(known.theta), dtype=np.float32)).to(known.theta)


# --- Krum ------------------------------------------------------------------------------------------------------------


@attack(paper=PAPER, needs=HONEST, otherwise=PARTIAL, place=9, search={"epsilon": "0.0001:0.5"})
def fang_krum(
    goal: Goal | None,  # noqa: ARG001
    *,
    knowledge: Seen = "full",
    f: Annotated[
        int | None, "full knowledge: the f of the Krum attacked; without it, the attackers of the round"
    ] = None,
    epsilon: Annotated[float, "how far from one update the attackers stay, as a share of its norm"] = 0.01,
    threshold: Annotated[float, "lambda at which the search gives up"] = 1e-5,
) -> Attack:
    """The update farthest against the honest direction that Krum still picks, sent by all attackers."""
    needs = _needs("fang_krum", knowledge)
    if not (0 <= epsilon < 1 and threshold > 0 and (f is None or f >= 0)):
        raise ConfigError(
            f"fang_krum: epsilon = {epsilon} must be from 0 to below 1, threshold = {threshold} positive, and f = {f} "
            "0 or more"
        )
    warm_up(rehearse)  # no kernel is compiled inside a round

    def craft(known: Knowledge) -> Tensor:
        others, c = _others(known, knowledge), known.attackers
        nearest = _nearest(others)
        if knowledge == "full":
            tolerated = c if f is None else f
            direction = _sign(others[_choice(nearest, tolerated)])
            size, _ = _search(_crowd(others, nearest, direction, known.budget), c, tolerated, threshold)
        else:
            direction = _sign(others.mean(0))
            size = _search_growing(_crowd(others, nearest, direction, known.budget), c, threshold)
        update = project(-size * direction, known.budget)
        return projected(torch.stack([_nearby(known, update, epsilon, i) for i in range(c)]), known.budget)

    return Attack(craft, needs)


class _Crowd(NamedTuple):
    """The quantities with which Krum scores -lambda s among the other updates for any lambda; float64."""

    nearest: Tensor  # [m, m - 1], squared distances of each from the rest, nearest first
    squares: Tensor  # [m], |u_i|^2
    along: Tensor  # [m], <u_i, s>
    d: int  # |s|^2
    limit: float  # the lambda that the server's norm allows


def _nearest(others: Tensor) -> Tensor:
    distances = squared_distances(others)
    distances.fill_diagonal_(-1)  # each row itself sorts first, before equal updates at distance 0, and is left out
    return distances.sort(1).values[:, 1:]


def _crowd(others: Tensor, nearest: Tensor, direction: Tensor, budget: float) -> _Crowd:
    wide = direction.double()
    squares = torch.stack([torch.linalg.vector_norm(row, dtype=torch.float64).square() for row in others])
    along = torch.stack([torch.dot(row.double(), wide) for row in others])  # a row at a time: float64 [m, d] is large
    d = others.shape[1]
    return _Crowd(nearest, squares, along, d, budget / math.sqrt(d))


def _choice(nearest: Tensor, f: int) -> int:
    """Return the position that Krum picks from the others alone."""
    return int(nearest[:, : _neighbours(len(nearest), f)].sum(1).argmin())


def _neighbours(n: int, f: int) -> int:
    """Return over how many neighbours Krum sums distances; at least one, since Krum is not defined over none."""
    return max(n - f - 2, 1)


def _bound(crowd: _Crowd, copies: int, f: int) -> float:
    """Return the upper bound of Theorem 1: Krum picks no larger lambda.

    A picked u has a score of at most the lowest honest one; all of its neighbours that are not copies are honest, so
    one of these is near, and that one is no farther from 0 than the longest.
    """
    k = _neighbours(len(crowd.squares) + copies, f)
    lowest = float(crowd.nearest[:, :k].sum(1).min())
    return (math.sqrt(lowest / max(k - copies + 1, 1)) + math.sqrt(float(crowd.squares.max()))) / math.sqrt(crowd.d)


def _picked(crowd: _Crowd, copies: int, f: int, size: float) -> bool:
    """Return whether Krum picks -size * s from `copies` copies of it and the others, without a tie."""
    k = _neighbours(len(crowd.squares) + copies, f)
    distances = size * size * crowd.d + 2 * size * crowd.along + crowd.squares  # [m], to each of the others
    crafted = distances.sort().values[: max(k - copies + 1, 0)].sum()  # the other copies come first, at distance 0
    seen = torch.cat([crowd.nearest, distances[:, None].expand(-1, copies)], 1)
    honest = seen.sort(1).values[:, :k].sum(1)
    return bool(crafted < honest.min())


def _search(crowd: _Crowd, copies: int, f: int, threshold: float) -> tuple[float, bool]:
    """Halve the bound, or what the norm allows, until Krum picks it or it is tiny; return it and whether Krum does."""
    size = min(_bound(crowd, copies, f), crowd.limit)
    while size >= threshold:
        if _picked(crowd, copies, f, size):
            return size, True
        size /= 2
    return size, False


def _search_growing(crowd: _Crowd, attackers: int, threshold: float) -> float:
    """Search with one copy among the others, then two, and so on, until Krum picks one: enough copies always win."""
    size = 0.0
    for copies in range(1, attackers + 2):
        size, found = _search(crowd, copies, copies, threshold)
        if found:
            break
    return size


def _nearby(known: Knowledge, update: Tensor, epsilon: float, attacker: int) -> Tensor:
    """Return the update for the first attacker, for every other one a point of its own within `epsilon` of it."""
    if attacker == 0 or epsilon == 0:
        return update
    draw = rng(known.seed, "fang neighbours", known.round, attacker)
    away = torch.from_numpy(draw.standard_normal(len(update), dtype=np.float32)).to(update)
    return update + rescale(away, epsilon * draw.uniform() * float(torch.linalg.vector_norm(update)))


# --- what both share -------------------------------------------------------------------------------------------------


def _needs(name: str, scope: Scope) -> frozenset[Need]:
    if scope not in get_args(Scope):
        raise ConfigError(f"{name}: {unknown('knowledge', scope, get_args(Scope))}")
    return frozenset({"honest updates"} if scope == "full" else {"own data"})


def _others(known: Knowledge, scope: Scope) -> Tensor:
    """Return the honest updates, or the attackers' own honest ones instead, clipped as the server will clip them."""
    if scope == "full":
        return projected(granted(known.honest, "honest updates"), known.budget)
    return projected(own_updates(known, granted(known.own, "own data").y), known.budget)


def _sign(update: Tensor) -> Tensor:
    """Return s: 1 where the update is not negative, else -1; the paper does not define a sign of 0."""
    return torch.where(update >= 0, 1.0, -1.0)
