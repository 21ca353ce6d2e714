"""How long the data sets on this machine take to load, and how much memory: all of them, in fresh processes.

    python -m benchmarks.loading --json FILE [--repeats N] [--quick]

Seconds are from the files (in the system's cache after the first time) to verified arrays; the reference beside them is
reading and hashing the same files with `sha256sum`-like code in the same process, the least that any verified load can
take. Memory is the peak of the process, less what it had before, over the bytes of the uint8 arrays.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.arguments import positive
from benchmarks.machine import others_meter
from benchmarks.outcome import Bar, Row, show, warn_if_busy, write
from benchmarks.round_process import STATUS, resident
from benchmarks.timing import spread
from sparsefed import data
from sparsefed.data.sources import inventory

CAPTION = "Each time a fresh process. hash: reading the same files and computing their SHA-256, in the same process."
BARS = {"cifar10": (Bar("at most", 5), Bar("at most", 1.5)), "cifar100": (None, Bar("at most", 1.5))}


def one_load(name: str) -> dict[str, float]:
    """Seconds, the reference's seconds, and memory over the arrays' bytes; to be run in a fresh process."""
    import PIL.Image

    import sparsefed.core.types

    assert PIL.Image and sparsefed.core.types  # imports are not what is measured
    before, began = resident(STATUS.read_text())["peak"], time.perf_counter()
    arrays = data.load(name)
    seconds, peak = time.perf_counter() - began, resident(STATUS.read_text())["peak"]
    began = time.perf_counter()
    for path in inventory.files(data.named(name)):
        with path.open("rb") as stream:
            hashlib.file_digest(stream, "sha256")
    reference = time.perf_counter() - began
    megabytes = (arrays.x_train.nbytes + arrays.x_test.nbytes) / 2**20
    return {"seconds": seconds, "reference": reference, "memory": (peak - before) / megabytes}


def measured(name: str, repeats: int) -> list[dict[str, float]]:
    """A fresh process each time, after one that fills the system's cache."""
    code = f"import json; from benchmarks.loading import one_load; print(json.dumps(one_load({name!r})))"
    runs = [subprocess.run([sys.executable, "-c", code], capture_output=True, check=True) for _ in range(repeats + 1)]
    return [json.loads(run.stdout) for run in runs[1:]]


def rows(name: str, found: Sequence[dict[str, float]], bars: bool) -> list[Row]:
    seconds, memory = BARS.get(name, (None, None)) if bars else (None, None)
    return [
        Row(name, "seconds", "load", spread([each["seconds"] for each in found]), seconds),
        Row(name, "load / hash", "time", spread([each["seconds"] / each["reference"] for each in found])),
        Row(name, "peak / arrays", "memory", spread([each["memory"] for each in found]), memory),
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    options = _parser().parse_args(arguments)
    console, others = Console(), others_meter()
    here = sorted((each.size, each.name) for each in data.listing() if each.state == "found")
    names = [name for _, name in (here[:1] if options.quick else here)]
    table: list[Row] = []
    record: dict[str, Any] = {}
    for name in names:
        console.print(f"loading {name}", highlight=False)
        record[name] = measured(name, 1 if options.quick else options.repeats)
        table += rows(name, record[name], bars=not options.quick)
    write(options.json, "loading", table, record, others())
    show(console, "Loading", CAPTION, table)
    warn_if_busy(console, others())


def _parser() -> argparse.ArgumentParser:
    description = (__doc__ or "").partition("\n")[0]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.loading", description=description)
    parser.add_argument("--json", type=Path, required=True, metavar="FILE", help="where the numbers go")
    parser.add_argument("--repeats", type=positive, default=5, metavar="N", help="processes for each data set")
    parser.add_argument("--quick", action="store_true", help="one data set, once: shows that it runs, measures nothing")
    return parser


if __name__ == "__main__":
    main()
