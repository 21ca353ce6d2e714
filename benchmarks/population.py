"""That a round costs by its cohort, never by the population: time and memory with few and with many devices.

    python -m benchmarks.population --json FILE [--quick]

Two questions. (1) The same round with 10 000 and with 1 000 000 devices: how much longer, how many megabytes more?
Both run in processes of their own and take turns, round by round. (2) The peak of a round's memory for growing cohorts,
under a fixed budget for one block: rules that are a mean must not need more than that block. Fashion-MNIST if it is on
this machine, else the digits that are always there; the table says which.

Memory is that of fresh processes, as the system counts it, in two ways. *Held*: the C library is told to map every
tensor on its own and give it back at once, so that the count is what the program holds, to a megabyte or two. *As run*:
with the command line's setting, where freed memory stays with the process; what the heap keeps between its blocks comes
on top, some tens of megabytes that differ from process to process.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from benchmarks.machine import others_meter
from benchmarks.outcome import Bar, Row, show, warn_if_busy, write
from benchmarks.timing import Contestant, Sample, interleaved, ratio, seconds, spread
from benchmarks.workers import Worker, worker
from sparsefed import data

CAPTION = """\
Time: within each interleaved repeat. Memory: of fresh processes; held: what the program holds; as run: with what the
heap keeps of freed memory, which differs by tens of megabytes from process to process. Cohorts: the peak of rounds with
that cohort, less that of rounds with the smallest; the bar is one block.""".replace("\n", " ")

Allocator = Literal["exact", "kept"]
Memory = Mapping[str, float]  # megabytes
_ENVIRONMENT = {"exact": {"MALLOC_MMAP_THRESHOLD_": str(2**16)}, "kept": {}}
_WORDS: dict[Allocator, str] = {"exact": "held", "kept": "as run"}

SLOWER, LARGER = Bar("at most", 1.05), Bar("at most", 64)  # times; MB


@dataclass(frozen=True)
class Sizes:
    """How much is measured, and what is asked of it."""

    data: str
    populations: tuple[int, int] = (10_000, 1_000_000)
    per_device: int = 6
    cohort: int = 100
    processes: int = 3  # of each kind; one where what is held is counted exactly
    warm_up: int = 3  # rounds
    rounds: int = 40  # timed, in each process
    memory_rounds: int = 2  # after which memory is looked at
    cohorts: tuple[int, ...] = (100, 400, 1600)
    block_mb: int = 64  # so that even the smallest cohort needs several blocks
    rules: tuple[str, ...] = ("clipping", "sparsefed")
    allocators: tuple[Allocator, ...] = ("exact", "kept")
    bars: bool = True


def quick(sizes: Sizes) -> Sizes:
    """So small that it only shows that everything runs: nothing is asked of it."""
    tiny = replace(sizes, data="digits", populations=(200, 2000), cohort=4, cohorts=(4, 8), rules=("sparsefed",))
    return replace(tiny, processes=1, warm_up=1, rounds=2, memory_rounds=1, allocators=("exact",), bars=False)


def run_config(sizes: Sizes, rule: str, devices: int, cohort: int, block_mb: int | None = None) -> dict[str, Any]:
    """A run of the small CNN over one-class devices."""
    train: dict[str, Any] = {"cohort": cohort} | ({} if block_mb is None else {"memory_mb": block_mb})
    return {
        "data": {"name": sizes.data, "partition": "one_class", "devices": devices, "per_device": sizes.per_device},
        "model": {"name": "cnn"},
        "train": train,
        "defense": {"name": rule} | ({"k": 1000} if rule == "sparsefed" else {}),
    }


def _process(run: dict[str, Any], allocator: Allocator) -> AbstractContextManager[Worker]:
    arguments = [json.dumps(run), allocator]
    return worker(sys.executable, "benchmarks.round_process", arguments, _ENVIRONMENT[allocator])


# --- how many devices ------------------------------------------------------------------------------------------------


def compare_times(sizes: Sizes) -> tuple[list[Row], dict[str, Any]]:
    """Few and many devices take turns, in several pairs of fresh processes."""
    samples: list[Sample] = []
    for _ in range(sizes.processes):
        samples += _one_pair(sizes)
    few, many = map(_name, sizes.populations)
    row = Row("population", "round time", f"{many} / {few}", ratio(samples, many, few), SLOWER if sizes.bars else None)
    return [row], {"seconds": {name: seconds(samples, name)._asdict() for name in (few, many)}, "samples": samples}


def _one_pair(sizes: Sizes) -> list[Sample]:
    with ExitStack() as stack:
        contestants = {}
        for devices in sizes.populations:
            run = run_config(sizes, "sparsefed", devices, sizes.cohort)
            contestants[_name(devices)] = Contestant(_round_of(stack.enter_context(_process(run, "kept"))))
        return interleaved(contestants, sizes.rounds, sizes.warm_up)


def _round_of(asked: Worker) -> Callable[[], float]:
    return lambda: float(asked.ask("round"))


def _name(devices: int) -> str:
    return f"{devices:,}".replace(",", " ")


def compare_memory(sizes: Sizes) -> tuple[list[Row], dict[str, Any]]:
    """Few and many devices, each in fresh processes: what they hold after some rounds, and at most."""
    rows, record = [], {}
    few, many = sizes.populations
    for allocator in sizes.allocators:
        runs = {devices: run_config(sizes, "sparsefed", devices, sizes.cohort) for devices in sizes.populations}
        found = _memories(sizes, runs, allocator)
        bar = LARGER if sizes.bars and allocator == "exact" else None  # the heap's whims are not the population's doing
        for key, what in (("now", "resident"), ("peak", "peak")):
            more = spread([memory[many][key] - memory[few][key] for memory in found])
            rows.append(
                Row("population", f"{what} MB, {_WORDS[allocator]}", f"{_name(many)} - {_name(few)}", more, bar)
            )
        record[_WORDS[allocator]] = found
    return rows, record


def _memories(sizes: Sizes, runs: Mapping[int, dict[str, Any]], allocator: Allocator) -> list[dict[int, Memory]]:
    """What each of these runs needs, time after time."""
    times = 1 if allocator == "exact" else sizes.processes
    return [{key: _memory(sizes, run, allocator) for key, run in runs.items()} for _ in range(times)]


def _memory(sizes: Sizes, run: dict[str, Any], allocator: Allocator) -> Memory:
    """Megabytes after the federation was built, after some rounds, and at most since the process began."""
    with _process(run, allocator) as asked:
        for _ in range(sizes.memory_rounds):
            asked.ask("round")
        built, after = asked.ready, asked.ask("memory")
        return {
            "built": built["now"],
            "now": after["now"],
            "rounds": after["peak"],
            "peak": max(built["peak"], after["peak"]),
        }


# --- how large a cohort ----------------------------------------------------------------------------------------------


def compare_cohorts(sizes: Sizes, rule: str) -> tuple[list[Row], dict[str, Any]]:
    """The peak of rounds, in fresh processes that differ in the cohort alone."""
    rows, record = [], {}
    bar = Bar("at most", sizes.block_mb) if sizes.bars else None
    devices, first = max(sizes.populations[0], *sizes.cohorts), sizes.cohorts[0]
    for allocator in sizes.allocators:
        runs = {cohort: run_config(sizes, rule, devices, cohort, sizes.block_mb) for cohort in sizes.cohorts}
        found = _memories(sizes, runs, allocator)
        for cohort in sizes.cohorts[1:]:
            more = spread([memory[cohort]["rounds"] - memory[first]["rounds"] for memory in found])
            rows.append(Row(f"cohort, {rule}", f"peak MB, {_WORDS[allocator]}", f"{cohort} - {first}", more, bar))
        record[_WORDS[allocator]] = found
    return rows, record


# --- the command -----------------------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> None:
    options = _parser().parse_args(arguments)
    console, others = Console(), others_meter()
    sizes = Sizes("fmnist" if data.status("fmnist").state == "found" else "digits")
    sizes = quick(sizes) if options.quick else sizes
    console.print(
        f"{sizes.data}: rounds with {' and with '.join(map(_name, sizes.populations))} devices", highlight=False
    )
    rows, times = compare_times(sizes)
    more, memory = compare_memory(sizes)
    rows += more
    record: dict[str, Any] = {"sizes": asdict(sizes), "population": {**times, "megabytes": memory}}
    write(options.json, "population", rows, record, others())
    for rule in sizes.rules:
        console.print(f"{rule}: peak memory with cohorts of {', '.join(map(str, sizes.cohorts))}", highlight=False)
        more, record[f"cohort, {rule}"] = compare_cohorts(sizes, rule)
        rows += more
        write(options.json, "population", rows, record, others())
    title = f"Population, on {sizes.data}" + (" (quick: sizes too small to mean anything)" if options.quick else "")
    show(console, title, CAPTION, rows)
    warn_if_busy(console, others())


def _parser() -> argparse.ArgumentParser:
    description = (__doc__ or "").partition("\n")[0]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.population", description=description)
    parser.add_argument("--json", type=Path, required=True, metavar="FILE", help="where the numbers go")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: shows that it runs, measures nothing")
    return parser


if __name__ == "__main__":
    main()
