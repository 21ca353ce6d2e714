"""Data weights: updates count by the examples that devices claim, up to a cap that no liar exceeds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sparsefed import config
from sparsefed.core.data_weights import data_weights
from sparsefed.core.engine import Cohort, LocalStep
from sparsefed.core.errors import ConfigError
from sparsefed.core.rng import integer_seed
from sparsefed.core.round import run_round
from sparsefed.core.types import Context
from sparsefed.defenses import build
from sparsefed.kernels.blocks import RowsBlock
from tests.support.reference import weighted_centered_clipping, weighted_weiszfeld

RUN: dict[str, Any] = {
    "rounds": 2,
    "data": {"name": "digits", "partition": "dirichlet", "alpha": 0.3, "devices": 12, "augment": "none"},
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
    rows = {}
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
    ],
)
def test_weights_change_the_step_of_every_rule_that_takes_them(defense: dict[str, Any]) -> None:
    plain, weighed = (config.build(config.parse(table(defense, weights=w))) for w in (None, "examples"))
    after = [run_round(built.setup, built.begin()).state.theta for built in (plain, weighed)]
    assert torch.isfinite(after[1]).all() and not torch.allclose(*after, rtol=1e-4, atol=1e-6)


def test_attackers_claim_the_cap_and_no_more() -> None:
    """Two attackers who send minus the honest update: the higher the cap, the less the model moves its way."""
    attacked = {**table(), "attack": {"name": "sign_flip", "boost": 5.0}, "threat": {"ids": [0, 1, 2]}}
    moved = []
    for cap in (1.0, 3.0, 100.0):
        attacked["train"] = {**attacked["train"], "weight_cap": cap, "cohort": 12}
        built = config.build(config.parse(attacked))
        report = run_round(built.setup, built.begin())
        moved.append(report.metrics["attack_share"])
        assert np.isfinite(report.metrics["update_norm"])
    assert moved[0] < moved[1] < moved[2]


# --- the rules that have a weighted form -----------------------------------------------------------------------------

numbers = st.floats(-4, 4, width=32)


@settings(max_examples=30, deadline=None)
@given(data=st.data(), n=st.integers(1, 6))
def test_weighted_forms_against_their_definitions(data: st.DataObject, n: int) -> None:
    rows = [[data.draw(numbers) for _ in range(2)] for _ in range(n)]
    alphas = [float(data.draw(st.integers(1, 9))) for _ in range(n)]
    block = Weighed(torch.tensor(rows), weights=torch.tensor(alphas, dtype=torch.float64))
    for options, expected in (
        (
            {"name": "geometric_median", "nu": 0.01, "iterations": 5, "tolerance": 0.0},
            weighted_weiszfeld(rows, alphas, 0.01, 5),
        ),
        (
            {"name": "centered_clipping", "radius": 1.0, "iterations": 3},
            weighted_centered_clipping(rows, alphas, 1.0, 3),
        ),
    ):
        defense = build(**options, rho=0.0)
        delta = defense.step(defense.init(2), [block], Context(1, 1.0)).delta
        np.testing.assert_allclose(delta.numpy(), expected, rtol=1e-3, atol=1e-4)


@dataclass(frozen=True)
class Weighed(RowsBlock):
    """Rows with weights of their own."""

    weights: Tensor | None = None


@pytest.mark.parametrize(
    ("given_table", "sentence"),
    [
        (table({"name": "krum", "f": 1}), "krum .*weighs updates by its own rule.*geometric_median"),
        (table({"name": "clipping", "clip_norm": 1.0, "pre": "nnm", "rho": 0.0}), "without pre-aggregation"),
        (table({"name": "dp_noise", "sigma": 0.1}), "equal weight; leave train.weights out"),
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
