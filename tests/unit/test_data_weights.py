"""Data weights: updates count by the examples that devices claim, up to a cap that no liar exceeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sparsefed import config
from sparsefed.core.engine import Cohort, LocalStep
from sparsefed.core.errors import ConfigError
from sparsefed.core.rng import integer_seed
from sparsefed.core.round import run_round
from sparsefed.core.types import Context
from sparsefed.defenses import build
from sparsefed.defenses.data_weights import data_weights
from sparsefed.kernels.blocks import RowsBlock
from tests.support import reference as twin

RUN: dict[str, Any] = {
    "rounds": 2,
    "data": {"name": "digits", "partition": "power_law", "devices": 12, "augment": "none"},
    "model": {"name": "softmax"},
    "train": {"cohort": 7, "lr": 0.5, "schedule": "constant", "weights": "examples"},
    "defense": {"name": "undefended", "rho": 0.0},
}


def table(defense: dict[str, Any] | None = None, **train: Any) -> dict[str, Any]:
    chosen = {**RUN["train"], **train}
    return {**RUN, "train": {k: v for k, v in chosen.items() if v is not None}, "defense": defense or RUN["defense"]}


# --- the cap ---------------------------------------------------------------------------------------------------------


@settings(max_examples=100)
@given(
    honest=st.lists(st.integers(1, 1000), min_size=1, max_size=9),
    lies=st.lists(st.sampled_from([1e6, np.inf]), max_size=8),
    cap=st.sampled_from([1.0, 3.0, 10.0]),
)
def test_no_minority_of_liars_weighs_more_than_the_cap(honest: list[int], lies: list[float], cap: float) -> None:
    claims = np.array([*map(float, honest), *lies[: len(honest) - 1]])
    weights = data_weights(claims, cap)
    assert np.isfinite(weights).all() and (weights > 0).all()
    assert weights.max() <= cap * max(honest)
    ordered = sorted(claims.tolist())
    median = ordered[(len(ordered) - 1) // 2]
    assert weights.tolist() == [min(claim, cap * median) for claim in claims.tolist()]


def test_where_most_of_a_cohort_lies_all_weigh_the_same() -> None:
    assert data_weights(np.array([3.0, np.inf, np.inf]), 3.0).tolist() == [1.0, 1.0, 1.0]


# --- whole rounds ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cap", [None, 1.0, 1.5])
def test_a_round_is_the_weighted_mean_of_the_updates(cap: float | None) -> None:
    built = config.build(config.parse(table(weight_cap=cap)))
    federation, state = built.setup.federation, built.begin()
    ids = federation.cohort(1)
    step = LocalStep(1.0, built.setup.weight_decay, integer_seed(built.setup.seed, "layers", 1))
    rows: dict[int, Tensor] = {}
    for block in built.setup.engine(state.theta, Cohort(ids, federation.sizes(ids), federation.gather), step):
        rows |= dict(zip(block.senders.tolist(), block.rows(), strict=True))
    sizes = federation.sizes(ids)
    assert sizes.max() > 1.5 * np.median(sizes)
    weights = np.minimum(sizes, (cap or 3.0) * np.sort(sizes)[3])
    mean = sum(float(w) * rows[i] for w, i in zip(weights, ids.tolist(), strict=True)) / float(weights.sum())
    after = run_round(built.setup, state).state.theta
    torch.testing.assert_close(after, state.theta - 0.5 * torch.as_tensor(mean), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "defense",
    [
        {"name": "geometric_median"},
        {"name": "centered_clipping", "radius": 0.5},
        {"name": "sparsefed", "k": 50},
        {"name": "clipping", "clip_norm": 0.5},
        {"name": "median"},
        {"name": "rlr", "threshold": 2},
        {"name": "local_topk", "k": 50},
        {"name": "fetchsgd", "k": 50, "columns": 1000},
    ],
)
def test_weights_change_the_step_of_every_rule_that_takes_them(defense: dict[str, Any]) -> None:
    plain, weighed = (config.build(config.parse(table(defense, weights=w))) for w in (None, "examples"))
    after = [run_round(built.setup, built.begin()).state.theta for built in (plain, weighed)]
    assert torch.isfinite(after[1]).all() and not torch.allclose(after[0], after[1], rtol=1e-4, atol=1e-6)


def test_attackers_claim_the_cap_and_no_more() -> None:
    """Attackers who send minus their update five times as long: the higher the cap, the less goes the honest way."""
    run = {**table(cohort=12), "attack": {"name": "sign_flip", "boost": 5.0}, "threat": {"ids": [0, 1, 2]}}
    after = []
    for cap in (1.0, 3.0, 100.0):
        built = config.build(config.parse({**run, "train": {**run["train"], "weight_cap": cap}}))
        begin = built.begin()
        report = run_round(built.setup, begin)
        honest = config.build(config.parse(table(cohort=12, weight_cap=cap)))
        way = begin.theta - run_round(honest.setup, honest.begin()).state.theta
        after.append(float((begin.theta - report.state.theta) @ way / (way @ way)))
    assert after[0] > after[1] > after[2]


# --- the rules that have a weighted form -----------------------------------------------------------------------------

numbers = st.floats(-4, 4, width=32)


def messages(rows: Sequence[Sequence[float]], k: int) -> list[list[float]]:
    """What devices without a past send under local top-k."""
    return [[value if i in twin.topk(row, k) else 0.0 for i, value in enumerate(row)] for row in rows]


@settings(max_examples=60, deadline=None)
@given(data=st.data(), n=st.integers(1, 6), split=st.integers(0, 6))
def test_a_weight_of_3_is_the_same_update_three_times(data: st.DataObject, n: int, split: int) -> None:
    rows = [[data.draw(numbers) for _ in range(2)] for _ in range(n)]
    weights = [data.draw(st.integers(1, 9)) for _ in range(n)]
    each = twin.repeated(rows, weights)
    cases: list[tuple[dict[str, Any], list[float] | None]] = [
        ({"name": "undefended"}, twin.mean_of_rows(each)),
        ({"name": "clipping", "clip_norm": 1.5}, twin.mean_of_clipped(each, 1.5)),
        ({"name": "sparsefed", "k": 2, "clip_norm": 1.5}, twin.mean_of_clipped(each, 1.5)),
        ({"name": "median"}, twin.column_median(each)),
        ({"name": "local_topk", "k": 1, "clip_norm": float("inf")}, twin.mean_of_rows(messages(each, 1))),
        (
            {"name": "centered_clipping", "radius": 1.0, "iterations": 3},
            twin.centered_clipping(each, [0.0, 0.0], 1.0, 3),
        ),
    ]
    for start in ("mean", "zero"):
        options: dict[str, Any] = {
            "name": "geometric_median",
            "nu": 0.01,
            "iterations": 5,
            "tolerance": 0.0,
            "start": start,
        }
        cases.append((options, twin.weiszfeld(each, 0.01, 5, start == "mean")))
    for options, expected in cases:
        assert expected is not None
        step = stepped(options, rows, weights, split)
        np.testing.assert_allclose(step, expected, rtol=1e-3, atol=1e-4, err_msg=str(options))


@settings(max_examples=40, deadline=None)
@given(data=st.data(), n=st.integers(2, 5))
def test_votes_count_once_whatever_the_weight(data: st.DataObject, n: int) -> None:
    values = st.integers(-3, 3).filter(bool).map(float)
    rows = [[data.draw(values) for _ in range(3)] for _ in range(n)]
    weights = [data.draw(st.integers(1, 9)) for _ in range(n)]
    agreed = [abs(sum(np.sign(row[j]) for row in rows)) >= 2 for j in range(3)]
    mean = twin.mean_of_rows(twin.repeated(rows, weights))
    expected = [value if yes else -value for value, yes in zip(mean, agreed, strict=True)]
    np.testing.assert_allclose(
        stepped({"name": "rlr", "threshold": 2}, rows, weights, 1), expected, rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("name", ["median", "geometric_median", "undefended"])
def test_an_update_of_weight_0_does_not_count(name: str) -> None:
    rows = [[1.0, 0.0], [9.0, 9.0], [1.0, 2.0]]
    given_weights = stepped({"name": name}, rows, [1, 0, 1], 1)
    np.testing.assert_allclose(given_weights, stepped({"name": name}, [rows[0], rows[2]], [1, 1], 1), atol=1e-6)


def stepped(options: dict[str, Any], rows: list[list[float]], weights: list[int], split: int) -> Any:
    """The first step of a rule, without momentum, on the rows in two blocks."""
    given_rows, given_weights = torch.tensor(rows), torch.tensor(weights, dtype=torch.float64)
    parts = [slice(0, split), slice(split, None)]
    blocks = [
        Weighed(given_rows[part], np.arange(len(rows))[part], given_weights[part]) for part in parts if len(rows[part])
    ]
    defense = build(**{"rho": 0.0, **options})
    return defense.step(defense.init(len(rows[0])), blocks, Context(1, 1.0)).delta.numpy()


@dataclass(frozen=True)
class Weighed(RowsBlock):
    """Rows with weights of their own."""

    weights: Tensor | None = None


@pytest.mark.parametrize(
    ("given_table", "sentence"),
    [
        (table({"name": "krum", "f": 1}), "krum .*has no weighted form.*median.*geometric_median"),
        (table({"name": "clipping", "clip_norm": 1.0, "pre": "nnm", "rho": 0.0}), "without pre-aggregation"),
        (table({"name": "dp_noise", "sigma": 0.1}), "equal weight; leave it out"),
        (table(weights=None, weight_cap=2.0), "there are none; set train.weights"),
        (table(weight_cap=0.5), "weight_cap"),
        (table(weights="devices"), "weights"),
    ],
)
def test_weights_without_a_meaning_are_refused(given_table: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        config.parse(given_table)


def test_keys_at_their_defaults_are_left_out_of_the_dump() -> None:
    assert not {"weights", "weight_cap"} & config.dump(config.parse(table(weights=None)))["train"].keys()
