"""Certificates by votes: how many compromised devices, sending anything, cannot change the label that groups vote for.

Devices are put into groups before training, every group trains a model of its own, and a test point gets the label with
most votes; of labels with equally many votes the one with the smaller number wins. A device can touch the votes of its
own groups alone, so a label that leads by enough votes survives whatever few devices send: for any model, without any
constant of it, exactly. Groups are disjoint here (FLCert-D: Cao, Zhang, Jia, Gong 2022; for data instead of devices
DPA: Levine, Feizi 2021); `theory.spread_votes` has groups that overlap, `theory.subset_votes` random ones.

Beyond these papers, a group may bear some attackers of its own: `priced`, in which every vote has a price.

Votes are an array [groups, points] of labels. What comes out is, for each point, the largest number of compromised
devices with which the label is certain to stay.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sparsefed.core.errors import require

IntArray = npt.NDArray[np.int64]
Labels = npt.NDArray[np.integer]

FREE = np.iinfo(np.int64).max // 4096  # the price of a vote that cannot be bought; some thousands of them still add up


class Sides(NamedTuple):
    """A vote as an attacker sees it: what must be closed for each label to win, and what a bought vote closes."""

    winner: IntArray  # [N], the label that wins
    gaps: IntArray  # [N, classes], by how much the winner leads, at least 1; FREE for the winner itself


def tally(votes: Labels, classes: int) -> IntArray:
    """Return how many votes each label has: [groups, N] -> [N, classes].

    >>> tally(np.array([[0, 1], [0, 2], [2, 2]]), classes=3)
    array([[2, 0, 1],
           [0, 1, 2]])
    """
    require(votes.ndim == 2 and votes.size > 0, "a vote needs at least one group and one test point")
    require(votes.min() >= 0 and votes.max() < classes, f"a vote is for one of the labels 0 to {classes - 1}")
    counts = np.zeros((votes.shape[1], classes), np.int64)
    points = np.arange(votes.shape[1])
    for group in votes:
        counts[points, group] += 1
    return counts


def sides(counts: IntArray) -> Sides:
    """Return the winner of each vote and the gap that an attacker must close for each other label to win.

    Label c wins over y with more votes than y, or as many if c < y: the gap is v_y - v_c, and 1 more where c > y.
    """
    winner = counts.argmax(1)
    labels, points = np.arange(counts.shape[1]), np.arange(len(counts))
    gaps = counts[points, winner][:, None] - counts + (labels > winner[:, None])
    gaps[points, winner] = FREE
    return Sides(winner, gaps)


def disjoint(votes: Labels, classes: int) -> IntArray:
    """Return how many compromised devices each prediction bears if groups are disjoint (FLCert-D), exactly.

    A device changes the vote of its own group and of no other. Moving one vote from the winner y to c closes 2 of the
    gap between them, moving one from elsewhere 1, and nothing closes more. So closing a gap of D takes ceil(D / 2)
    devices, and that many are enough: y has more than D / 2 votes to lose. The label bears one device less than the
    smallest gap takes. An attacker can do exactly this by one device in each group, since a group with a compromised
    device may vote as it likes: the certificate is the exact worst case.

    >>> disjoint(np.array([[1], [1], [1], [1], [0], [2]]), classes=3)
    array([1])
    """
    bears: IntArray = (sides(tally(votes, classes)).gaps.min(1) - 1) // 2
    return bears


def priced(votes: Labels, prices: Labels, classes: int, devices: int) -> IntArray:
    """Return how many compromised devices each prediction bears if changing a vote costs several devices, exactly.

    Group g keeps its vote on point x with fewer than prices[g, x] compromised devices among its own; with that many it
    may vote for anything. An attacker who wants c to win instead of y needs a set of groups to buy: those that voted y
    close 2 of the gap D when they move to c, those that voted neither close 1, those that voted c nothing. The cheapest
    set is found exactly:

        min over a of  (the a cheapest of the first kind)  +  (the max(0, D - 2a) cheapest of the second).

    Proof: let any successful set have a groups of the first kind and b of the second, 2a + b >= D. Exchanging its
    members for the cheapest of their kind, and leaving out what is beyond D - 2a, closes as much and costs no more. So
    one of the sets above costs no more than any set that succeeds; each of them succeeds; and moving a bought vote
    anywhere else closes less. The label changes if and only if some c wins over y; devices beyond a group's price,
    or in groups that are not bought, change nothing. With every price 1 this is `disjoint`.

    Args:
        votes: The label that each group votes for [groups, N].
        prices: The compromised devices that it takes to change that vote [groups, N], at least 1; FREE: none can.
        classes: The number of labels.
        devices: The number of devices: no prediction bears more than all of them.
    """
    require(votes.shape == prices.shape, f"{votes.shape} votes have {prices.shape} prices; each vote has one")
    require(bool((prices >= 1).all()), "the price of a vote is at least one device")
    seen = sides(tally(votes, classes))
    cheapest = np.full(votes.shape[1], FREE)
    first = _cheapest_sums(np.where(votes == seen.winner, prices, FREE))
    for c in range(classes):
        neither = (votes != seen.winner) & (votes != c)
        second = _cheapest_sums(np.where(neither, prices, FREE))
        cheapest = np.minimum(cheapest, _least_cost(first, second, seen.gaps[:, c]))
    bears: IntArray = np.minimum(cheapest - 1, devices)
    return bears


def _cheapest_sums(prices: IntArray) -> IntArray:
    """Return what the 0, 1, 2, ... cheapest of these groups cost together [groups + 1, N], at most FREE."""
    sums = np.zeros((len(prices) + 1, prices.shape[1]), np.int64)
    ordered = np.sort(prices, 0)
    for number, each in enumerate(ordered, 1):
        sums[number] = np.minimum(sums[number - 1] + each, FREE)
    return sums


def _least_cost(first: IntArray, second: IntArray, gap: IntArray) -> IntArray:
    """Return the least cost of closing the gap with a of the first kind and the rest of the second [N]."""
    groups, points = len(first) - 1, np.arange(len(gap))
    least = np.full(len(gap), FREE)
    for a in range(groups + 1):
        rest = np.maximum(gap - 2 * a, 0)
        cost = first[a] + np.where(rest <= groups, second[np.minimum(rest, groups), points], FREE)
        least = np.minimum(least, cost)
    return least


def certified_curve(bears: Labels, right: npt.NDArray[np.bool_], numbers: Labels) -> npt.NDArray[np.float64]:
    """Return the share of points that are right and bear m compromised devices, for each m.

    >>> certified_curve(np.array([0, 2, 5]), np.array([True, True, False]), np.array([0, 1, 3]))
    array([0.66666667, 0.33333333, 0.        ])
    """
    kept = np.bincount(np.maximum(bears[right], 0), minlength=1)
    at_least = np.cumsum(kept[::-1])[::-1] / len(right)
    shares: npt.NDArray[np.float64] = np.where(
        numbers < len(at_least), at_least[np.minimum(numbers, len(at_least) - 1)], 0.0
    )
    return shares
