"""How long a vote's models take to train, against one federated run with as many gradient evaluations.

    python -m benchmarks.vote_training --json FILE [--repeats N] [--quick]

In one process, interleaved: one round of a hundred groups of one device, each with a model of its own, and one round of
the federation of all these devices. Both compute every device's local steps; the vote also keeps and steps a hundred
models. Random images would do, so Fashion-MNIST is used where it is found, and the digits elsewhere.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.arguments import usual
from benchmarks.machine import others_meter
from benchmarks.outcome import Bar, Row, show, warn_if_busy, write
from benchmarks.timing import Contestant, Sample, interleaved, ratio, seconds, timed
from sparsefed import config as configs
from sparsefed import data
from sparsefed.commands.certify.group_plan import plan_groups
from sparsefed.commands.certify.group_training import train_groups
from sparsefed.config import BuiltSimulation
from sparsefed.core.malloc import keep_freed_memory
from sparsefed.core.round import simulate, start

GROUPS, ROUNDS, REPEATS = 100, 2, 7
SLOWER = Bar("at most", 3)
CAPTION = """\
A hundred models of one device each / one federated run of these devices, the same rounds and local steps, within each
interleaved repeat; loading, building and writing the groups' files included on the vote's side.""".replace("\n", " ")
TRAIN: dict[str, dict[str, Any]] = {
    "one step a round": {"lr": 0.1, "schedule": "constant"},
    "3 local steps a round": {"mode": "fedavg", "local_batch": 20, "local_lr": 0.1},
}


def build(model: dict[str, Any], train: dict[str, Any], quick: bool) -> BuiltSimulation:
    """Build the federation whose devices are also the groups."""
    name = "fmnist" if not quick and data.status("fmnist").state == "found" else "digits"
    groups = 5 if quick else GROUPS
    table = {
        "rounds": ROUNDS,
        "checkpoint_every": 1000,
        "data": {"name": name, "partition": "iid", "devices": groups, "per_device": 12 if quick else 60},
        "model": model,
        "train": {"cohort": groups, "weight_decay": 0.0, "dtype": "float32", **train},
        "defense": {"name": "undefended", "rho": 0.0},
    }
    return configs.build(configs.parse(table))


def contestants(built: BuiltSimulation) -> dict[str, Contestant]:
    """Return both ways to train on the same devices."""
    devices = built.setup.federation.device_count
    plan = plan_groups(devices, devices, built.config.seed)

    def vote() -> object:
        with tempfile.TemporaryDirectory() as folder:
            return train_groups(built, plan, Path(folder) / "groups")

    def together() -> object:
        return list(simulate(built.setup, start(built.setup, built.theta), ROUNDS))

    ways: dict[str, Callable[[], object]] = {"vote": vote, "federated": together}
    return {name: Contestant(timed(way)) for name, way in ways.items()}


def main(arguments: Sequence[str] | None = None) -> None:
    options = usual("vote_training", __doc__).parse_args(arguments)
    keep_freed_memory()
    console, others = Console(), others_meter()
    rows: list[Row] = []
    record: dict[str, Any] = {}
    for model in ("softmax", "cnn"):
        for setting, train in TRAIN.items():
            built = build({"name": model}, train, options.quick)
            samples: list[Sample] = interleaved(
                contestants(built), options.repeats or (2 if options.quick else REPEATS)
            )
            bar = SLOWER if model == "cnn" and not options.quick else None
            rows.append(Row(model, "vote / federated", setting, ratio(samples, "vote", "federated"), bar))
            record[f"{model}, {setting}"] = {way: seconds(samples, way)._asdict() for way in ("vote", "federated")}
            write(options.json, "vote_training", rows, record, others())
    show(console, f"Training {GROUPS} models for a vote", CAPTION, rows)
    warn_if_busy(console, others())


if __name__ == "__main__":
    main()
