"""Probe runs: the config's defense with other k's, without attackers and with them; each is a run folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from sparsefed import config as configs
from sparsefed import runs
from sparsefed.commands.choose_k.choice import ChooseKResult, Probe
from sparsefed.commands.common import RunAll
from sparsefed.config import Config
from sparsefed.core.errors import ConfigError
from sparsefed.core.schedule import peak_share
from sparsefed.kernels.topk import check_k
from sparsefed.results.summary import summary

Tuner = Callable[[Config, int, Path], Config]  # a config and so many trials in a folder: its strongest attack
FOLDER = "probes"
SPAN = 1000  # a grid of k's goes from d / SPAN to d
EVALUATIONS = 10  # of a probe whose rounds are not the config's, at least


def probe_ks(text: str, d: int) -> tuple[int, ...]:
    """Return the k's that a text lists, or the given number of them, log-spaced from d / 1000 to d.

    >>> probe_ks("300,100", 1000), probe_ks("4", 1000)
    ((100, 300), (1, 10, 100, 1000))
    """
    try:
        given = [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        given = []
    if not given:
        raise ConfigError(f"--probe is '{text}'; say how many k's to try, for instance 5, or which: 100,1000,10000")
    if "," in text:
        for k in given:
            check_k(k, d)
        return tuple(sorted(set(given)))
    if given[0] < 2:
        raise ConfigError(f"--probe is {text}; at least 2 k's are needed, or name one with a comma: --probe {text},")
    spaced = np.rint(np.geomspace(max(1, d / SPAN), d, given[0])).astype(int)
    return tuple(sorted(set(spaced.tolist())))


def with_k(config: Config, k: int, rounds: int | None = None) -> Config:
    """Return the config with this k and that many rounds: its schedule compressed, and evaluated often enough."""
    table = configs.dump(config)
    table["defense"] = {**table["defense"], "k": k}
    if rounds is not None and rounds != config.rounds:
        train, every = config.train, min(config.evaluate_every, max(1, rounds // EVALUATIONS))
        table = {key: item for key, item in table.items() if key != "epochs"}
        table |= {"rounds": rounds, "evaluate_every": every}
        if train.peak_epoch is not None:
            peak = peak_share(train.peak_epoch, config.rounds, config.data.devices, train.cohort)
            left = {key: item for key, item in table["train"].items() if key != "peak_epoch"}
            table["train"] = {**left, "peak_at": peak}
    return configs.parse(table)


def probe(result: ChooseKResult, folder: Path, tuner: Tuner, run_all: RunAll) -> ChooseKResult:
    """Run the config with every k of `result.ks`, without attackers and with them; finished runs are not run again.

    Args:
        result: What was measured, with the k's to probe.
        folder: Where the runs and the searches go.
        tuner: How the attack is tuned at a k, if the options request it.
        run_all: How configs are run into their folders.

    Returns:
        The result with its probes.
    """
    trials, rounds = result.options.trials, result.options.probe_rounds
    by_k = {k: with_k(result.config, k, rounds) for k in result.ks}
    named = "attacked" if trials is None else f"tuned-{trials}"
    if trials is not None:
        by_k = {k: tuner(each, trials, folder / "tuned" / f"k-{k}") for k, each in by_k.items()}
    wanted = {k: _runs(each, folder, named) for k, each in by_k.items()}
    run_all({path: each for folders in wanted.values() for path, each in folders.items()})
    return replace(result, probes=tuple(_probe(k, list(folders)) for k, folders in wanted.items()))


def _runs(config: Config, folder: Path, named: str) -> Mapping[Path, Config]:
    """Return the runs of one k by their folders: without attackers and, if there are any, with them (`named`)."""
    k = config.defense.params["k"]
    hostile = {f"k-{k}-{named}": config} if config.is_attacked else {}
    calm = configs.twins(config)["unattacked"] if hostile else config
    every = {f"k-{k}": calm, **hostile}
    return {folder / FOLDER / name: each.model_copy(update={"name": name}) for name, each in every.items()}


def _probe(k: int, folders: list[Path]) -> Probe:
    calm, *hostile = summary([runs.load_run(folder) for folder in folders])
    under = hostile[0] if hostile else None
    return Probe(
        k=k,
        test=calm.test_accuracy,
        converged=calm.converged,
        attacked_test=under.test_accuracy if under else None,
        attack=under.attack_mean if under else None,
        rounds=calm.rounds,
    )
