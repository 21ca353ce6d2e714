"""Probe runs: the config's defense with other k's, without attackers and with them; each is a run folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from sparsefed import config as configs
from sparsefed import reports as report
from sparsefed import runs
from sparsefed.commands.choose_k.choice import Probe
from sparsefed.config import Config
from sparsefed.core.errors import ConfigError
from sparsefed.core.schedule import peak_share
from sparsefed.kernels.topk import check_k

FOLDER = "probes"
SPAN = 1000  # a grid of k's goes from d / SPAN to d
EVALUATIONS = 10  # of a probe whose rounds are not the config's, at least


def probe_ks(text: str, d: int) -> tuple[int, ...]:
    """The k's that are said, or as many as are asked for, evenly on a logarithmic scale from d / 1000 to d.

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
    """The config with this k, in so many rounds: its schedule is squeezed, and it is evaluated often enough."""
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


def probes(config: Config, folder: Path, named: str, attackers: bool) -> Mapping[Path, Config]:
    """The runs of one k, by their folders: nobody attacks, and, where there are `attackers`, they do.

    `named` is what tells the attacked run apart, for instance 'attacked'.
    """
    place, k = folder / FOLDER, config.defense.params["k"]
    if not attackers:
        return {place / f"k-{k}": config.model_copy(update={"name": f"k-{k}"})}
    calm = configs.twins(config)["unattacked"]
    return {
        place / f"k-{k}": calm.model_copy(update={"name": f"k-{k}"}),
        place / f"k-{k}-{named}": config.model_copy(update={"name": f"k-{k}-{named}"}),
    }


def results(wanted: Mapping[int, Mapping[Path, Config]]) -> tuple[Probe, ...]:
    """What the runs of each k came to, read from their folders."""
    return tuple(_result(k, list(folders)) for k, folders in wanted.items())


def _result(k: int, folders: list[Path]) -> Probe:
    calm, *hostile = report.summary([runs.load_run(folder) for folder in folders])
    under = hostile[0] if hostile else None
    return Probe(
        k=k,
        test=calm.test_accuracy,
        converged=calm.converged,
        attacked_test=under.test_accuracy if under else None,
        attack=under.attack_mean if under else None,
        rounds=calm.rounds,
    )
