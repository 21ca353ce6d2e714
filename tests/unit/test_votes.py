"""Votes: the certificates against the worst case, found by trying everything an attacker could do."""

from __future__ import annotations

from itertools import combinations, permutations, product

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from sparsefed.core.errors import ConfigError
from sparsefed.theory.ensembles import clean_share
from sparsefed.theory.spread_votes import run_off, run_off_winner, spread
from sparsefed.theory.subset_votes import clopper_pearson, random_subsets
from sparsefed.theory.votes import FREE, certified_curve, disjoint, priced, sides, tally

Array = npt.NDArray[np.int64]
CLASSES = 3
ORDERS = np.array(list(permutations(range(CLASSES))))  # [6, place] -> label


def tables(groups: int) -> Array:
    """Every vote that so many groups can cast [groups, tables]."""
    return np.array(list(product(range(CLASSES), repeat=groups))).T


def cheapest_change(votes: Array, winners: Array, prices: Array) -> Array:
    """The least cost of turning each table into one with another winner, over all tables there are, minus 1."""
    cost = np.zeros((votes.shape[1], votes.shape[1]))
    for label in range(CLASSES):
        here = (votes == label).astype(float)
        cost += here.T @ ((1 - here) * prices[:, None])
    cost[winners[:, None] == winners[None, :]] = np.inf
    cheapest: Array = cost.min(1).astype(np.int64) - 1
    return cheapest


@pytest.mark.parametrize("groups", range(1, 8))
def test_the_vote_bears_exactly_the_worst_case(groups: int) -> None:
    votes = tables(groups)
    winners = sides(tally(votes, CLASSES)).winner
    assert (disjoint(votes, CLASSES) == cheapest_change(votes, winners, np.ones(groups, np.int64))).all()


def test_bought_votes_bear_exactly_the_worst_case_for_all_small_prices() -> None:
    votes = tables(5)
    winners = sides(tally(votes, CLASSES)).winner
    for prices in product((1, 2, 4), repeat=5):
        each = np.array(prices)
        certified = priced(votes, np.broadcast_to(each[:, None], votes.shape), CLASSES, devices=100)
        assert (certified == cheapest_change(votes, winners, each)).all(), prices


@pytest.mark.parametrize("seed", range(6))
def test_bought_votes_of_seven_groups_bear_exactly_the_worst_case(seed: int) -> None:
    votes, prices = tables(7), np.random.default_rng(seed).permutation(np.arange(1, 8))
    winners = sides(tally(votes, CLASSES)).winner
    certified = priced(votes, np.broadcast_to(prices[:, None], votes.shape), CLASSES, devices=100)
    assert (certified == cheapest_change(votes, winners, prices)).all()


def test_votes_that_cannot_be_bought_are_borne_up_to_all_devices() -> None:
    votes = np.zeros((3, 1), np.int64)
    assert priced(votes, np.full((3, 1), FREE), CLASSES, devices=12).tolist() == [12]
    mixed = np.array([[FREE], [2], [3]])
    assert priced(votes, mixed, CLASSES, devices=12).tolist() == [4]  # the vote that stays loses to two that move


@given(st.integers(1, 40), st.integers(2, 6), st.integers(0, 2**32))
@settings(max_examples=60)
def test_with_prices_of_one_bought_votes_are_plain_ones(groups: int, classes: int, seed: int) -> None:
    votes = np.random.default_rng(seed).integers(classes, size=(groups, 30))
    plain = disjoint(votes, classes)
    assert (priced(votes, np.ones_like(votes), classes, devices=groups) == plain).all()
    assert (spread(votes, np.eye(groups, dtype=bool), classes) == plain).all()
    dearer = np.random.default_rng(seed + 1).integers(1, 5, size=votes.shape)
    assert (priced(votes, dearer, classes, devices=5 * groups) >= plain).all()


# --- groups that overlap ---------------------------------------------------------------------------------------------


def reached(groups: int, degree: int, seed: int) -> npt.NDArray[np.bool_]:
    """As many parts as groups, each in `degree` groups."""
    draw = np.random.default_rng(seed)
    reach = np.zeros((groups, groups), bool)
    for part in reach:
        part[draw.choice(groups, degree, replace=False)] = True
    return reach


@pytest.mark.parametrize(("groups", "degree"), [(4, 1), (5, 2), (6, 2), (6, 3)])
def test_spread_devices_never_do_more_than_is_certified(groups: int, degree: int) -> None:
    votes, reach = tables(groups), reached(groups, degree, seed=groups + degree)
    certified, winners = spread(votes, reach, CLASSES), sides(tally(votes, CLASSES)).winner
    exact = np.full(votes.shape[1], groups)
    for number in range(groups, 0, -1):
        for parts in combinations(range(groups), number):
            hit: npt.NDArray[np.bool_] = np.any(reach[list(parts)], axis=0, keepdims=True)[0]
            for c in range(CLASSES):
                changed = sides(tally(np.where(hit[:, None], c, votes), CLASSES)).winner
                exact = np.where(changed != winners, number - 1, exact)
    assert (certified <= exact).all()
    assert degree > 1 or (certified == exact).all()
    assert (certified == exact).mean() > 0.75  # not vacuous: groups that two parts share are all that is lost


# --- the run-off -----------------------------------------------------------------------------------------------------


def compositions(total: int, kinds: int) -> Array:
    """Every way to write a total as so many numbers from 0, in order."""
    if kinds == 1:
        return np.array([[total]])
    return np.concatenate(
        [np.insert(compositions(total - first, kinds - 1), 0, first, axis=1) for first in range(total + 1)]
    )


def ranks_of(counts: Array) -> Array:
    """Tables with so many groups of each order, as ranks [groups, tables, labels]."""
    order = np.array([np.repeat(np.arange(len(ORDERS)), row) for row in counts]).T
    ranks: Array = np.argsort(ORDERS, 1)[order]
    return ranks


@pytest.mark.parametrize("groups", range(1, 9))
def test_the_run_off_bears_exactly_the_worst_case(groups: int) -> None:
    counts = compositions(groups, len(ORDERS))
    ranks = ranks_of(counts)
    winner, _ = run_off_winner(ranks)
    changes = np.abs(counts[:, None] - counts[None]).sum(2) // 2
    changes[winner[:, None] == winner[None]] = groups + 1
    exact, certified = changes.min(1) - 1, run_off(ranks)
    assert (certified == exact).all()


def test_the_run_off_is_two_rounds_as_by_hand() -> None:
    scores = [[0, 1, 2]] * 3 + [[1, 2, 0]] * 2 + [[2, 1, 0]] * 2  # first choices 3, 2, 2: 0 and 1 go on
    ranks = np.argsort(np.array(scores), 1)[:, None, :]
    winner, beaten = run_off_winner(ranks)
    assert (int(winner[0]), int(beaten[0])) == (1, 0)  # 4 of 7 prefer 1 to 0, though 0 has most first choices


@given(st.integers(2, 9), st.integers(2, 5), st.integers(1, 3), st.integers(0, 2**32))
@settings(max_examples=60)
def test_attacks_on_the_run_off_of_spread_groups_fail(groups: int, classes: int, degree: int, seed: int) -> None:
    draw = np.random.default_rng(seed)
    ranks = np.argsort(np.argsort(draw.normal(size=(groups, 40, classes)), 2), 2)
    reach = reached(groups, min(degree, groups), seed)
    certified, (winner, _) = run_off(ranks, reach), run_off_winner(ranks)
    for _ in range(40):
        m = int(draw.integers(1, groups + 1))
        hit: npt.NDArray[np.bool_] = np.any(reach[draw.choice(groups, m, replace=False)], axis=0, keepdims=True)[0]
        favoured = np.argsort(np.argsort(draw.normal(size=(1, 40, classes)), 2), 2)
        after, _ = run_off_winner(np.where(hit[:, None, None], favoured, ranks))
        assert not ((after != winner) & (certified >= m)).any()


def test_a_label_that_is_far_above_can_give_votes_to_another() -> None:
    """0 wins against 2, which has two votes more than it: one of them given to 3 leaves 0 out of the final."""
    scores = [[1, 0, 2, 4, 3], [0, 3, 2, 1, 4], [3, 1, 0, 2, 4], [3, 4, 0, 2, 1], [1, 2, 3, 0, 4], [2, 4, 0, 3, 1]]
    ranks, reach = np.array(scores)[:, None, :], np.zeros((6, 6), bool)
    reach[[0, 3, 5], 2] = reach[[1, 2], 3] = reach[4, 5] = True  # only groups that vote for 2 are reached
    moved = ranks.copy()
    moved[2, 0] = [1, 4, 3, 0, 2]
    assert (int(run_off_winner(ranks)[0][0]), int(run_off_winner(moved)[0][0])) == (0, 2)
    assert int(run_off(ranks, reach)[0]) == 0


# --- random subsets --------------------------------------------------------------------------------------------------


@given(st.integers(1, 50), st.data())
@settings(max_examples=50)
def test_clopper_and_pearson_invert_the_binomial_tails(trials: int, data: st.DataObject) -> None:
    count, error = data.draw(st.integers(0, trials)), data.draw(st.sampled_from([0.05, 1e-4, 1e-8]))
    lower, upper = (float(side) for side in clopper_pearson(np.array(count), trials, error))
    assert lower == 0 if count == 0 else binom.sf(count - 1, trials, lower) == pytest.approx(error, rel=1e-6)
    assert upper == 1 if count == trials else binom.cdf(count, trials, upper) == pytest.approx(error, rel=1e-6)


def test_random_subsets_are_the_theorem_point_by_point() -> None:
    draw = np.random.default_rng(0)
    votes = np.where(draw.random((400, 25)) < np.linspace(0, 1, 25), 1, draw.integers(4, size=(400, 25)))
    certified = random_subsets(votes, 4, devices=60, subset=3, confidence=0.99)
    for point, bears in enumerate(certified):
        counts = tally(votes, 4)[point]
        lower, upper = clopper_pearson(counts, 400, 0.01 / 100)
        y = int(counts.argmax())
        rival = min(max(upper[c] for c in range(4) if c != y), 1 - lower[y])
        holds = [lower[y] - rival > 2 * (1 - clean_share(60, m, 3)) for m in range(58)]
        assert bears == sum(holds) - 1
    assert certified.min() == -1 and certified.max() > 5


def test_certificates_of_random_subsets_are_right_with_the_stated_confidence() -> None:
    """Small enough to train every subset: the vote over all, with the attackers' subsets turned, is known exactly."""
    devices, subset, wrong = 8, 2, 0
    every = list(combinations(range(devices), subset))
    draw = np.random.default_rng(1)
    for _ in range(150):
        all_votes = draw.choice(3, p=[0.8, 0.15, 0.05], size=(len(every), 1))
        sample = all_votes[draw.integers(len(every), size=300)]
        bears = int(random_subsets(sample, 3, devices=devices, subset=subset, confidence=0.9)[0])
        label, broken = int(tally(sample, 3).argmax()), False
        for attackers in combinations(range(devices), max(bears, 0)):
            hit = np.array([not set(attackers).isdisjoint(group) for group in every])
            turned = [np.where(hit[:, None], c, all_votes) for c in range(3)]
            broken |= any(int(tally(each, 3).argmax()) != label for each in turned)
        wrong += broken and bears >= 0
    assert wrong <= 150 * 0.1


def test_impossible_votes_are_refused() -> None:
    with pytest.raises(ConfigError, match="labels 0 to 2"):
        tally(np.array([[3]]), 3)
    with pytest.raises(ConfigError, match="at least one device"):
        priced(np.zeros((2, 1), int), np.zeros((2, 1), int), 3, devices=2)
    with pytest.raises(ConfigError, match="2 groups"):
        spread(np.zeros((2, 1), int), np.ones((2, 3), bool), 3)
    with pytest.raises(ConfigError, match="a probability"):
        random_subsets(np.zeros((2, 1), int), 3, devices=4, subset=1, confidence=1.0)


def test_the_curve_counts_points_that_are_right_and_bear_as_many() -> None:
    right, bears = np.array([True, True, False, True]), np.array([-1, 3, 9, 1])
    assert certified_curve(bears, right, np.arange(5)).tolist() == [0.75, 0.5, 0.25, 0.25, 0.0]
