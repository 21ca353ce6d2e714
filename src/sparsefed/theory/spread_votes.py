"""Certificates by votes of groups that overlap: Finite Aggregation, and elections with a run-off.

Finite Aggregation (Wang, Levine, Feizi 2022) puts the devices into as many parts as there are groups and every part
into several groups. A compromised device then reaches the groups of its part, each of which learns from more data.
Run-Off Election (Rezaei, Banihashem, Chegini, Feizi 2023) lets the groups vote twice: the two labels with most votes
go to a second round, in which each group votes for the one that its model scores higher.

Both are written with *powers*: how much of a gap between two labels the groups that a part reaches can close at most.
Closing a gap of D takes at least as many parts as the strongest ones need to add up to D; groups that two parts share
are counted twice, which is on the safe side. With disjoint groups, each its own part, the powers are 2, 1 and 0 of
single votes. The larger label loses ties in every round, as in `theory.votes`.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np
import numpy.typing as npt

from sparsefed.core.errors import require
from sparsefed.theory.votes import FREE, IntArray, Labels, sides, tally

BoolArray = npt.NDArray[np.bool_]
Members = npt.NDArray[np.float32]  # [parts, groups], 1 where a part is in a group
Powers = npt.NDArray[np.int8]  # [groups, N]
MOST = 2**24  # numbers of an array at a time


def spread(votes: Labels, reach: BoolArray, classes: int) -> IntArray:
    """Return how many compromised devices each prediction bears if devices are in several groups.

    A part moves each group that it reaches from the winner y to c (2), from another label to c (1), or finds it at c
    already (0). With the m strongest parts adding up to less than the gap, no m devices make c win (Wang et al. 2022,
    Theorem 2). For a part in one group each, this is `votes.disjoint`.

    Args:
        votes: The label that each group votes for [groups, N].
        reach: Whether the devices of a part are in a group [parts, groups].
        classes: The number of labels.
    """
    _check(reach, len(votes))
    members = reach.astype(np.float32)
    seen = sides(tally(votes, classes))
    needed = np.full(votes.shape[1], FREE)
    for c in range(classes):
        powers = _power(votes, seen.winner, c)
        needed = np.minimum(needed, least_parts(members, powers, seen.gaps[:, c]))
    return needed - 1


def least_parts(members: Members | None, powers: Powers, gap: IntArray) -> IntArray:
    """Return how many parts it takes at least to close the gap of each point, from the power over each group [G, N].

    Points whose gap is closed already take none; where all parts together do not close it, one more than there are.
    Without `members` each group is a part of its own.
    """
    if members is None:
        return _least_groups(powers, gap)
    parts, points = len(members), len(gap)
    needed = np.zeros(points, np.int64)
    step = max(1, MOST // parts)
    for low in range(0, points, step):
        piece = slice(low, low + step)
        strength = np.sort(members @ powers[:, piece].astype(np.float32), 0)[::-1]
        short = np.cumsum(strength, 0) < gap[piece]
        needed[piece] = np.where(gap[piece] > 0, short.sum(0) + 1, 0)
    return needed


def _least_groups(powers: Powers, gap: IntArray) -> IntArray:
    """Return how many groups it takes at least, the strongest first."""
    needed, left = np.zeros(len(gap), np.int64), np.maximum(gap, 0)
    for power in (3, 2, 1):
        taken = np.minimum((powers == power).sum(0), -(-left // power))
        needed, left = needed + taken, np.maximum(left - power * taken, 0)
    return np.where(left > 0, len(powers) + 1, needed)


def run_off_winner(ranks: Labels) -> tuple[IntArray, IntArray]:
    """Return the winner of each run-off and the label that it beat in the second round, from ranks [G, N, classes].

    A rank of 0 is the label that a group votes for; of two labels it prefers the one with the smaller rank.
    """
    counts = tally(ranks.argmin(2), ranks.shape[2])
    order = np.argsort(-counts, 1, kind="stable")
    low, high = np.sort(order[:, :2], 1).T
    points = np.arange(len(counts))
    for_low = (ranks[:, points, low] < ranks[:, points, high]).sum(0)
    low_wins = 2 * for_low >= len(ranks)
    return np.where(low_wins, low, high), np.where(low_wins, high, low)


def run_off(ranks: Labels, reach: BoolArray | None = None) -> IntArray:
    """Return how many compromised devices the winner of each run-off bears (Rezaei et al. 2023).

    To change the winner y an attacker must either put two labels a and b above y in the first round, or bring some c
    past the other finalist and let it beat y in the second round. The first takes the parts for each of the gaps and,
    because a group that leaves y closes 3 of both gaps together at most, those for their sum; the second takes the
    parts for either gap: each is the larger of its needs. (Two labels above y include a final without y in it.)
    For disjoint groups the sum of both gaps says the same as the paper's dynamic programme.

    *Departure*: for disjoint groups the second way counts the groups that close both gaps, since those that close one
    may be others than those that close the other: `_both_gaps`, which is never below the paper's bound and is the
    exact worst case for all tables of up to 8 groups and 3 labels.

    Args:
        ranks: The order of the labels in each group's scores [groups, N, classes], 0 for the highest.
        reach: Whether the devices of a part are in a group [parts, groups]; None: disjoint groups, a part each.
    """
    groups, points, classes = ranks.shape
    require(classes > 1, "a run-off needs at least two labels")
    if reach is not None:
        _check(reach, groups)
    members = None if reach is None else reach.astype(np.float32)
    winner, second = run_off_winner(ranks)
    votes = ranks.argmin(2)
    counts = tally(votes, classes)
    needed = np.full(points, FREE)
    for c in range(classes):
        needed = np.minimum(needed, _overtaken(members, ranks, votes, counts, (winner, second), c))
    for pair in combinations(range(classes), 2):
        needed = np.minimum(needed, _left_out(members, votes, counts, winner, pair))
    return needed - 1


def _overtaken(
    members: Members | None, ranks: Labels, votes: Labels, counts: IntArray, final: tuple[IntArray, IntArray], c: int
) -> IntArray:
    """Return the parts that it takes at least for c to reach the second round against the winner, and to beat it."""
    winner, second = final
    points = np.arange(len(winner))
    entering = np.where(second == c, 0, np.maximum(_gap(counts, second, c), 0))
    power = _power(votes, second, c)
    prefers = ranks[:, points, winner] < ranks[:, :, c]
    for_winner = prefers.sum(0)
    beating = np.maximum(for_winner - (len(ranks) - for_winner) + (c > winner), 0)
    if members is None:
        needed = _both_gaps(power, prefers, entering, beating)
    else:
        twice = (2 * prefers).astype(np.int8)
        needed = np.maximum(least_parts(members, power, entering), least_parts(members, twice, beating))
    return np.where(winner == c, FREE, needed)


def _both_gaps(power: Powers, prefers: BoolArray, first: IntArray, second: IntArray) -> IntArray:
    """Return how many groups it takes at least to close a gap of each round, since one group votes in both.

    A group closes 2, 1 or 0 of the first gap and 2 or 0 of the second. Those that close 2 of both are at least as good
    as any, so they come first; what is left of the second gap takes ever so many groups that close 1 of the first,
    and what then is left of the first the strongest of the others.
    """
    double = np.minimum(((power == 2) & prefers).sum(0), -(-np.maximum(first, second) // 2))
    first, second = first - 2 * double, np.maximum(second - 2 * double, 0)
    single = -(-second // 2)
    first = np.maximum(first - single, 0)
    strong = np.minimum(((power == 2) & ~prefers).sum(0), -(-first // 2))
    needed: IntArray = double + single + strong + np.maximum(first - 2 * strong, 0)
    return needed


def _left_out(
    members: Members | None, votes: Labels, counts: IntArray, winner: IntArray, pair: tuple[int, int]
) -> IntArray:
    """Return the parts that it takes at least to put both labels of a pair above the winner in the first round.

    A label that is further above than it need be can give votes to the other, so a gap below 0 lessens their sum.
    """
    a, b = pair
    gaps = [_gap(counts, winner, c) for c in pair]
    both = np.where(votes == winner, 3, ((votes != a) & (votes != b)).astype(np.int8)).astype(np.int8)
    needed = least_parts(members, both, gaps[0] + gaps[1])
    for c, gap in zip(pair, gaps, strict=True):
        needed = np.maximum(needed, least_parts(members, _power(votes, winner, c), gap))
    return np.where((winner == a) | (winner == b), FREE, needed)


def _power(votes: Labels, leader: IntArray, c: int) -> Powers:
    """Return how much of the gap between a leader and c each group can close by voting otherwise [groups, N]."""
    return np.where(votes == c, 0, np.where(votes == leader, 2, 1)).astype(np.int8)


def _gap(counts: IntArray, leader: IntArray, c: int) -> IntArray:
    """Return by how many votes c must gain on a leader to stand above it [N]; not above 0 where it does."""
    gap: IntArray = counts[np.arange(len(counts)), leader] - counts[:, c] + (c > leader)
    return gap


def _check(reach: BoolArray, groups: int) -> None:
    require(
        reach.ndim == 2 and reach.shape[1] == groups and reach.shape[0] > 0,
        f"reach is {list(reach.shape)}, but it says for every part and each of the {groups} groups whether it is there",
    )
