"""From simulation to deployment: a config as a complete app of Flower, which `flwr run` takes as it is.

The app runs the config's federation number for number: each node plays one device of it, with that device's examples,
as a rehearsal of the whole. A node's own data takes the place of these in one line of the app, which its README shows.
A config that a deployment cannot run (attackers, ten thousand devices, objects of this process) is refused.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparsefed import config as configs
from sparsefed import runs, trust
from sparsefed.commands.common import Subject
from sparsefed.config import Config
from sparsefed.config.schema import ThreatTable
from sparsefed.core.errors import ConfigError, RunError, printable, quoted
from sparsefed.core.federation import SAMPLING
from sparsefed.defenses import as_rule
from sparsefed.flower.app_files import PACKAGE, write_app

MOST_NODES = 1000  # beyond this, a number of devices is a simulated population
README = """\
# {title}

A Flower app that `sparsefed deploy` wrote: the rule `{rule}`, {rounds:,} rounds, {cohort} of {devices} nodes a round.

    flower-superlink ...                      # on the server, where sparsefed[flower] is installed
    flower-supernode ...                      # on every node, where it is installed too
    flwr run {folder}
    sparsefed watch RUN                       # the run folder is `folder` in pyproject.toml

Each node plays one device of the config's data set, so it needs that data set (`sparsefed data fetch {data}`) until it
trains on data of its own. For that, put into {package}/client.py

    from sparsefed.flower import client
    app = client(build_model, load_examples)  # a function that builds the module; context -> (x, y)

and set what it needs to know of the config: epochs, batch, weight_decay. A run that was ended goes on with the same
`flwr run`; the server's settings are those of `sparsefed.flower.Strategy`, in {package}/server.py.
"""


@dataclass(frozen=True)
class DeployedApp:
    """A Flower app that was written for a config."""

    folder: Path
    config: Config
    files: tuple[Path, ...]
    notes: tuple[str, ...] = ()  # what must be true of the nodes


def deploy(
    config: Subject,
    folder: str | Path,
    *,
    nodes: int | None = None,
    least_nodes: int | None = None,
    without_attack: bool = False,
    run_folder: str | Path | None = None,
    overwrite: bool = False,
    **settings: Any,
) -> DeployedApp:
    """Write a complete Flower app for a config: server, client, config and project file.

    Args:
        config: a config, its table, its file, or a Simulation.
        folder: where the app goes; created if missing.
        nodes: how many nodes there are; the config's data is dealt to so many devices, and a round asks no more.
        least_nodes: connected nodes with which a round begins; by default all, as in the simulation. With fewer, a
            round goes on without nodes that are down.
        without_attack: leave out the attackers that the config simulates.
        run_folder: where the server keeps the run; by default runs/NAME of the current folder.
        overwrite: replace an app that is there.
        settings: further arguments of `sparsefed.flower.Strategy`: deadline, quorum, spare, patience.

    Returns:
        The app: its folder, files and the config that it runs.

    Raises:
        ConfigError: A deployment cannot run the config; the message says what to change.
        RunError: Something is in the way.
    """
    target = Path(folder)
    settings |= {} if least_nodes is None else {"nodes": least_nodes}
    for name, value in settings.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
            raise ConfigError(f"{name} is {quoted(value)}, but must be a number from 0 on")
    if not overwrite and target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise RunError(f"{target} is there already; choose another folder with --out, or replace it with --overwrite")
    chosen = deployable(configs.as_config(config), nodes, without_attack)
    table = configs.dump(chosen)
    where = Path(run_folder or Path("runs") / (chosen.name or "deployment")).absolute()
    name = re.sub(r"[^a-z0-9]+", "-", chosen.name.lower()).strip("-") or "sparsefed-app"
    files = write_app(target, table, run_folder=json.dumps(str(where))[1:-1], settings=settings, name=name)
    files += runs.write_all({target / "README.md": _readme(chosen, target)})
    return DeployedApp(target, chosen, tuple(files), tuple(_notes(table)))


def deployable(config: Config, nodes: int | None = None, without_attack: bool = False) -> Config:
    """Return the config that a deployment runs.

    Raises:
        ConfigError: A deployment cannot run it.
    """
    if configs.is_live(config):
        raise ConfigError(
            "the config refers to objects of this process, which no node has; name them as 'module:function'"
        )
    if config.model.weights is not None:
        raise ConfigError(
            f"model.weights is {quoted(config.model.weights)}, a file that the nodes do not have; leave it out, and "
            "give the weights to Strategy.start as initial_arrays"
        )
    if config.train.sampling not in SAMPLING:
        raise ConfigError(
            f"train.sampling is {quoted(config.train.sampling)}, but a deployment draws its cohorts by "
            f"{' or '.join(sorted(SAMPLING))}; choose one of these"
        )
    chosen = _on_nodes(_without_attackers(config, without_attack), nodes)
    as_rule(chosen.defense.name, **chosen.defense.params)
    configs.build(chosen)  # refuses what does not fit together with so many nodes
    return chosen


def _without_attackers(config: Config, wanted: bool) -> Config:
    if config.attack is None and not config.is_attacked:
        return config
    if not wanted:
        name = "attackers" if config.attack is None else f"attackers (attack.name = {quoted(config.attack.name)})"
        raise ConfigError(
            f"the config simulates {name}, and a deployment has none of its own; leave them out with --without-attack, "
            "or rehearse with sparsefed.flower.red_team"
        )
    return config.model_copy(update={"attack": None, "threat": ThreatTable()})


def _on_nodes(config: Config, nodes: int | None) -> Config:
    """Return the config with a device for each node."""
    devices = config.data.devices
    if nodes is None:
        if devices is None or devices > MOST_NODES:
            simulated = "one device for each user" if devices is None else f"{devices:,} devices"
            raise ConfigError(
                f"the config simulates {simulated}, and a deployment has a node for each; say how many nodes there are "
                "with --nodes, and they share the data"
            )
        return config
    if nodes < 1:
        raise ConfigError(f"nodes is {nodes}, but a deployment has at least one")
    data = config.data.model_copy(update={"devices": nodes, "per_device": None})
    train = config.train.model_copy(update={"cohort": min(config.train.cohort, nodes)})
    return configs.parse(configs.dump(config.model_copy(update={"data": data, "train": train})))


def _readme(config: Config, folder: Path) -> str:
    return README.format(
        title=printable(config.name or "A deployment"),
        rule=printable(config.defense.name),
        rounds=config.rounds,
        cohort=config.train.cohort,
        devices=config.data.devices,
        folder=printable(str(folder), 200),
        data=printable(config.data.name),
        package=PACKAGE,
    )


def _notes(table: dict[str, Any]) -> list[str]:
    """Return what must be true of every node beside the app."""
    code = sorted(trust.code_in(table).values())
    return [f"every node must be able to import {', '.join(map(printable, code))}"] if code else []
