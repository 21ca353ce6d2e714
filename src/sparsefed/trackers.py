"""BuiltSimulation trackers: where the numbers of a simulation go beside its own history.

A tracker is any object with these three methods; `on_round` callbacks are simpler and often enough. The ones here wrap
TensorBoard, MLflow and Weights & Biases, which are extras (`pip install 'sparsefed[tensorboard]'`). None is used unless
it is asked for, and each writes to the local disk unless it is given a server.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from sparsefed.core.errors import ConfigError


class Tracker(Protocol):
    """Receives what a simulation does: its config once, the metrics of every round, and how it ended."""

    def start(self, config: Mapping[str, Any]) -> None: ...
    def log(self, round: int, metrics: Mapping[str, float]) -> None: ...
    def finish(self, status: str) -> None: ...  # "finished" or "interrupted"


class TensorBoard:
    """Writes event files that `tensorboard --logdir FOLDER` shows."""

    def __init__(self, folder: str | Path = "runs/tensorboard") -> None:
        """Prepare to write into `folder`; raises ConfigError where TensorBoard is not installed."""
        self._writer = _imported("torch.utils.tensorboard", "tensorboard").SummaryWriter(str(folder))

    def start(self, config: Mapping[str, Any]) -> None:
        self._writer.add_text("config", "\n".join(f"    {key} = {value}" for key, value in flat(config).items()))

    def log(self, round: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, round)

    def finish(self, status: str) -> None:
        self._writer.add_text("status", status)
        self._writer.close()


class MLflow:
    """Writes an MLflow run, into a local SQLite file unless `uri` names a server."""

    def __init__(self, experiment: str = "sparsefed", uri: str = "sqlite:///mlflow.db") -> None:
        """Prepare a run of `experiment`; raises ConfigError where MLflow is not installed."""
        self._mlflow = _imported("mlflow", "mlflow")
        self._mlflow.set_tracking_uri(uri)
        self._mlflow.set_experiment(experiment)

    def start(self, config: Mapping[str, Any]) -> None:
        self._mlflow.start_run()
        self._mlflow.log_params(flat(config))

    def log(self, round: int, metrics: Mapping[str, float]) -> None:
        self._mlflow.log_metrics(dict(metrics), step=round)

    def finish(self, status: str) -> None:
        self._mlflow.end_run("FINISHED" if status == "finished" else "KILLED")


class WandB:
    """Writes a Weights & Biases run; offline, to be sent with `wandb sync`, unless `online`."""

    def __init__(self, project: str = "sparsefed", folder: str | Path = "runs", online: bool = False) -> None:
        """Prepare a run of `project`; raises ConfigError where wandb is not installed."""
        self._wandb, self._run = _imported("wandb", "wandb"), None
        self._options = {"project": project, "dir": str(folder), "mode": "online" if online else "offline"}

    def start(self, config: Mapping[str, Any]) -> None:
        self._run = self._wandb.init(config=flat(config), **self._options)

    def log(self, round: int, metrics: Mapping[str, float]) -> None:
        self._wandb.log(dict(metrics), step=round)

    def finish(self, status: str) -> None:
        self._wandb.finish(exit_code=0 if status == "finished" else 1)


def scalars(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Return the metrics that are single numbers, as floats.

    >>> scalars({"round": 3, "budget": None, "class_accuracy": [0.5], "converged": True})
    {'round': 3.0}
    """
    return {
        name: float(value)
        for name, value in metrics.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }


def flat(table: Mapping[str, Any], above: str = "") -> dict[str, str]:
    """Return a config's table with dotted keys and readable values.

    >>> flat({"seed": 0, "train": {"lr": 0.1}})
    {'seed': '0', 'train.lr': '0.1'}
    """
    pairs: dict[str, str] = {}
    for key, value in table.items():
        pairs |= flat(value, f"{above}{key}.") if isinstance(value, Mapping) else {f"{above}{key}": str(value)}
    return pairs


def _imported(module: str, extra: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        raise ConfigError(f"this tracker needs {extra}; install it with pip install 'sparsefed[{extra}]'") from None
