"""Rounding, and secure aggregation in simulations: equal bits with and without proofs, and forgers without effect."""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsefed import config as configs
from sparsefed.core.errors import ConfigError
from sparsefed.core.round import RoundReport, simulate
from sparsefed.core.types import Context
from sparsefed.defenses import build
from sparsefed.kernels import RowsBlock
from sparsefed.secure.circuit import largest_bound
from sparsefed.secure.field import FIELD32, FIELD64, Field
from sparsefed.secure.pine import squared_norm
from sparsefed.secure.rounding import Rounding, choose_rounding, restored, rounded
from sparsefed.secure.simulated import Protection, SummedBlock, secured

SMALL: dict[str, Any] = {
    "rounds": 4,
    "evaluate_every": 4,
    "seed": 1,
    "data": {"name": "digits", "partition": "iid", "devices": 100},
    "model": {"name": "softmax"},
    "train": {"cohort": 12, "lr": 0.5},
    "defense": {"name": "sparsefed", "k": 100, "clip_norm": 1.0},
}
FORGERS = {"attack": {"name": "forge", "auxiliary": 20}, "threat": {"per_round": 3}}


def last(**changes: Any) -> RoundReport:
    built = configs.build(configs.parse({**SMALL, **changes}))
    *_, report = simulate(built.setup, built.begin(), built.rounds, built.evaluate, 4)
    return report


# --- rounding ---


def naive_rounded(update: list[float], rounding: Rounding) -> list[int]:
    """Clip, round to the nearest, halves to the even one; shrink until the norm of the integers is at most B."""
    norm = math.sqrt(math.fsum(u * u for u in update))
    scale = 1 / rounding.unit * (rounding.limit / norm if norm > rounding.limit else 1.0)
    while True:
        values = [round(u * scale) for u in update]
        square = sum(v * v for v in values)
        if square <= rounding.bound**2:
            return values
        scale *= min(rounding.bound / math.sqrt(square), 1 - 2.0**-40)


@pytest.mark.parametrize("field", [FIELD32, FIELD64], ids=lambda field: field.name)
@given(
    update=st.lists(st.floats(-100, 100, width=32), min_size=1, max_size=30),
    limit=st.floats(0.01, 1000),
    clients=st.integers(1, 10**6),
)
def test_rounded_updates(field: Field, update: list[float], limit: float, clients: int) -> None:
    rounding = choose_rounding(len(update), limit, clients, field)
    values = rounded(np.array(update, np.float32), rounding)
    assert squared_norm(values) <= rounding.bound**2
    assert clients * rounding.bound < field.modulus / 2
    twin = naive_rounded(update, rounding)
    assert max(abs(int(a) - b) for a, b in zip(values, twin, strict=True)) <= 1  # norms are summed in another order
    norm = float(np.linalg.norm(np.array(update, np.float64)))
    clipped = np.array(update) * min(1.0, limit / norm if norm else 1.0)
    moved = float(np.linalg.norm(restored(values, rounding) - clipped))
    assert moved <= rounding.unit * (2 * math.sqrt(len(update)) + 1) + 1e-9 * limit


def test_a_norm_at_the_bound_exactly_is_kept() -> None:
    rounding = choose_rounding(2, 5.0, 10, FIELD32, bits=12)
    assert rounded(np.array([3.0, 4.0]), rounding).tolist() == [2457, 3276]  # 3/5 and 4/5 of 4095
    finest = choose_rounding(2, 5.0, 10, FIELD32)
    assert finest.bound == largest_bound(FIELD32) and finest.unit * finest.bound == pytest.approx(5.0)
    assert rounded(np.array([3.0, 4.0]), finest).tolist() == [2656, 3541]  # [2656, 3542] is longer than 4427


def test_the_choice_depends_on_precision_and_on_what_fits() -> None:
    assert choose_rounding(95_366, 5.0, 100).field is FIELD32
    assert choose_rounding(95_366, 5.0, 100).error == pytest.approx(0.0201, rel=0.01)
    assert choose_rounding(6_567_488, 5.0, 100).field is FIELD64
    assert choose_rounding(6_567_488, 5.0, 100, FIELD32).error == pytest.approx(0.167, rel=0.01)
    assert choose_rounding(100, 5.0, 10**6).bound == (FIELD32.modulus // 2 - 1) // 10**6  # the sum must fit too
    assert choose_rounding(100, 5.0, 10, bits=20).field is FIELD64
    assert choose_rounding(100, 5.0, 10, bits=8).bound == 255
    assert choose_rounding(100, 0.0, 10).unit == 0
    for wrong in ((100, math.inf, 10), (100, -1.0, 10), (0, 1.0, 10), (100, 1.0, 0)):
        with pytest.raises(ConfigError, match=r"norm bound|must be at least 1"):
            choose_rounding(*wrong)
    with pytest.raises(ConfigError, match=r"room for 1 to 13\s*bits"):
        choose_rounding(100, 5.0, 10, FIELD32, 14)
    with pytest.raises(ConfigError, match="nothing of an update"):
        choose_rounding(10**6, 5.0, 10, FIELD32, 6)
    with pytest.raises(ConfigError, match="does not fit into field32"):
        choose_rounding(10, 1.0, 2**32, FIELD32)
    with pytest.raises(ConfigError, match="not finite"):
        rounded(np.array([1.0, np.nan]), choose_rounding(2, 1.0, 1))


# --- a rule that sees the sum alone ---


@given(n=st.integers(1, 8), d=st.integers(1, 20), limit=st.floats(0.1, 10), seed=st.integers(0, 1000))
@settings(max_examples=40)
def test_the_sum_is_the_exact_sum_of_the_rounded_updates(n: int, d: int, limit: float, seed: int) -> None:
    rows = torch.from_numpy(np.random.default_rng(seed).normal(size=(n, d)).astype(np.float32))
    plain = build("clipping", clip_norm=limit, rho=0.0)
    defense = secured(plain, Protection(field=FIELD32), n)
    step = defense.step(defense.init(d), [RowsBlock(rows[:1]), RowsBlock(rows[1:])][: 1 + (n > 1)], Context(1, 1.0))
    rounding = choose_rounding(d, limit, n, FIELD32)
    total = np.sum([rounded(row, rounding).astype(np.int64) for row in rows.numpy()], axis=0)
    expected = torch.from_numpy(restored(total, rounding).astype(np.float32)) / n
    assert torch.equal(step.delta, expected)
    near = plain.step(plain.init(d), [RowsBlock(rows)], Context(1, 1.0)).delta
    assert float((step.delta - near).norm()) <= step.stats["rounding_error"] * limit + 1e-5 * limit


def test_updates_that_are_not_finite_are_dropped() -> None:
    rows = torch.tensor([[1.0, 0.0], [torch.nan, 0.0], [0.0, 1.0]])
    defense = secured(build("clipping", clip_norm=1.0, rho=0.0), Protection(), 3)
    step = defense.step(defense.init(2), [RowsBlock(rows)], Context(1, 1.0))
    assert step.stats["dropped"] == 1 and torch.allclose(step.delta, torch.tensor([0.5, 0.5]), atol=1e-3)
    nothing = defense.step(defense.init(2), [RowsBlock(rows[1:2])], Context(1, 1.0))
    assert nothing.stats["skipped"] == 1 and not nothing.delta.any()


def test_a_rule_that_asks_for_more_than_the_sum_is_refused() -> None:
    block = SummedBlock(torch.ones(3), 2, 3)
    assert torch.equal(block.weighted_sum(torch.tensor([2.0, 2.0, 0.0])), 2 * torch.ones(3))
    with pytest.raises(ConfigError, match="sum alone"):
        block.rows()
    with pytest.raises(ConfigError, match="same weight"):
        block.weighted_sum(torch.tensor([1.0, 2.0, 0.0]))


# --- simulations ---


@pytest.mark.parametrize("field", ["field32", "field64"])
@pytest.mark.parametrize("attacked", [False, True])
def test_with_and_without_proofs_the_bits_are_the_same(field: str, attacked: bool) -> None:
    pytest.importorskip("cryptography", reason="secure aggregation is the extra sparsefed[secure]")
    threat = FORGERS if attacked else {}
    fast = last(secure={"field": field}, **threat)
    verified = last(secure={"field": field, "verify": True}, **threat)
    assert torch.equal(fast.state.theta, verified.state.theta)
    assert fast.metrics["rejected"] == verified.metrics["rejected"] == (3 if attacked else 0)
    assert fast.metrics["upload_bytes"] > 4 * 650


def test_forgers_have_no_effect_where_norms_are_proven_and_own_the_model_where_they_are_not() -> None:
    honest = last(secure={}).metrics["test_accuracy"]
    proven, summed = last(secure={}, **FORGERS), last(secure={"scheme": "secagg"}, **FORGERS)
    assert proven.metrics["rejected"] == 3 and summed.metrics["rejected"] == 0
    assert proven.metrics["test_accuracy"] > honest - 0.1
    assert summed.metrics["test_accuracy"] < 0.3 < proven.metrics["test_accuracy"]
    assert summed.metrics["attack_accuracy"] > proven.metrics["attack_accuracy"] + 0.2


def test_a_round_of_forgers_alone_does_not_happen() -> None:
    threat = {"attack": FORGERS["attack"], "threat": {"per_round": 12}}
    report = last(secure={}, rounds=1, evaluate_every=1, **threat)
    assert report.metrics["skipped"] == 1 and report.metrics["rejected"] == 12


def test_attackers_with_valid_reports_count_like_anybody() -> None:
    pgd = {"attack": {"name": "pgd", "auxiliary": 20}, "threat": {"per_round": 3}}
    plain, secure = last(**pgd), last(secure={}, **pgd)
    assert secure.metrics["rejected"] == 0
    assert secure.metrics["attack_accuracy"] == pytest.approx(plain.metrics["attack_accuracy"], abs=0.11)
    assert secure.metrics["test_accuracy"] == pytest.approx(plain.metrics["test_accuracy"], abs=0.03)


@pytest.mark.parametrize(
    "defense", [{"name": "fetchsgd", "k": 50, "columns": 500}, {"name": "dp_noise", "sigma": 0.001}]
)
def test_other_rules_that_need_sums(defense: dict[str, Any]) -> None:
    plain, secure = last(defense=defense), last(defense=defense, secure={})
    assert secure.metrics["test_accuracy"] == pytest.approx(plain.metrics["test_accuracy"], abs=0.05)


def test_rules_that_need_rows_and_quantile_clipping_are_refused() -> None:
    for defense, words in (
        ({"name": "krum", "f": 2}, ("krum needs single updates", "mean, undefended, clipping, sparsefed, fetchsgd")),
        ({"name": "clipping", "clip": "quantile"}, ("quantile", "fixed")),
        ({"name": "clipping", "pre": [{"name": "nnm", "f": 1}]}, ("defense.pre",)),
        ({"name": "mean"}, ("set defense.clip_norm",)),
        ({"name": "clipping", "clip_norm": math.inf}, ("set defense.clip_norm",)),
    ):
        with pytest.raises(ConfigError) as error:
            configs.parse({**SMALL, "defense": defense, "secure": {}})
        assert all(word in str(error.value) for word in words)
    with pytest.raises(ConfigError, match="proves nothing"):
        configs.parse({**SMALL, "secure": {"scheme": "secagg", "verify": True}})
    with pytest.raises(ConfigError, match=r"scheme.*pine"):
        configs.parse({**SMALL, "secure": {"scheme": "masks"}})
    with pytest.raises(ConfigError, match="does not fit"):
        configs.build(configs.parse({**SMALL, "secure": {"bits": 40}}))


def test_a_config_without_it_is_written_as_before() -> None:
    assert "secure" not in configs.dump(configs.parse(SMALL))
    table = configs.dump(configs.parse({**SMALL, "secure": {"verify": True}}))
    assert table["secure"] == {"scheme": "pine", "verify": True, "field": "auto"}
    assert configs.parse(table).secure == configs.parse({**SMALL, "secure": {"verify": True}}).secure
    plain = configs.twins(configs.parse({**SMALL, "secure": {}, **FORGERS}))["plain"]
    assert plain.secure is None and configs.build(plain).setup.defense.budget({}, Context(1, 1.0)) == math.inf


def test_without_the_package_a_sentence_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "cryptography"]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives", None)
    configs.build(configs.parse({**SMALL, "secure": {}}))  # rounding alone needs nothing
    with pytest.raises(ConfigError, match=r"sparsefed\[secure\]"):
        configs.build(configs.parse({**SMALL, "secure": {"verify": True}}))
