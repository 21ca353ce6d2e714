"""Shared parts of every command's Python function: its subject, and the runs that it needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from sparsefed import config as configs
from sparsefed import runs
from sparsefed.cluster.engine import on_cluster
from sparsefed.config import BuiltSimulation, Config
from sparsefed.config.load import Described
from sparsefed.core.progress import AtWork, OnProgress, Progress
from sparsefed.core.round import RoundReport, ServerState
from sparsefed.results.numbers import percent

Subject = Config | Mapping[str, Any] | Path | str | Described  # a config, its table, its file, or a Simulation
RunAll = Callable[[Mapping[Path, Config]], None]  # runs every config into its folder
OnStart = Callable[[Path, Progress], None]  # called with a run's folder when it starts


def run_all(wanted: Mapping[Path, Config], on_progress: OnProgress | None = None) -> None:
    """Run every config into its folder; finished runs stay."""
    todo = runs.unfinished({folder: configs.dump(config) for folder, config in wanted.items()})
    if not todo and on_progress is not None:
        on_progress(Progress("runs", len(wanted), len(wanted), line="Everything is there already."))
    run_each({folder: wanted[folder] for folder in todo}, todo, on_progress)


def run_each(
    wanted: Mapping[Path, Config],
    create: Mapping[Path, bool],
    on_progress: OnProgress | None = None,
    on_start: OnStart | None = None,
    overwrite: bool = False,
    on: str | None = None,
) -> None:
    """Run configs one after the other, after all have been built, each into a folder to create or to continue.

    With `on` ("ray"), updates are computed on a cluster.
    """
    following = _Following(sum(config.rounds for config in wanted.values()), on_progress, on_start)
    builds = [on_cluster(built, on) for built in configs.build_all([*wanted.values()])]
    for folder, built in zip(wanted, builds, strict=True):
        following.run(folder, built, create[folder], overwrite)


class _Following:
    """Runs that follow one another, and the progress of all of them."""

    def __init__(self, total: int, on_progress: OnProgress | None, on_start: OnStart | None) -> None:
        self._total, self._on_progress, self._on_start = total, on_progress, on_start
        self._parts: list[AtWork] = []  # a run each; the last is at work

    def run(self, folder: Path, built: BuiltSimulation, create: bool, overwrite: bool) -> None:
        def started(state: ServerState) -> None:
            if self._on_start is not None:
                self._on_start(folder, self._reached(state.round))

        config = built.config
        self._parts.append(AtWork(config.name or folder.absolute().name, 0, config.rounds))
        runs.run(
            folder,
            configs.dump(config),
            lambda: built,
            checkpoint_every=config.checkpoint_every,
            on_round=self._advanced,
            on_start=started,
            create=create,
            overwrite=overwrite,
        )

    def _advanced(self, report: RoundReport) -> None:
        if self._on_progress is not None:
            metrics = report.metrics
            kinds = [kind for kind in ("test", "attack") if f"{kind}_accuracy" in metrics]
            self._on_progress(
                self._reached(report.state.round, **{k: percent(metrics[f"{k}_accuracy"]) for k in kinds})
            )

    def _reached(self, round: int, **measured: str) -> Progress:
        part = self._parts[-1]
        self._parts[-1] = replace(part, done=round, fields={**part.fields, **measured})
        values = ", ".join(f"{kind} {value}" for kind, value in measured.items())
        line = f"{part.title}: round {round}/{part.total}, {values}" if values else ""
        return Progress("rounds", sum(each.done for each in self._parts), self._total, tuple(self._parts), line=line)
