"""The convergence theorem compared with a run: one softmax layer trained with SparseFed, its full gradient measured.

What the theorem needs, and which of it is known or measured, is in `theory.convergence`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sparsefed import config as configs
from sparsefed import runs
from sparsefed.commands.common import Subject
from sparsefed.config import Config
from sparsefed.core.errors import ConfigError
from sparsefed.core.progress import OnProgress, Progress
from sparsefed.core.round import Metrics, run_round
from sparsefed.kernels.topk import coordinates
from sparsefed.reports.result import Report
from sparsefed.results.numbers import log_ticks
from sparsefed.theory.convergence import Descent, MeasuredDescent, objective
from sparsefed.theory.lipschitz import is_softmax_task


@dataclass(frozen=True)
class Convergence(MeasuredDescent, Report, described_by="sparsefed.commands.certify.convergence_document"):
    """The measured convergence of a run, and the theorem's bounds on it."""

    config: Config

    def records(self) -> list[dict[str, Any]]:
        """Return a flat record for each number of rounds, in the form that `pandas.DataFrame` takes."""
        rows = zip(*self.curves.values(), strict=True)
        return [{"rounds": done, **dict(zip(self.curves, row, strict=True))} for done, row in enumerate(rows, 1)]


def measure_convergence(
    subject: Subject, *, overrides: Sequence[str] = (), on_progress: OnProgress | None = None
) -> Convergence:
    """Train a config and compare its gradients with the convergence theorem.

    The objective is measured before round 1, every `evaluate_every` rounds, and more often in the beginning.

    Args:
        subject: A config, its table, the path of its file, or a run folder, whose config is trained once more.
        overrides: `key=value` on top of a file or a run's config.
        on_progress: Called after every round.

    Raises:
        ConfigError: The theorem does not cover this config, or it cannot be measured exactly.
    """
    config = _config(subject, overrides)
    check(config)
    experiment = configs.build(config, computing="cpu")
    if not is_softmax_task(experiment.task):
        raise ConfigError(
            "the convergence theorem is measured for classes and cross-entropy, but this task has "
            f"{experiment.task.target.title}; choose data with classes"
        )
    loss = objective(experiment.setup, experiment.task.prepare)
    state, deltas = experiment.begin(), []
    points = [loss.at(state.theta, 0)]
    often = {*log_ticks(1, config.rounds), config.rounds}
    while state.round < config.rounds:
        report = run_round(experiment.setup, state)
        state = report.state
        deltas.append(_contraction(report.metrics))
        if state.round % config.evaluate_every == 0 or state.round in often:
            points.append(loss.at(state.theta, state.round))
        if on_progress is not None:
            on_progress(Progress("training", state.round, config.rounds))
    proven = Descent(config.train.lr, loss.smoothness, loss.moment, points[0].loss)
    measured = replace(proven, moment=max(point.moment for point in points))
    d = len(experiment.theta)
    k = coordinates(config.defense.params["k"], d)
    return Convergence(d, k, proven, measured, tuple(deltas), tuple(points), config)


def _config(subject: Subject, overrides: Sequence[str]) -> Config:
    if not isinstance(subject, str | Path):
        return configs.as_config(subject)
    if not Path(subject).is_dir():
        return configs.read(Path(subject), overrides)
    return configs.of_run(runs.load_config(Path(subject)), Path(subject), overrides)


def check(config: Config) -> None:
    """Raise an error if the theorem does not cover a config, or it cannot be measured exactly."""
    train, defense, params = config.train, config.defense.name, config.defense.params
    wanted: dict[str, tuple[Any, Any]] = {
        "model.name": (config.model.name, "softmax"),
        "defense.name": (defense, "sparsefed"),
        "defense.rho": (params.get("rho", 0.9), 0.0),
        "defense.pre": (list(params.get("pre", [])), []),
        "train.mode": (train.mode, "uncompressed"),
        "train.schedule": (train.schedule, "constant"),
        "train.sampling": (train.sampling, "uniform"),
        "train.weight_decay": (train.weight_decay, 0.0),
        "train.dtype": (train.dtype, "float32"),
        "train.loss": (train.loss, None),
        "train.weights": (train.weights, None),
        "train.worker_momentum": (train.worker_momentum, None),
        "data.augment": (config.data.augment, "none"),
    }
    for key, (given, needed) in wanted.items():
        if given != needed:
            raise ConfigError(f"{key} is {given!r}, but the convergence theorem is for {needed!r}; set it to that")
    if config.attack is not None:
        raise ConfigError("the convergence theorem is for a run without attackers; set attack = false")


def _contraction(metrics: Metrics) -> float:
    """Return a round's delta, if all updates went into the mean as they were."""
    if metrics["clipped"] or metrics["dropped"]:
        raise ConfigError(
            f"round {metrics['round']} clipped or dropped updates, of which the convergence theorem does not speak; "
            "set defense.clip_norm = inf, and a lower train.lr if updates are not finite"
        )
    return float(metrics["delta"])
