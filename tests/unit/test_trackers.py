"""Trackers: the real ones where they are installed, and the sentence where they are not."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from sparsefed import trackers
from sparsefed.core.errors import ConfigError
from sparsefed.simulation import Simulation
from tests.unit.test_simulation import DIGITS

EXTRAS = {"tensorboard": trackers.TensorBoard, "mlflow": trackers.MLflow, "wandb": trackers.WandB}


def options(extra: str, folder: Path) -> dict[str, Any]:
    return {"uri": f"sqlite:///{folder}/mlflow.db"} if extra == "mlflow" else {"folder": folder}


@pytest.mark.parametrize("extra", EXTRAS)
@pytest.mark.filterwarnings("default")
def test_a_tracker_writes_to_the_local_disk(extra: str, tmp_path: Path) -> None:
    if importlib.util.find_spec(extra) is None:
        with pytest.raises(ConfigError, match=rf"pip install 'sparsefed\[{extra}\]'"):
            EXTRAS[extra](**options(extra, tmp_path))
        return
    Simulation.from_config(DIGITS, trackers=[EXTRAS[extra](**options(extra, tmp_path))]).run()
    assert any(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file())


def test_a_simulation_that_stops_early_is_interrupted() -> None:
    class Ends:
        """A tracker that remembers how it ended."""

        status = ""

        def start(self, config: Any) -> None: ...
        def log(self, round: int, metrics: Any) -> None: ...
        def finish(self, status: str) -> None:
            self.status = status

    ends = Ends()
    rounds = iter(Simulation.from_config(DIGITS, trackers=[ends]))
    next(rounds)
    rounds.close()  # type: ignore[attr-defined]
    assert ends.status == "interrupted"
