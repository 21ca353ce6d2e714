"""Schedules: their closed forms, and rounds, epochs and peaks in a config."""

from __future__ import annotations

import math
import tomllib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsefed import config as configs
from sparsefed.config import lookup as names
from sparsefed.core import toml
from sparsefed.core.errors import ConfigError
from sparsefed.core.federation import SAMPLING
from sparsefed.core.schedule import SCHEDULES, constant, cosine, inverse_sqrt, triangular

BASE: dict[str, Any] = {"data": {"name": "digits", "devices": 300}, "train": {"cohort": 20}}  # 15 rounds an epoch


def parse(table: dict[str, Any] | None = None, *overrides: str) -> configs.Config:
    return configs.parse({**BASE, **(table or {})}, overrides)


def refused(table: dict[str, Any], *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse(table, *overrides)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 400
    return str(caught.value)


def rates(config: configs.Config) -> list[float]:
    schedule = names.schedule(config)
    return [schedule(t) for t in range(1, config.rounds + 1)]


# --- the schedules ---------------------------------------------------------------------------------------------------

RATES, ROUNDS = st.floats(1e-3, 10), st.integers(1, 150)
PEAKS = st.floats(0.01, 0.99)


@settings(deadline=None)
@given(lr=RATES, rounds=ROUNDS, peak_at=PEAKS)
def test_with_a_warm_up_the_rate_climbs_to_the_peak_and_falls_after_it(lr: float, rounds: int, peak_at: float) -> None:
    for build in (triangular, cosine, inverse_sqrt):
        schedule = build(lr, rounds, peak_at)
        found = [schedule(t) for t in range(1, rounds + 1)]
        top = found.index(max(found))
        assert abs(top + 1 - peak_at * rounds) <= 1.5
        assert found[: top + 1] == sorted(found[: top + 1]) and found[top:] == sorted(found[top:], reverse=True)
        assert min(found) > 0 and max(found) <= lr * (1 + 1e-9)


@settings(deadline=None)
@given(lr=RATES, rounds=ROUNDS)
def test_closed_forms_without_a_warm_up(lr: float, rounds: int) -> None:
    for t in range(1, rounds + 1):
        assert cosine(lr, rounds)(t) == pytest.approx(lr * math.cos(math.pi * (t - 0.5) / (2 * rounds)) ** 2)
        assert inverse_sqrt(lr, rounds)(t) == pytest.approx(lr / math.sqrt(t))
        assert constant(lr, rounds)(t) == lr


def test_the_means_are_those_of_the_curves() -> None:
    """Half the peak under a triangle and under half a cosine; a warm-up of w rounds and sqrt(w / t) after it."""
    n = 20_000
    for build in (triangular, cosine):
        assert sum(build(1.0, n, 0.3)(t) for t in range(1, n + 1)) / n == pytest.approx(0.5, abs=1e-3)
    w = 0.25
    area = w / 2 + 2 * (math.sqrt(w) - w)
    assert sum(inverse_sqrt(1.0, n, w)(t) for t in range(1, n + 1)) / n == pytest.approx(area, abs=1e-3)


@pytest.mark.parametrize(("name", "peak_at"), [("triangular", 0.0), ("cosine", 1.0), ("inverse_sqrt", -0.1)])
def test_a_peak_outside_the_run_is_refused(name: str, peak_at: float) -> None:
    with pytest.raises(ConfigError, match="inside the run"):
        SCHEDULES[name](0.1, 10, peak_at)


# --- epochs ----------------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=50)
@given(devices=st.integers(1, 60), share=st.floats(0.01, 1), epochs=st.integers(1, 4))
def test_so_many_epochs_ask_every_device_so_often(devices: int, share: float, epochs: int) -> None:
    cohort = max(1, int(share * devices))
    config = parse({"epochs": epochs, "data": {"name": "digits", "devices": devices}, "train": {"cohort": cohort}})
    asked = [i for t in range(1, config.rounds + 1) for i in SAMPLING["epoch"](devices, cohort, 0, t).tolist()]
    assert sorted(asked) == sorted(list(range(devices)) * epochs)


def test_epochs_follow_the_cohort_and_are_written_down_as_they_were_meant() -> None:
    config = parse({"epochs": 4})
    assert (config.rounds, config.epochs) == (60, 4)
    dumped = configs.dump(config)
    assert (dumped["rounds"], dumped["epochs"]) == (60, 4)
    assert configs.parse(tomllib.loads(toml.dumps(dumped))) == config
    assert parse({"epochs": 4}, "train.cohort=10").rounds == 120
    assert parse({"epochs": 0.5}).rounds == 8
    assert parse({"epochs": 0.001}).rounds == 1
    assert "epochs" not in configs.dump(parse({"rounds": 60}))


def test_rounds_and_epochs_that_contradict_each_other_are_refused() -> None:
    sentence = refused({"epochs": 4, "rounds": 50})
    assert all(words in sentence for words in ("rounds = 50", "epochs = 4", "300 devices", "60 rounds", "give one"))
    assert parse({"epochs": 4, "rounds": 60}).rounds == 60


def test_a_set_of_one_replaces_the_other() -> None:
    assert parse({"epochs": 4}, "rounds=7").epochs is None
    assert parse({"epochs": 4}, "rounds=7").rounds == 7
    assert parse({"rounds": 7}, "epochs=2").rounds == 30
    peaked = {"epochs": 4, "train": {"cohort": 20, "peak_epoch": 1}}
    assert parse(peaked, "train.peak_at=0.5").train.peak_epoch is None
    assert parse({"train": {"cohort": 20, "peak_at": 0.1}}, "train.peak_epoch=1").train.peak_at is None


def test_a_peak_in_epochs_is_the_same_peak() -> None:
    in_epochs = parse({"epochs": 4, "train": {"cohort": 20, "peak_epoch": 1}})
    in_shares = parse({"rounds": 60, "train": {"cohort": 20, "peak_at": 0.25}})
    assert rates(in_epochs) == rates(in_shares)
    assert "peak_at" not in configs.dump(in_epochs)["train"]
    assert configs.parse(configs.dump(in_epochs)) == in_epochs
    in_rounds = parse({"rounds": 60, "train": {"cohort": 20, "peak_epoch": 1}})
    assert rates(in_rounds) == rates(in_shares)


def test_the_paper_peaks_at_epoch_5_of_24() -> None:
    paper = configs.parse({"epochs": 24, "train": {"peak_epoch": 5}})
    assert paper.rounds == 2400
    assert rates(paper) == pytest.approx(rates(configs.parse({})))


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ({"epochs": 0}, ["epochs is 0", "greater than 0"]),
        ({"epochs": "4"}, ["epochs is '4'", "number"]),
        ({"epochs": 2, "train": {"peak_epoch": 2}}, ["peak_epoch is 2", "2 epochs (200 rounds)"]),
        ({"train": {"peak_epoch": -1}}, ["peak_epoch is -1"]),
        ({"train": {"peak_at": 0.5, "peak_epoch": 5}}, ["peak_at = 0.5", "peak_epoch = 5", "give one"]),
        ({"train": {"schedule": "constant", "peak_at": 0.5}}, ["peak_at is 0.5", "constant has no peak", "cosine"]),
        ({"train": {"schedule": "constant", "peak_epoch": 5}}, ["peak_epoch is 5", "constant has no peak"]),
        ({"train": {"schedule": "cosine", "peak_at": 1.0}}, ["peak_at is 1.0", "from 0 to below 1"]),
    ],
)
def test_what_cannot_be_is_one_sentence(table: dict[str, Any], says: list[str]) -> None:
    sentence = refused({"data": {}, "train": {}, **table})
    assert all(words in sentence for words in says)


@pytest.mark.parametrize("table", [{"epochs": 3}, {"rounds": 9, "train": {"peak_epoch": 1}}])
def test_epochs_of_natural_users_need_their_number(table: dict[str, Any]) -> None:
    sentence = refused({"train": {}, **table, "data": {"partition": "by_user"}})
    assert "data.devices" in sentence and "epoch" in sentence
    assert parse({"train": {}, **table, "data": {"partition": "by_user", "devices": 300}}).rounds == 9


def test_every_schedule_writes_down_its_own_peak() -> None:
    peaks = {name: configs.dump(parse({"train": {"schedule": name}}))["train"].get("peak_at") for name in SCHEDULES}
    assert peaks == {"triangular": 5 / 24, "constant": None, "cosine": 0.0, "inverse_sqrt": 0.0}


def test_a_schedule_of_ones_own_is_told_the_peak_if_it_asks(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_schedules.py").write_text(
        "def plain(lr, rounds):\n    return lambda t: lr / rounds\n"
        "def peaked(lr, rounds, peak_at):\n    return lambda t: peak_at\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert rates(parse({"rounds": 4, "train": {"schedule": "own_schedules:plain", "lr": 2.0}})) == [0.5] * 4
    assert rates(parse({"rounds": 2, "train": {"schedule": "own_schedules:peaked", "peak_at": 0.3}})) == [0.3] * 2
    assert "needs peak_at" in refused({"train": {"schedule": "own_schedules:peaked"}})
    assert "has no peak" in refused({"train": {"schedule": "own_schedules:plain", "peak_at": 0.3}})
