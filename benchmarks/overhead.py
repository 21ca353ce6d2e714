"""What a cell costs beside its training: building, evaluation, logging, checkpoints and the runner, over the training.

    python -m benchmarks.overhead --json FILE [--quick]
    python -m benchmarks.overhead --json FILE --finished results   the cells that reproduce has run in that folder

Real cells of laptop scale (10 000 devices, Fashion-MNIST, `cnn`, bfloat16 where the processor has it, SparseFed and
clipping under attack and without, evaluated every 40 rounds as exhibits are, or as --every says), run by the real
runner in its workers. Training is the sum of a run's `seconds`, which are those of its rounds without evaluation; all
else that the worker spends on the cell is overhead. What the workers wait between cells counts too; what starting them
takes is told apart, for it is paid once a command.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.arguments import positive, usual
from benchmarks.machine import others_meter
from benchmarks.outcome import Bar, Row, show, warn_if_busy, write
from benchmarks.timing import spread
from sparsefed import runs
from sparsefed.commands.reproduce import load as reading
from sparsefed.commands.reproduce.grid import plan
from sparsefed.core.progress import Progress
from sparsefed.sweeps import ledger as results
from sparsefed.sweeps.plan import SweepPlan
from sparsefed.sweeps.pool import cores
from sparsefed.sweeps.runner import run_plans

CAPTION = (
    "In a cell: its worker's time outside of rounds / in rounds, a number a cell. All: the time of all workers from "
    "the first round or end of a cell on, outside of rounds / in rounds. Starting: seconds until then."
)
OVERHEAD = Bar("at most", 0.1)
LONG, SCHEDULE = Bar("at most", 0.05), 2400  # at the paper's own schedule, and its rounds
EXHIBIT = """
title = "Overhead"
where = "a benchmark"
question = "What does a cell cost beside its training?"
metrics = ["test_accuracy"]
twins = true
[common]
base = "fmnist/cross-device"
model = { name = "cnn" }
train = { mode = "fedavg", dtype = "bfloat16" }
[axes.defense]
Clipping = { defense = { name = "clipping", clip_norm = 5.0 } }
SparseFed = { defense = { name = "sparsefed", k = 1000, clip_norm = 5.0 } }
[scales.laptop]
seeds = [0]
set = { rounds = 300, evaluate_every = EVERY, checkpoint_every = 100 }
[scales.smoke]
seeds = [0]
[scales.smoke.set]
rounds = 4
data = { name = "sparsefed.commands.reproduce.tiny:IMAGES", devices = 40 }
model = { name = "softmax" }
train = { cohort = 10 }
attack = { auxiliary = 10 }
defense = { clip_norm = 1.0 }
[scales.smoke.axes.defense]
SparseFed = { defense = { k = 50 } }
"""


class _Stopwatch:
    """When the first worker had got to work."""

    def __init__(self) -> None:
        self.began, self.first = time.monotonic(), 0.0

    def watch(self, reached: Progress) -> None:
        if not self.first and (reached.line or any(each.done for each in reached.running)):
            self.first = time.monotonic()


def measured(one: SweepPlan, out: Path, jobs: int, barred: bool) -> tuple[list[Row], dict[str, Any]]:
    """The rows of the table, from one call of the runner."""
    stopwatch = _Stopwatch()
    ledger = run_plans([one], out, jobs, stopwatch.watch)
    ended = time.monotonic()
    if ledger.failed:
        raise SystemExit(f"a cell failed: {next(iter(ledger.failed.values()))}")
    row, details = finished(out, OVERHEAD if barred else None)
    training = sum(details["training"].values())
    whole = max(0.0, jobs * (ended - stopwatch.first) - training) / training
    rows = [
        row,
        Row("overhead", "all", f"{jobs} at a time", spread([whole]), None),
        Row("seconds", "starting", "once", spread([stopwatch.first - stopwatch.began])),
    ]
    return rows, details | {"wall": ended - stopwatch.began, "jobs": jobs}


def finished(out: Path, bar: Bar | None, least: int = 1) -> tuple[Row, dict[str, Any]]:
    """The row about single cells: those that a folder has, of `least` rounds or more, that were not interrupted."""
    timed = [
        (key, seconds, results.folder(out, key)) for key, seconds, rounds in results.timings(out) if rounds >= least
    ]
    records = {key: runs.load_run(folder) for key, _, folder in timed if folder.exists()}
    whole = {key: record.rows for key, record in records.items() if not record.manifest.get("resumed")}
    if not whole:
        raise SystemExit(f"no such cell was run in {out}: give the folder that sparsefed reproduce had as --out")
    spent = {key: seconds for key, seconds, _ in timed if key in whole}
    trained = {key: sum(float(row["seconds"]) for row in rows) for key, rows in whole.items()}
    shares = [(spent[key] - trained[key]) / trained[key] for key in spent]
    details = {"seconds": spent, "training": trained}
    return Row("overhead", "in a cell", f"{len(spent)} cells", spread(shares), bar), details


def main(arguments: Sequence[str] | None = None) -> None:
    parser = usual("overhead", __doc__)
    parser.add_argument("--every", type=positive, default=40, metavar="N", help="rounds between two evaluations")
    parser.add_argument("--finished", type=Path, metavar="FOLDER", help="run nothing: finished cells of 2400 rounds")
    options = parser.parse_args(arguments)
    console, others = Console(), others_meter()
    if options.finished:
        row, details = finished(options.finished, LONG, SCHEDULE)
        write(options.json, "overhead", [row], details, others())
        show(console, "Overhead", CAPTION, [row])
        return
    exhibit = reading.parse("overhead", EXHIBIT.replace("EVERY", str(options.every)))
    one = plan(exhibit, "smoke" if options.quick else "laptop").sweep
    with tempfile.TemporaryDirectory() as folder:
        rows, details = measured(one, Path(folder), cores(), barred=not options.quick)
    write(options.json, "overhead", rows, details | {"evaluate_every": options.every}, others())
    title = "Overhead" + (" (quick: sizes too small to mean anything)" if options.quick else "")
    show(console, title, CAPTION, rows)
    warn_if_busy(console, others())


if __name__ == "__main__":
    main()
