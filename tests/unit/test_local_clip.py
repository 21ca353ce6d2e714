"""The clip norm of devices that train by themselves: it follows the steps they take and the rate they take them at."""

from __future__ import annotations

import logging
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsefed import config
from sparsefed.config.build import _warn_once
from sparsefed.core.engine import LocalPlan, LocalStep, steps_taken, turns
from sparsefed.core.errors import ConfigError
from sparsefed.core.round import RoundReport
from sparsefed.theory.privacy import Guarantee


def run(rounds: int = 3, defense: dict[str, Any] | None = None, data: Any = None, **train: Any) -> list[RoundReport]:
    built = config.build(
        config.parse(
            {
                "rounds": rounds,
                "evaluate_every": rounds,
                "data": {"name": "digits", "partition": "iid", "devices": 30, **(data or {})},
                "model": {"name": "softmax"},
                "train": {"cohort": 10, "mode": "fedavg", "schedule": "constant", **train},
                "defense": {"name": "clipping", "clip_norm": 1.0, "rho": 0.0, **(defense or {})},
            }
        )
    )
    return list(built.reports(built.begin()))


@settings(deadline=None, max_examples=200)
@given(
    epochs=st.integers(1, 6),
    batch=st.none() | st.integers(1, 60),
    decay=st.sampled_from([0.3, 0.9, 1.0, 1.5]),
    size=st.integers(1, 50),
)
def test_the_steps_are_those_that_a_device_takes(epochs: int, batch: int | None, decay: float, size: int) -> None:
    plan = LocalPlan(epochs, batch, decay)
    rates = [turn.rate for turn in turns(LocalStep(0.25, 0.0, 0, plan), 0, size)]
    assert steps_taken(plan, size) == pytest.approx(sum(rates) / 0.25)


def test_the_authors_clip_norm_grows_with_the_local_steps() -> None:
    reports = run(preset="authors-2021-05", lr=0.1, local_epochs=5, local_batch=10)
    for report in reports:
        assert report.metrics["budget"] == pytest.approx(2.5)  # 25 steps of 0.1
        assert report.metrics["clipped"] < 1  # it was 1: every honest update was cut to 0.1
    one = run(1, preset="authors-2021-05", lr=0.1)[0]
    assert one.metrics["budget"] == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("train", "defense", "budget"),
    [
        ({"preset": "authors-2021-05", "local_epochs": 2, "local_decay": 0.5}, {}, 0.15),
        ({"preset": "authors-2021-05", "local_epochs": 3, "local_lr": 0.05}, {}, 0.15),
        ({"preset": "authors-2021-08", "local_epochs": 3}, {}, 0.1),
        ({"preset": "authors-2021-08", "local_lr": 0.05}, {}, 0.05),
        ({"local_lr": 0.05}, {"clip": "adaptive"}, 0.05),
        ({"local_lr": 0.05, "local_batch": 10}, {"clip": "per_step"}, 0.25),
        ({"local_epochs": 3, "local_lr": 0.05}, {}, 1.0),  # preset paper: a norm that follows nothing
        ({"local_epochs": 3}, {"clip": "per_step", "local_steps": 7}, 0.7),  # as given
    ],
)
def test_the_clip_norm_follows_the_devices_own_rate(
    train: dict[str, Any], defense: dict[str, Any], budget: float
) -> None:
    assert run(1, defense, lr=0.1, **train)[0].metrics["budget"] == pytest.approx(budget)


def test_devices_of_different_sizes_are_allowed_the_steps_of_the_largest() -> None:
    skewed = {"partition": "dirichlet", "alpha": 0.3}
    built = config.build(config.parse({"data": {"name": "digits", "devices": 30, **skewed}, "train": {"cohort": 9}}))
    most = int(np.diff(built.setup.federation.partition.offsets).max())
    metrics = run(1, {"clip": "per_step"}, skewed, lr=0.1, local_batch=10)[0].metrics
    assert metrics["budget"] == pytest.approx(0.1 * math.ceil(most / 10))


@pytest.mark.parametrize("clip", [{"clip": "adaptive"}, {"clip": "per_step"}])
def test_a_local_rate_learns_whatever_the_rate_of_the_rounds_is(clip: dict[str, Any]) -> None:
    local = {"local_lr": 0.05, "local_epochs": 2, "local_batch": 10}
    (*_, last) = run(20, {**clip, "clip_norm": 20.0}, lr=1e-4, **local)
    assert last.metrics["clipped"] < 0.5 and last.metrics["test_accuracy"] > 0.7
    (*_, preset) = run(20, {"clip_norm": 20.0}, lr=1e-4, preset="authors-2021-08", **local)
    assert preset.metrics["clipped"] < 0.5 and preset.metrics["test_accuracy"] > 0.7


def test_the_privacy_of_a_run_is_that_of_the_norm_it_enforces() -> None:
    def guarantee(**train: Any) -> Guarantee:
        table = {"data": {"name": "digits", "partition": "iid", "devices": 30}, "rounds": 2}
        train = {"cohort": 10, "mode": "fedavg", "schedule": "constant", **train}
        noisy = {"name": "dp_noise", "sigma": 1.0, "clip_norm": 1.0, "clip": "per_step"}
        found = config.build(config.parse({**table, "train": train, "defense": noisy})).privacy(0)
        assert found is not None
        return found

    assert guarantee(lr=0.1, local_epochs=5).epsilon == guarantee(lr=0.5).epsilon
    assert guarantee(lr=0.1, local_lr=0.5).epsilon == guarantee(lr=0.5).epsilon


def test_rates_without_an_effect_are_named_once(caplog: pytest.LogCaptureFixture) -> None:
    _warn_once.cache_clear()
    with caplog.at_level(logging.WARNING):
        run(1, lr=0.1, local_lr=0.05)
        run(1, lr=0.1, local_lr=0.05)
    (record,) = [record for record in caplog.records if "no effect" in record.getMessage()]
    for word in ("train.lr and train.schedule have no effect", "train.local_lr = 0.05"):
        assert word in record.getMessage()
    caplog.clear()
    run(1, lr=0.1)
    run(1, schedule="triangular", local_lr=0.05)
    assert not [record for record in caplog.records if "no effect" in record.getMessage()]


def test_steps_without_end_are_one_sentence() -> None:
    with pytest.raises(ConfigError, match="local_steps is inf"):
        run(1, local_epochs=5000, local_decay=2.0)
    with pytest.raises(ConfigError, match=r"defense.local_lr follows from train.local_lr"):
        run(1, {"local_lr": 0.1})
