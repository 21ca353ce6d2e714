"""How long exhibits take at scale laptop, dense or schedule, from what a round costs: where `est_minutes` comes from.

    python -m benchmarks.exhibit_minutes [--scale dense] [NAME ...]

Cells are counted as the runner runs them: equal ones once, searches with the first variant of their attack in place of
the strongest. An exhibit by itself, and, in the last column, what it adds to those before it. Nothing is run here: the
costs below are those of a machine of two cores with a run on each, and `sparsefed reproduce` measures its own.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterable, Mapping, Sequence

from rich.console import Console
from rich.table import Table

from sparsefed.commands.reproduce import load as reading
from sparsefed.commands.reproduce.exhibit import Exhibit
from sparsefed.commands.reproduce.grid import plan
from sparsefed.config import Config
from sparsefed.sweeps.cells import SweepCell
from sparsefed.sweeps.plan import CellGroup, CellSlot

CORES = 2
START = 4.0  # seconds: a process, its imports and its data

# Seconds a round of the honest devices, of a thousand points of an attacker's gradient, and of an evaluation.
COSTS: Mapping[str, tuple[float, float, float]] = {
    "cnn": (0.11, 0.14, 0.5),
    "resnet9, 8": (0.23, 0.24, 1.2),
    "resnet9, 16": (0.7, 0.8, 5.0),
    "lstm": (0.5, 1.0, 8.0),
    "mlp": (0.03, 0.015, 0.1),  # in float32, which is as fast where there is no bfloat16
}
SEVERAL = {"mlp": 0.15}  # seconds a round and local epoch, where there are several: each device has weights of its own
WRITERS = 0.13  # seconds a round of the cnn on 54 devices of mnist_by_writer, and on 10 of a cross-silo federation
ALL_ROWS = {"krum": 0.05, "bulyan": 0.05, "trimmed_mean": 0.03, "median": 0.03}  # and beside that, these rules
LARGER = 1.5  # times that with the larger vectors of the ResNet9 of width 16
FORESEEN = ("adaptive_topk", "adaptive_push")  # attacks that try out the server: as much again


def costs(config: Config) -> tuple[float, float, float]:
    """The line of the model."""
    width = config.model.params.get("width", 64)
    return COSTS[f"resnet9, {width}" if config.model.name == "resnet9" else config.model.name]


def round_seconds(config: Config) -> float:
    """A round without its evaluation, with attackers in it if there are any."""
    honest, thousand, _ = costs(config)
    if config.model.name == "cnn" and (config.data.partition == "iid" or config.data.name == "mnist_by_writer"):
        honest = WRITERS
    rows = ALL_ROWS.get(config.defense.name, 0.0) * (LARGER if config.model.params.get("width") == 16 else 1.0)
    local = config.train.local_epochs
    honest = SEVERAL.get(config.model.name, honest) if local > 1 else honest
    return honest * local * max(1.0, config.train.cohort / 250) + rows + thousand * _points(config) / 1000


def _points(config: Config) -> float:
    """Of which the attackers of a round take gradients."""
    threat, attack = config.threat, config.attack
    if attack is None or not (threat.share or threat.count) or threat.start == threat.stop:
        return 0.0
    given = attack.params
    if attack.name == "boosted":
        return float(given.get("auxiliary", 500))
    steps = float(given.get("epochs", 5)) * float(given.get("batch", 100))
    each = config.train.cohort * (threat.count or 0) / (config.data.devices or 1) if attack.name == "lone_pgd" else 1.0
    return steps * max(1.0, each) * (2.0 if attack.name in FORESEEN else 1.0)


def seconds(config: Config) -> float:
    """A whole run."""
    evaluations = config.rounds / config.evaluate_every
    return START + config.rounds * round_seconds(config) + evaluations * costs(config)[2]


def cells(exhibit: Exhibit, scale: str = "laptop") -> dict[str, SweepCell]:
    """Every run at a scale by its key, equal ones once."""
    slots = (slot for group in plan(exhibit, scale).sweep.groups for slot in _slots(group))
    return {cell.key: cell for slot in slots for cell in (slot.cell, *slot.twins.values())}


def _slots(group: CellGroup) -> tuple[CellSlot, ...]:
    variant = group.trials[0].attack if group.trials else None
    return (*group.trials, *group.outcomes(variant))


def minutes(found: Iterable[SweepCell]) -> float:
    """All cores at work."""
    return sum(seconds(cell.config) for cell in found) / 60 / CORES


def estimate(exhibit: Exhibit, scale: str = "laptop") -> int:
    """What an exhibit's file says: whole minutes, rounded up."""
    return math.ceil(minutes(cells(exhibit, scale).values()))


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="exhibits, in this order (default: all)")
    parser.add_argument("--scale", choices=("laptop", "dense", "schedule"), default="laptop")
    options = parser.parse_args(argv)
    table, known = Table("exhibit", "cells", "minutes", "new cells", "new minutes"), dict[str, SweepCell]()
    exhibits = [reading.load(name) for name in options.names or reading.names()]
    for exhibit in exhibits:
        if options.scale not in exhibit.scales or exhibit.external:
            continue
        own = cells(exhibit, options.scale)
        new = {key: cell for key, cell in own.items() if key not in known}
        known |= new
        shown = (len(own), estimate(exhibit, options.scale), len(new), f"{minutes(new.values()):.0f}")
        table.add_row(exhibit.name, *map(str, shown))
    table.add_row("together", "", "", str(len(known)), f"{minutes(known.values()):.0f}")
    Console().print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
