"""Certified accuracy by votes of groups on real data: the tables of docs/certified_accuracy.md.

    python -m benchmarks.votes [--curves FILE.json] [NAME ...]

without names runs every setting of SETTINGS; with --curves the whole curves are added to a file. Each line has the
accuracy without attackers, certified accuracy for some numbers of compromised devices, and the cpu time of training the
groups and of everything.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import sparsefed
from sparsefed.core.progress import Progress


class Setting(NamedTuple):
    """A config, its groups, and the numbers of compromised devices to show."""

    table: dict[str, Any]
    groups: int
    numbers: tuple[int, ...]
    options: dict[str, Any] = {}  # noqa: RUF012 - never written to


def _table(data: dict[str, Any], model: dict[str, Any], rounds: int, train: dict[str, Any], **others: Any) -> Any:
    """Return a config; by default an undefended mean without momentum or weight decay, all devices in every round."""
    usual = {"cohort": data["devices"], "weight_decay": 0.0}
    plain = {"defense": {"name": "undefended", "rho": 0.0}, "checkpoint_every": 1000, "evaluate_every": 1000}
    return {"data": data, "model": model, "rounds": rounds, "train": usual | train, **plain, **others}


def _local(epochs: int, batch: int, lr: float, decay: float = 1.0) -> dict[str, Any]:
    """Return a [train] table of local steps in batches."""
    own = {"local_epochs": epochs, "local_batch": batch, "local_lr": lr, "local_decay": decay}
    return {"mode": "fedavg", **own}


FMNIST = {"name": "fmnist", "partition": "iid", "devices": 100}
SOFTMAX = {"name": "softmax", "zero": True}
SMALL_CNN = {"name": "cnn", "width": 4, "hidden": 32}
FOLDER = Path("runs/votes")  # models are kept: the same command goes on
HUNDRED = (1, 3, 10, 20, 40)
ONE_ROUND = {"name": "clipping", "clip_norm": 1.0, "rho": 0.0}

SETTINGS = {
    "certified.toml": Setting(
        _table(FMNIST, SOFTMAX, 20, {"lr": 0.006, "schedule": "constant"}, defense={**ONE_ROUND, "clip_norm": 5.5}),
        100,
        HUNDRED,
    ),
    "fmnist softmax": Setting(_table(FMNIST, SOFTMAX, 20, _local(1, 20, 0.01)), 100, HUNDRED),
    "fmnist softmax, spread 2": Setting(_table(FMNIST, SOFTMAX, 20, _local(1, 20, 0.01)), 100, HUNDRED, {"spread": 2}),
    "fmnist softmax, random subsets of 2": Setting(
        _table(FMNIST, SOFTMAX, 10, _local(1, 20, 0.01)), 300, HUNDRED, {"subset": 2}
    ),
    "fmnist cnn": Setting(_table(FMNIST, SMALL_CNN, 30, _local(1, 20, 0.1)), 25, (1, 3, 5, 10)),
    "mnist cnn": Setting(
        _table({"name": "mnist_by_writer", "partition": "iid", "devices": 1000}, SMALL_CNN, 15, _local(2, 10, 0.15)),
        200,
        (1, 5, 10, 20, 50),
    ),
    "one class": Setting(
        _table(
            {"name": "fmnist", "partition": "one_class", "devices": 10_000},
            SOFTMAX,
            25,
            {"lr": 0.02, "schedule": "constant"},
            defense={"name": "undefended", "rho": 0.9},
        ),
        500,
        (10, 50, 100, 150),
    ),
    "cifar10 resnet9": Setting(
        _table(
            {"name": "cifar10", "partition": "iid", "devices": 10, "per_device": 5000},
            {"name": "resnet9", "width": 4},
            15,
            {**_local(1, 20, 0.03), "local_momentum": 0.9},
        ),
        10,
        (1, 2, 3, 4),
    ),
    "clipping inside, one round": Setting(
        _table(
            {"name": "fmnist", "partition": "iid", "devices": 1000},
            SOFTMAX,
            1,
            {"lr": 0.006, "schedule": "constant"},
            defense=ONE_ROUND,
        ),
        20,
        (1, 5, 9, 10, 15),
    ),
}


def rows(setting: Setting) -> dict[str, tuple[str, list[float]]]:
    """Train and certify a setting; return for each of its certificates a line of the table and the whole curve."""
    trained: list[float] = []

    def watch(progress: Progress) -> None:
        if progress.title == "rounds of groups" and progress.done == progress.total:
            trained.append(time.process_time())

    began = time.process_time()
    options = {"folder": FOLDER, **setting.options}
    result = sparsefed.certify(setting.table, groups=setting.groups, on_progress=watch, **options)
    ended = time.process_time()
    lines = {}
    for curve in result.curves:
        certified = [f"m = {m}: {100 * curve.at(m):.1f}" for m in setting.numbers]
        cpu = f"{trained[0] - began:.0f} s, {ended - began:.0f} s"
        cells = [f"{setting.groups}", curve.name, f"{100 * curve.accuracy:.1f}", ", ".join(certified), cpu]
        lines[curve.name] = " | ".join(cells), [round(value, 4) for value in curve.certified.tolist()]
    return lines


def main(arguments: Sequence[str]) -> None:
    """Print the table."""
    curves = Path(arguments[1]) if arguments[:1] == ["--curves"] else None
    kept = json.loads(curves.read_text(encoding="utf-8")) if curves and curves.exists() else {}
    print("| setting | groups | certificate | accuracy | certified | cpu: groups trained, in all |")
    print("| --- | ---: | --- | ---: | --- | --- |")
    for name in arguments[2 if curves else 0 :] or SETTINGS:
        for certificate, (line, curve) in rows(SETTINGS[name]).items():
            print(f"| {name} | {line} |", flush=True)
            kept[f"{name}: {certificate}"] = curve
        if curves:
            curves.write_text(json.dumps(kept) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
