"""Experiment trackers: destinations for the metrics of a simulation beside its own history.

A tracker is any object with these three methods; `on_round` callbacks are simpler and often enough. Those here wrap
TensorBoard, MLflow and Weights & Biases, which are extras (`pip install 'sparsefed[tensorboard]'`). None is used unless
requested, and each writes to the local disk unless given a server.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from sparsefed.core.errors import ConfigError


class Tracker(Protocol):
    """A receiver of a simulation's config at the start, its metrics every round, and its status at the end."""

    def start(self, config: Mapping[str, Any]) -> None: ...
    def log(self, round: int, metrics: Mapping[str, float]) -> None: ...
    def finish(self, status: str) -> None: ...  # "finished" or "interrupted"


class TensorBoard:
    """A tracker that writes event files for `tensorboard --logdir FOLDER`."""

    def __init__(self, folder: str | Path = "runs/tensorboard") -> None:
        """Prepare to write to `folder`; raise ConfigError if TensorBoard is not installed."""
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
    """A tracker that writes an MLflow run, to a local SQLite file unless `uri` names a server."""

    def __init__(self, experiment: str = "sparsefed", uri: str = "sqlite:///mlflow.db") -> None:
        """Prepare a run of `experiment`; raise ConfigError if MLflow is not installed."""
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
    """A tracker that writes a Weights & Biases run: offline, to be sent with `wandb sync`, unless `online`."""

    def __init__(self, project: str = "sparsefed", folder: str | Path = "runs", online: bool = False) -> None:
        """Prepare a run of `project`; raise ConfigError if wandb is not installed."""
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
    """Return a config's table with dotted keys and values as text.

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
