"""Shared parts of every command's Python function: its subject, its folder, its progress, and the runs it needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from sparsefed import config as configs
from sparsefed import runs
from sparsefed.config import BuiltSimulation, Config
from sparsefed.config.load import Described
from sparsefed.core.progress import OnProgress, Progress
from sparsefed.core.round import RoundReport

Subject = Config | Mapping[str, Any] | Path | str | Described  # a config, its table, its file, or a Simulation


RunAll = Callable[[Mapping[Path, Config]], None]  # runs every config into its folder


def run_all(wanted: Mapping[Path, Config], on_progress: OnProgress | None = None) -> None:
    """Run every config into its folder, one after the other, after all have been built; finished runs stay."""
    todo = runs.unfinished({folder: configs.dump(config) for folder, config in wanted.items()})
    for folder, experiment in zip(todo, configs.build_all([wanted[folder] for folder in todo]), strict=True):
        name, rounds = experiment.config.name, experiment.config.rounds

        def on_round(report: RoundReport, name: str = name, rounds: int = rounds) -> None:
            if on_progress is not None:
                on_progress(Progress(name, report.state.round, rounds))

        run_into(folder, experiment, on_round)


def run_into(
    folder: Path, experiment: BuiltSimulation, on_round: Callable[[RoundReport], None], rounds: int | None = None
) -> None:
    """Run a built config into a folder, resuming what is there; with `rounds`, only that far, not evaluated."""
    part = experiment if rounds is None else replace(experiment, rounds=rounds, evaluate=lambda theta: {})  # noqa: ARG005
    runs.run(
        folder,
        configs.dump(experiment.config),
        lambda: part,
        checkpoint_every=experiment.config.checkpoint_every,
        on_round=on_round,
        create=not runs.is_run(folder),
    )
