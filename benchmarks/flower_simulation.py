"""A round of Flower's own simulation engine against ours, on the same federation.

    make peers
    python -m benchmarks.flower_simulation --json FILE [--repeats N] [--quick]

Fashion-MNIST, 10 000 devices of 6 images, 100 of them in a round, the same small CNN, one local step, the mean. Flower
runs a stock client with FedAvg on two actors (`benchmarks/flower_round.py`, in an environment of its own); ours runs in
one process, and by two workers of a Ray cluster. Rounds are interleaved, ratios are taken within a repeat. Flower's
processes poll when they have nothing to do, so they are paused while ours are timed.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from benchmarks.arguments import usual
from benchmarks.machine import others_meter
from benchmarks.outcome import Bar, Row, show, warn_if_busy, write
from benchmarks.peers import VENV, python_of
from benchmarks.timing import Contestant, Sample, interleaved, ratio, seconds
from benchmarks.workers import ROOT, Worker, worker
from sparsefed import config

CAPTION = "Flower's engine / ours: one round of 100 clients, within a repeat."


def table(quick: bool) -> dict[str, Any]:
    """The federation; quick: a hundredth of its devices."""
    return {
        "rounds": 10**6,
        "data": {
            "name": "fmnist",
            "partition": "one_class",
            "devices": 100 if quick else 10_000,
            "per_device": 6,
        },
        "model": {"name": "cnn"},
        "train": {"mode": "fedavg", "cohort": 100, "lr": 0.1, "block": 25, "dtype": "float32"},
        "defense": {"name": "mean"},
    }


def save_examples(folder: Path, given: dict[str, Any]) -> None:
    """Leave every device's examples, normalised, where Flower's clients find them."""
    built = config.build(config.parse(given))
    federation = built.setup.federation
    batch = federation.gather(np.arange(federation.device_count))
    x = built.task.prepare(batch.x).contiguous().numpy()
    np.save(folder / "x.npy", x.reshape(federation.device_count, -1, *x.shape[1:]))
    np.save(folder / "y.npy", batch.y.numpy().reshape(federation.device_count, -1))


def measure(python: Path, quick: bool, repeats: int, folder: Path) -> tuple[list[Sample], dict[str, Any]]:
    """Start all sides, ours on a cluster first, and time their rounds in turn."""
    given = table(quick)
    save_examples(folder, given)
    text, one = json.dumps(given), {"OMP_NUM_THREADS": "1", "RAY_ADDRESS": "local"}
    with ExitStack() as running:
        ray = running.enter_context(worker(sys.executable, "benchmarks.round_process", [text, "kept", "ray:2"], one))
        ray.ask("round")  # starts the cluster
        here = running.enter_context(worker(sys.executable, "benchmarks.round_process", [text, "kept"]))
        path = {"PYTHONPATH": str(ROOT), "FLWR_TELEMETRY_ENABLED": "0", "RAY_AUTH_MODE": "disabled"}
        flower = running.enter_context(worker(python, "benchmarks.flower_round", [str(folder)], path))

        def ours(side: Worker) -> float:
            with flower.paused():
                return float(side.ask("round"))

        contestants = {
            "Flower": Contestant(lambda: float(flower.ask("round"))),
            "ours, in process": Contestant(lambda: ours(here)),
            "ours, 2 workers": Contestant(lambda: ours(ray)),
        }
        samples = interleaved(contestants, repeats, warm_up=2)
        return samples, {"peer": flower.ready}


def main(arguments: Sequence[str] | None = None) -> None:
    options = usual("flower_simulation", __doc__).parse_args(arguments)
    console, others = Console(), others_meter()
    python = python_of(VENV)
    if python is None:
        console.print("The peers' environment is not there: `make peers` first.")
        raise SystemExit(1)
    with tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as name:
        (Path(name) / "token").write_text("0123456789abcdef" * 4)
        os.environ |= {"RAY_AUTH_TOKEN_PATH": f"{name}/token", "RAY_TMPDIR": name}
        samples, details = measure(python, options.quick, options.repeats or 9, Path(name))
    bar = None if options.quick else Bar("at least", 20)
    rows = [
        Row("Flower / ours", "a round of 100 clients", side, ratio(samples, "Flower", side), bar)
        for side in ("ours, in process", "ours, 2 workers")
    ]
    took = {side: seconds(samples, side)._asdict() for side in samples[0]}
    write(options.json, "flower_simulation", rows, {**details, "seconds": took, "samples": samples}, others())
    show(console, "Flower's simulation engine" + " (quick: a small federation)" * options.quick, CAPTION, rows)
    warn_if_busy(console, others())


if __name__ == "__main__":
    main()
