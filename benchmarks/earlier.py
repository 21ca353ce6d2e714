"""Whether rounds take longer than they did at an earlier commit.

    git worktree add ../earlier COMMIT
    python -m benchmarks.earlier ../earlier --json FILE [--repeats N] [--quick]

The same configs in processes of both source trees, which take turns round by round: images and tokens, a rule that
needs sums and one that needs rows, several local epochs. Results are ratios within a repeat, ours over earlier. What
the earlier tree cannot read is left out, with a word.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.arguments import usual
from benchmarks.machine import others_meter
from benchmarks.outcome import Bar, Row, show, warn_if_busy, write
from benchmarks.timing import Contestant, Sample, interleaved, ratio, seconds
from benchmarks.workers import ROOT, Worker, WorkerError, worker
from sparsefed import data

SLOWER = Bar("at most", 1.02)
REPEATS, PROCESSES = 21, 3  # rounds of each pair of processes, and pairs: processes differ by a few percent
CAPTION = """\
The time of a round now / at the earlier commit, within each interleaved repeat of several pairs of fresh processes; the
bar is for the median.""".replace("\n", " ")

Run = dict[str, Any]


def runs(quick: bool) -> Mapping[str, Run]:
    """The configs by name, for the data that are on this machine."""
    if quick:
        digits = {"name": "digits", "partition": "one_class", "devices": 100, "per_device": 6}
        return {"cnn, sparsefed": _run(digits, {"name": "cnn"}, {"cohort": 4}, "sparsefed")}
    fmnist = {"name": "fmnist", "partition": "one_class", "devices": 10_000, "per_device": 6}
    cifar = {"name": "cifar10", "partition": "one_class", "devices": 10_000, "per_device": 5}
    plays = {"name": "shakespeare", "partition": "iid", "devices": 1000}
    cases = {
        "cnn, sparsefed": _run(fmnist, {"name": "cnn"}, {"cohort": 100}, "sparsefed"),
        "cnn, krum": _run(fmnist, {"name": "cnn"}, {"cohort": 100}, "krum"),
        "cnn, 2 local epochs": _run(fmnist, {"name": "cnn"}, {"cohort": 100, "local_epochs": 2}, "sparsefed"),
        "resnet9-16, sparsefed": _run(cifar, {"name": "resnet9", "width": 16}, {"cohort": 100}, "sparsefed"),
        "lstm, sparsefed": _run(plays, {"name": "lstm"}, {"cohort": 5}, "sparsefed"),
        "transformer, sparsefed": _run(plays, {"name": "transformer"}, {"cohort": 5}, "sparsefed"),
    }
    return {name: run for name, run in cases.items() if data.status(run["data"]["name"]).state == "found"}


def _run(part: Run, model: Run, train: Run, rule: str) -> Run:
    parameters = {"sparsefed": {"k": 1000}, "krum": {"f": 2}}[rule]
    train = {"mode": "fedavg", "dtype": "float32", **train}
    return {"data": part, "model": model, "train": train, "defense": {"name": rule, **parameters}}


def compare(earlier: Path, run: Run, processes: int, repeats: int) -> list[Sample]:
    """Rounds of both trees in turn, in several pairs of fresh processes."""
    samples: list[Sample] = []
    for _ in range(processes):
        with ExitStack() as stack:
            sides = {"now": ROOT, "earlier": earlier}
            workers = {name: stack.enter_context(_process(tree, run)) for name, tree in sides.items()}
            rounds = {name: Contestant(_round_of(asked)) for name, asked in workers.items()}
            samples += interleaved(rounds, repeats, warm_up=3)
    return samples


def _process(tree: Path, run: Run) -> Any:
    arguments = [json.dumps(run), "kept"]
    return worker(sys.executable, "benchmarks.round_process", arguments, {"PYTHONPATH": str(tree / "src")}, tree)


def _round_of(asked: Worker) -> Callable[[], float]:
    return lambda: float(asked.ask("round"))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = usual("earlier", __doc__)
    parser.add_argument("tree", type=Path, help="a checkout of the earlier commit")
    parser.add_argument("--only", metavar="NAME", help="the cases whose name begins so")
    options = parser.parse_args(arguments)
    if not (options.tree / "src" / "sparsefed").is_dir():
        parser.error(f"'{options.tree}' is no checkout of this project; make one by `git worktree add`")
    console, others = Console(), others_meter()
    rows: list[Row] = []
    record: dict[str, Any] = {}
    for name, run in runs(options.quick).items():
        if not name.startswith(options.only or ""):
            continue
        try:
            tree = options.tree.resolve()
            samples = compare(tree, run, 1 if options.quick else PROCESSES, options.repeats or REPEATS)
        except WorkerError:
            console.print(f"Without {name}: one of the trees cannot run it.", highlight=False)
            continue
        bar = None if options.quick else SLOWER
        rows.append(Row(name, "now / earlier", "round time", ratio(samples, "now", "earlier"), bar))
        record[name] = {side: seconds(samples, side)._asdict() for side in ("now", "earlier")}
        write(options.json, "earlier", rows, record, others())
    show(console, "Rounds, now against an earlier commit", CAPTION, rows)
    warn_if_busy(console, others())


if __name__ == "__main__":
    main()
