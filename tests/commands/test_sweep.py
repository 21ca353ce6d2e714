"""`sparsefed.sweep`: lists and grids of configs, files, tables and simulations; each run once, records of all."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import sparsefed
from sparsefed import config as configs
from sparsefed.core.errors import ConfigError, RunError
from sparsefed.core.progress import Progress
from sparsefed.data.own import from_arrays
from sparsefed.simulation import Simulation
from sparsefed.sweeps.pool import LocalPool, Pool
from sparsefed.sweeps.sweep import SweepResult, sweep

TABLE: dict[str, Any] = {
    "name": "small",
    "rounds": 3,
    "evaluate_every": 3,
    "data": {"name": "sparsefed.commands.reproduce.tiny:IMAGES", "devices": 20},
    "model": {"name": "softmax"},
    "train": {"cohort": 5, "lr": 0.1},
    "defense": {"name": "sparsefed", "k": 50, "clip_norm": 1.0},
}


def no_workers(*_: object) -> None:
    raise AssertionError("a run was started")


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, SweepResult]:
    """A grid, run by worker processes."""
    folder = tmp_path_factory.mktemp("sweep")
    return folder, sweep(TABLE, {"defense.k": [5, 50], "seed": range(2)}, folder=folder, jobs=1)


@pytest.mark.process
def test_a_grid_gives_a_record_a_run_in_order(swept: tuple[Path, SweepResult]) -> None:
    records = swept[1].records()
    assert [(each["defense.k"], each["seed"]) for each in records] == [(5, 0), (5, 1), (50, 0), (50, 1)]
    assert all(each["status"] == "done" and 0 <= each["test_accuracy"] <= 1 for each in records)
    assert json.loads(swept[1].to_json()) == records and swept[1].problem is None
    assert len(list((swept[0] / "cells").iterdir())) == 4


@pytest.mark.process
def test_what_is_finished_is_not_run_again(swept: tuple[Path, SweepResult], monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in (Pool, LocalPool):
        monkeypatch.setattr(kind, "start", no_workers)
    again = sweep(configs.parse(TABLE), {"defense.k": [5, 50]}, seeds=2, folder=swept[0])
    assert again.rows == swept[1].rows
    with pytest.raises(AssertionError, match="was started"):
        sweep(TABLE, {"defense.k": [6]}, folder=swept[0])


@pytest.mark.process
def test_charts_pages_and_frames(swept: tuple[Path, SweepResult]) -> None:
    result = swept[1]
    drawn = result.chart(x="defense.k").to_dict()
    assert [layer["mark"]["type"] for layer in drawn["layer"]] == ["area", "line"]
    points = list(result._points("defense.k", "test_accuracy", None))
    own = [each["test_accuracy"] for each in result.records()[:2]]
    assert points[0]["least"] == pytest.approx(min(own), rel=1e-3) and points[0]["most"] == pytest.approx(
        max(own), rel=1e-3
    )
    assert points[0]["mean"] == pytest.approx(sum(own) / 2, rel=1e-3)
    page = result.to_html()
    assert "defense.k" in page and page.count("<tr>") == 5
    with pytest.raises(ConfigError, match=r"defense\.k"):
        result.chart(x="defense.j")
    with pytest.raises(ConfigError, match="did you mean 'test_accuracy'"):
        result.chart(y="test_acuracy")
    with pytest.raises(ConfigError, match="not measured"):
        result.chart(y="oif")


def test_live_objects_are_run_in_this_process_and_failures_do_not_stop_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Pool, "start", no_workers)
    x, y = torch.rand(60, 1, 4, 4), torch.arange(60) % 3
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 3))
    given: dict[str, Any] = {"data": (x, y, x, y), "devices": 12, "rounds": 2, "cohort": 4}
    good = Simulation(model, partition="iid", **given)
    seen: list[Progress] = []
    config = good.config
    bad = config.model_copy(update={"defense": config.defense.model_copy(update={"name": "sparsefed", "k": 10**6})})
    result = sweep({"good": good, "bad": bad}, folder=tmp_path, on_progress=seen.append)
    assert [each["status"] for each in result.records()] == ["done", "failed"]
    assert result.problem is not None and "1000000" in str(result.problem)
    assert (seen[-1].done, seen[-1].fields, seen[-1].total) == (2, {"failed": "1"}, 2)
    with pytest.raises(RunError, match="cells failed"):
        sweep([bad])


def test_what_cannot_be_swept_is_one_sentence(tmp_path: Path) -> None:
    calls: tuple[Callable[[], object], ...] = (
        lambda: sweep([]),
        lambda: sweep(TABLE, {"defense.k": []}),
        lambda: sweep(TABLE, {"seed": [0]}, seeds=2),
        lambda: sweep(TABLE, seeds=[1, 1]),
        lambda: sweep(TABLE, {"defense.kk": [1]}),
        lambda: sweep([tmp_path / "nowhere.toml"]),
        lambda: sweep([3]),
    )
    for call in calls:
        with pytest.raises(ConfigError):
            call()


def test_the_package_offers_it() -> None:
    assert sparsefed.sweep is sweep and callable(sparsefed.audit) and callable(sparsefed.reproduce)


def test_a_sweep_names_the_score_of_its_task() -> None:
    x = torch.linspace(-1, 1, 60).unsqueeze(1).numpy()
    data = from_arrays(x, 3 * x[:, 0], target="values")
    simulation = Simulation(torch.nn.Linear(1, 1), data, rounds=2, cohort=5, devices=10, evaluate_every=2)
    result = sweep(simulation, {"train.lr": [0.01, 0.1]})
    assert result.score == "explained variance" and "Explained variance" in result.to_markdown()
    assert "Explained variance by train.lr" in json.dumps(result.chart().to_dict())
    other = dataclasses.replace(result, scored_by="test accuracy")
    assert "Test accuracy" in other.to_markdown()
