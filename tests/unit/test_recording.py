"""What a run writes down for its certificate: omega, delta, and the longest honest update."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsefed import config as configs
from sparsefed.core.types import Context
from sparsefed.defenses import build
from sparsefed.defenses.topk_memory import topk_memory
from sparsefed.kernels import as_blocks
from sparsefed.kernels import vector_kernels as kernels
from sparsefed.kernels.error_feedback import Accumulated, accumulate_topk_torch
from tests.support import reference

COUNTED = st.integers(-4, 4).map(float)


def told(seen: list[float], applied: list[float]) -> dict[str, float]:
    """omega and delta from the definition, in fractions."""
    w, rest = [Fraction(x) for x in seen], [Fraction(x) - Fraction(a) for x, a in zip(seen, applied, strict=True)]
    whole, left = sum(map(abs, w)), sum(map(abs, rest))
    square, kept = sum(x**2 for x in w), sum(Fraction(a) ** 2 for a in applied)
    return {"omega": float(left / whole) if whole else 0.0, "delta": float(kept / square) if square else 1.0}


@pytest.mark.parametrize("feedback", ["momentum", "update"])
@settings(deadline=None, max_examples=60)
@given(data=st.data(), d=st.integers(1, 12), rho=st.sampled_from([0.0, 0.5]))
def test_omega_and_delta_are_the_definitions(feedback: Any, data: st.DataObject, d: int, rho: float) -> None:
    k = data.draw(st.integers(1, d) | st.just(d))
    transform, twin = topk_memory(k, rho, feedback), reference.TopkMemory(d, k, rho, feedback)
    state = transform.init(d)
    vectors = data.draw(st.lists(st.lists(COUNTED, min_size=d, max_size=d), min_size=1, max_size=5))
    for t, update in enumerate(vectors):
        flow = transform.step(state, torch.tensor(update), Context(t, 0.1))
        state, applied = flow.state, twin.step(update)
        seen = [w + a for w, a in zip(twin.memory, applied, strict=True)]
        assert flow.stats == pytest.approx(told(seen, applied), rel=1e-14, abs=1e-15)
        assert 0 <= flow.stats["omega"] <= 1 - k / d + 1e-15 and k / d - 1e-15 <= flow.stats["delta"] <= 1


@settings(deadline=None, max_examples=60)
@given(st.lists(st.floats(-(2.0**120), 2.0**120, width=32), min_size=1, max_size=40), st.data())
def test_any_numbers_are_told_to_float64(values: list[float], data: st.DataObject) -> None:
    k = data.draw(st.integers(1, len(values)))
    transform = topk_memory(k, 0.0)
    flow = transform.step(transform.init(len(values)), torch.tensor(values), Context(0, 0.1))
    assert flow.stats == pytest.approx(told(values, flow.vector.tolist()), rel=1e-13, abs=1e-14)


@pytest.mark.parametrize("d", [kernels.TILE - 1, kernels.TILE, 5 * kernels.TILE + 3])
def test_all_tiles_count_once(d: int) -> None:
    transform = topk_memory(1, 0.0)
    stats = transform.step(transform.init(d), torch.ones(d), Context(0, 0.1)).stats
    assert stats == pytest.approx({"omega": 1 - 1 / d, "delta": 1 / d}, rel=1e-13)


def test_nothing_seen_loses_nothing_and_what_is_not_finite_stays_that() -> None:
    transform = topk_memory(2, 0.9)
    assert transform.step(transform.init(5), torch.zeros(5), Context(0, 0.1)).stats == {"omega": 0.0, "delta": 1.0}
    stats = transform.step(transform.init(5), torch.tensor([1.0, math.inf, 2.0, 0.0, 0.0]), Context(0, 0.1)).stats
    assert all(math.isnan(value) for value in stats.values())


def test_every_device_tells_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def plain(*given: Any) -> Accumulated:
        return accumulate_topk_torch(*given)

    found = []
    for _ in range(2):
        transform, state = topk_memory(30, 0.9), {"momentum": torch.linspace(-1, 2, 999), "memory": torch.ones(999)}
        found.append(transform.step(state, torch.linspace(3, -2, 999), Context(0, 0.1)).stats)
        monkeypatch.setattr("sparsefed.defenses.topk_memory.accumulate_topk", plain)
    assert found[0] == pytest.approx(found[1], rel=1e-12)


def test_a_round_without_usable_updates_tells_nothing() -> None:
    defense = build("sparsefed", k=2)
    step = defense.step(defense.init(5), as_blocks(torch.full((3, 5), math.nan), 2), Context(1, 0.5))
    assert not {"omega", "delta"} & step.stats.keys()


def config(**defense: Any) -> configs.Config:
    tables = {
        "rounds": 6,
        "evaluate_every": 6,
        "data": {"name": "digits", "partition": "iid", "devices": 60},
        "model": {"name": "softmax"},
        "train": {"cohort": 10, "lr": 0.1},
        "defense": {"name": "sparsefed", "k": 50} | defense,
        "threat": {"count": 12},
        "attack": {"name": "sign_flip"},
    }
    return configs.parse(tables)


@pytest.mark.parametrize("clip_norm", [0.5, 1000.0])
def test_a_run_says_whether_clipping_cut_an_honest_device(clip_norm: float) -> None:
    built = configs.build(config(clip_norm=clip_norm))
    for report in built.reports(built.begin()):
        row = report.metrics
        assert row["honest_longest"] >= row["honest_norm"] > 0
        assert (row["honest_longest"] > row["budget"]) == (clip_norm < 1)
        assert {"lr", "budget", "cohort", "attackers", "dropped"} <= row.keys()
        assert 0 < row["omega"] < 1 - 50 / 650 and 50 / 650 < row["delta"] < 1


def test_rules_without_top_k_of_all_that_was_seen_leave_it_out() -> None:
    rules: dict[str, dict[str, int]] = {"clipping": {}, "fetchsgd": {"k": 5, "columns": 40}, "local_topk": {"k": 5}}
    for name, params in rules.items():
        defense = build(name, **params)
        step = defense.step(defense.init(50), as_blocks(torch.ones(3, 50), 2), Context(1, 0.5))
        assert not {"omega", "delta"} & step.stats.keys()
