"""Whether the paper's two large models fit a machine: seconds and peak memory of a whole round, SparseFed included.

    python -m benchmarks.footprint --json FILE [--models resnet101_ln,resnet9] [--rounds N] [--quick]

ResNet101-LN on FEMNIST's shape (35 devices of 15 to 25 examples a round) and ResNet9 on CIFAR's (100 devices of 5), in
float32 and bfloat16, each in a fresh process with the command line's setting of the allocator. Random images. Seconds
are those of this machine, for orientation; the bars are about memory.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console

from benchmarks.arguments import positive
from benchmarks.machine import others_meter
from benchmarks.outcome import Bar, Row, show, warn_if_busy, write
from benchmarks.round_process import STATUS, resident
from benchmarks.timing import spread
from benchmarks.workers import serve, worker
from sparsefed.core.engine import MEMORY_BUDGET
from sparsefed.core.errors import unknown
from sparsefed.core.federation import epoch, federate
from sparsefed.core.malloc import keep_freed_memory
from sparsefed.core.rng import integer_seed, rng
from sparsefed.core.round import RoundSetup, run_round, start
from sparsefed.core.schedule import constant
from sparsefed.core.task import image_normaliser, make_task
from sparsefed.core.threat import ThreatModel
from sparsefed.data.partitions.partition import Partition
from sparsefed.defenses import build
from sparsefed.engines import fused
from sparsefed.models import MODELS

CAPTION = "Whole rounds under SparseFed. Peak: of the process, from its start. Random images, two cohorts of them."
DTYPES: Mapping[str, torch.dtype] = {"float32": torch.float32, "bfloat16": torch.bfloat16}
LARGEST = Bar("at most", 24 * 1024)  # MB


@dataclass(frozen=True)
class Size:
    """One model with its cohort."""

    model: str
    shape: tuple[int, int, int]  # [C, H, W]
    classes: int
    clients: int
    examples: tuple[int, int]  # of a client: at least, at most
    k: int
    width: int = 64


SIZES = {
    size.model: size
    for size in (
        Size("resnet101_ln", (1, 28, 28), 62, 35, (15, 25), 40_000),
        Size("resnet9", (3, 32, 32), 10, 100, (5, 5), 1000),
    )
}


def quick(size: Size) -> Size:
    """So small that it only shows that everything runs: nothing is asked of it."""
    return replace(size, clients=3, k=100, width=2)


def make_protocol(size: Size, dtype: str) -> tuple[RoundSetup, torch.Tensor]:
    """A federation of two cohorts, and the first model."""
    generator, (channels, height, width) = rng(0, "benchmark images"), size.shape
    owned = generator.integers(size.examples[0], size.examples[1] + 1, size=2 * size.clients)
    offsets = np.concatenate([[0], np.cumsum(owned)])
    count = int(offsets[-1])
    x = torch.from_numpy(generator.integers(256, size=(count, height, width, channels), dtype=np.uint8))
    y = torch.from_numpy(generator.integers(size.classes, size=count))
    partition = Partition(offsets, np.arange(count, dtype=np.int32))
    with torch.random.fork_rng(devices=[]):  # layers draw their first weights from torch's own generator
        torch.default_generator.manual_seed(integer_seed(0, "benchmark model"))
        module = MODELS[size.model](size.shape, size.classes, width=size.width)
    task = make_task(module, image_normaliser((0.5,) * channels, (0.25,) * channels))
    federation = federate(x, y, partition, epoch, size.clients, ThreatModel(), seed=0)
    engine = fused(task, DTYPES[dtype], MEMORY_BUDGET)
    protocol = RoundSetup(federation, engine, build("sparsefed", k=size.k), constant(0.01), False, 1e-5, 0)
    return protocol, task.initial()


def process(model: str, dtype: str, tiny: bool) -> None:
    """The fresh process: a round for each line that asks for one."""
    keep_freed_memory()
    size = quick(SIZES[model]) if tiny else SIZES[model]
    protocol, theta = make_protocol(size, dtype)
    state = start(protocol, theta)

    def one_round() -> float:
        nonlocal state
        report = run_round(protocol, state)
        state = report.state
        return report.seconds

    serve({"parameters": len(theta)}, {"round": one_round, "memory": lambda: resident(STATUS.read_text())})


def measure(model: str, dtype: str, rounds: int, tiny: bool) -> tuple[list[Row], dict[str, Any]]:
    """Seconds of each round, and the most that the process held."""
    arguments = ["--process", model, dtype] + (["--quick"] if tiny else [])
    with worker(sys.executable, "benchmarks.footprint", arguments) as asked:
        seconds = [float(asked.ask("round")) for _ in range(rounds)]
        parameters, peak = int(asked.ready["parameters"]), float(asked.ask("memory")["peak"])
    rows = [
        Row(model, "seconds a round", dtype, spread(seconds)),
        Row(model, "peak MB", dtype, spread([peak]), None if tiny else LARGEST),
    ]
    return rows, {"parameters": parameters, "seconds": seconds, "peak_mb": peak}


# --- the command -----------------------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> None:
    options = _parser().parse_args(arguments)
    if options.process:
        model, dtype = options.process
        process(model, dtype, options.quick)
        return
    console, others = Console(), others_meter()
    rows: list[Row] = []
    record: dict[str, Any] = {"sizes": {model: asdict(SIZES[model]) for model in options.models}}
    for model in options.models:
        for dtype in DTYPES:
            console.print(f"{model}, {dtype}", highlight=False)
            more, record[f"{model}, {dtype}"] = measure(model, dtype, options.rounds, options.quick)
            rows += more
            write(options.json, "footprint", rows, record, others())
    title = "Footprint" + (" (quick: sizes too small to mean anything)" if options.quick else "")
    show(console, title, CAPTION, rows)
    warn_if_busy(console, others())


def _models(text: str) -> list[str]:
    for name in text.split(","):
        if name not in SIZES:
            raise argparse.ArgumentTypeError(unknown("model", name, SIZES))
    return text.split(",")


def _parser() -> argparse.ArgumentParser:
    description = (__doc__ or "").partition("\n")[0]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.footprint", description=description)
    parser.add_argument("--json", type=Path, default=Path("runs/bench-footprint.json"), metavar="FILE")
    parser.add_argument("--models", type=_models, default=list(SIZES), help=f"some of {','.join(SIZES)}")
    parser.add_argument("--rounds", type=positive, default=2, metavar="N", help="timed, in each process")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: shows that it runs, measures nothing")
    parser.add_argument("--process", nargs=2, metavar=("MODEL", "DTYPE"), help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    main()
