"""Probe runs: the config's defense with other k's, without attackers and with them; each is a run folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from sparsefed import config as configs
from sparsefed import runs
from sparsefed.commands.choose_k.choice import ChooseKResult, Probe
from sparsefed.commands.choose_k.options import with_k
from sparsefed.commands.common import run_all
from sparsefed.commands.tune import tune
from sparsefed.config import Config
from sparsefed.core.progress import OnProgress, Progress
from sparsefed.results.summary import summary

FOLDER = "probes"


def probe(result: ChooseKResult, folder: Path, on_progress: OnProgress) -> ChooseKResult:
    """Run the config with every k of `result.ks`, without attackers and with them; finished runs are not run again."""
    trials = result.options.trials
    by_k = {k: with_k(result.config, k, result.options.probe_rounds) for k in result.ks}
    if trials is not None:
        by_k = {k: _tuned(each, k, trials, folder / "tuned" / f"k-{k}", on_progress) for k, each in by_k.items()}
    attacked = "attacked" if trials is None else f"tuned-{trials}"
    wanted = {k: _runs(each, folder / FOLDER, f"k-{k}", attacked) for k, each in by_k.items()}
    run_all({path: each for folders in wanted.values() for path, each in folders.items()}, on_progress)
    return replace(result, probes=tuple(_probe(k, list(folders)) for k, folders in wanted.items()))


def _tuned(config: Config, k: int, trials: int, folder: Path, on_progress: OnProgress) -> Config:
    """Return the config with the strongest attack that so many trials find."""
    title = f"tuning the attack at k = {k}"

    def show(progress: Progress) -> None:
        on_progress(replace(progress, title=title))

    show(Progress(title, 0, trials, line=title))
    return tune(config, trials=trials, folder=folder, on_progress=show).tuned


def _runs(config: Config, folder: Path, name: str, attacked: str) -> Mapping[Path, Config]:
    """Return the runs of one k by their folders: without attackers and, if the config has any, with them."""
    configs_by_name = {name: config}
    if config.is_attacked:
        configs_by_name = {name: configs.twins(config)["unattacked"], f"{name}-{attacked}": config}
    return {folder / each: config.model_copy(update={"name": each}) for each, config in configs_by_name.items()}


def _probe(k: int, folders: list[Path]) -> Probe:
    unattacked, *attacked = summary([runs.load_run(folder) for folder in folders])
    return Probe(
        k=k,
        test=unattacked.test_accuracy,
        converged=unattacked.converged,
        attacked_test=attacked[0].test_accuracy if attacked else None,
        attack=attacked[0].attack_mean if attacked else None,
        rounds=unattacked.rounds,
    )
