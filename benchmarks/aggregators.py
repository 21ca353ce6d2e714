"""How long each rule takes, against the plain mean, ByzFL, Flower and torch.

    python -m benchmarks.aggregators --json FILE [--sizes 100x1000000,1000x100000] [--rules krum,...] [--repeats N]

In one process, interleaved: `sparsefed.aggregate` on a float32 tensor, checks and all; the plain mean of the same rows,
which nothing that reads them can beat; ByzFL's class of the same rule on a NumPy array or on a tensor, whichever one
run of each shows to be faster; Flower's functions; and torch's sort and median. Then the rules that cost O(d) on one
vector of a ResNet9. Results are ratios taken within a repeat, with their quartiles. Memory is handled as the system
does it, which is what the user of either library gets; --keep-freed-memory shows how much of a ratio that is.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.console import Console
from torch import Tensor

from benchmarks import vector_rules
from benchmarks.arguments import positive
from benchmarks.foreign import byzfl, flower
from benchmarks.machine import others_meter
from benchmarks.outcome import Bar, Row, show, warn_if_busy, write
from benchmarks.peers import VENV
from benchmarks.timing import Contestant, Sample, interleaved, ratio, seconds, timed
from sparsefed import aggregate
from sparsefed.core.errors import unknown
from sparsefed.core.malloc import keep_freed_memory
from sparsefed.core.rng import rng

CAPTION = """\
plain: rows.mean(0). A rule is timed through sparsefed.aggregate on a float32 tensor, screening of the updates included.
ByzFL: the faster of its NumPy and torch paths. A ratio is taken within each interleaved repeat; its bar is for the
median, and stands for n = 100, d = 1 000 000.""".replace("\n", " ")
BARS_AT = (100, 1_000_000)
F = 10

Action = Callable[[], object]


class Size(NamedTuple):
    """A cohort: n updates of d coordinates."""

    n: int
    d: int

    def __str__(self) -> str:
        return f"{self.n} x {self.d:,}".replace(",", " ")


@dataclass(frozen=True)
class Entry:
    """One rule, and who else has it."""

    name: str
    params: Mapping[str, Any] = field(default_factory=dict)
    label: str = ""
    byzfl: tuple[str, Mapping[str, Any]] | None = None  # class and parameters
    flower: Callable[[Any, list[Any]], object] | None = None
    torch: tuple[str, Callable[[Tensor], object]] | None = None
    plain: float | None = None  # bar: at most this many times the plain mean
    faster: float | None = None  # bar: at least this many times faster than ByzFL
    slow: bool = False  # Flower's takes minutes: timed once

    @property
    def title(self) -> str:
        return self.label or self.name


def _sorted(rows: Tensor) -> Tensor:
    return torch.sort(rows, dim=0).values


ENTRIES = (
    Entry("mean"),
    Entry("clipping", {"clip_norm": 1.0}),
    Entry(
        "trimmed_mean",
        {"f": 2},
        "trimmed_mean f = 2",
        ("TrMean", {"f": 2}),
        lambda module, rows: module.aggregate_trimmed_avg(rows, 2 / len(rows)),
        ("torch.sort", _sorted),
        plain=5,
        faster=3,
    ),
    Entry("trimmed_mean", {"f": F}, "trimmed_mean f = 10", ("TrMean", {"f": F}), plain=8, faster=2),
    Entry(
        "median",
        {},
        "",
        ("Median", {}),
        lambda module, rows: module.aggregate_median(rows),
        ("torch.median", lambda rows: torch.median(rows, dim=0).values),
        plain=10,
        faster=5,
    ),
    Entry(
        "krum",
        {"f": F},
        "",
        ("Krum", {"f": F}),
        lambda module, rows: module.aggregate_krum(rows, F, 0),
        faster=4,
        slow=True,
    ),
    Entry("multi_krum", {"f": F}, "", ("MultiKrum", {"f": F}), faster=4),
    Entry("bulyan", {"f": F}),
    Entry(
        "geometric_median",
        {"nu": 0.1, "iterations": 3, "tolerance": 0.0, "start": "zero"},
        "geometric_median, 3 steps",
        ("GeometricMedian", {"nu": 0.1, "T": 3}),
        faster=3,
    ),
    Entry("geometric_median", {}, "geometric_median, converged"),
    Entry(
        "centered_clipping",
        {"radius": 100.0, "iterations": 1},
        "centered_clipping, 1 step",
        ("CenteredClipping", {"L": 1, "tau": 100.0}),
        faster=3,
    ),
    Entry(
        "centered_clipping",
        {"radius": 100.0, "iterations": 3},
        "centered_clipping, 3 steps",
        ("CenteredClipping", {"L": 3, "tau": 100.0}),
        faster=3,
    ),
    Entry("mean", {"pre": [{"name": "nnm", "f": F}]}, "nnm, then mean"),
    Entry("mean", {"pre": ["bucketing"]}, "bucketing, then mean"),
    Entry("mean", {"pre": [{"name": "arc", "f": F}]}, "arc, then mean"),
    *(Entry(name) for name in ("foolsgold", "signguard", "flame", "lasa")),
    Entry("dnc", {"f": F}),
    Entry("rlr", {"threshold": F}),
    Entry("fltrust"),
)


# --- one size --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cohort:
    """The same numbers as each library wants them."""

    rows: Tensor  # [n, d]
    root: Tensor  # [d]

    def ours(self, entry: Entry) -> Action:
        more = {"root": self.root} if entry.name == "fltrust" else {}
        return lambda: aggregate(entry.name, self.rows, **entry.params, **more)

    def byzfl(self, entry: Entry, module: Any) -> dict[str, Action]:
        """Its rule on a NumPy array and on a tensor, made anew each time: some keep state."""
        assert entry.byzfl is not None
        name, params = entry.byzfl
        inputs = {"NumPy": self.rows.numpy(), "torch": self.rows}
        return {kind: partial(_fresh, getattr(module, name), params, given) for kind, given in inputs.items()}

    def flower(self, entry: Entry, module: Any) -> Action:
        assert entry.flower is not None
        function, listed = entry.flower, [([row], 1) for row in self.rows.numpy()]
        return lambda: function(module, listed)


def _fresh(rule: Callable[..., Any], params: Mapping[str, Any], rows: Any) -> object:
    return rule(**params)(rows)


def make_cohort(size: Size) -> Cohort:
    generator = rng(0, "benchmark-updates")
    rows = torch.from_numpy(generator.standard_normal((size.n, size.d), dtype="float32"))
    return Cohort(rows, rows[: max(1, size.n // 10)].mean(0))


class Others(NamedTuple):
    """The other libraries, where they are there."""

    byzfl: Any | None
    flower: Any | None


def contestants(cohort: Cohort, entries: Sequence[Entry], others: Others, repeats: int) -> dict[str, Contestant]:
    """By `who: rule`; ByzFL takes part with its faster path, Flower's slowest functions once."""
    found = {"plain": Contestant(timed(lambda: cohort.rows.mean(0)))}
    for entry in entries:
        found[f"ours: {entry.title}"] = Contestant(timed(cohort.ours(entry)))
        if entry.byzfl and others.byzfl:
            kind, action = _fastest(cohort.byzfl(entry, others.byzfl))
            found[f"ByzFL ({kind}): {entry.title}"] = Contestant(timed(action))
        if entry.flower and others.flower:
            action = cohort.flower(entry, others.flower)
            found[f"Flower: {entry.title}"] = Contestant(timed(action), repeats if entry.slow else 3)
        if entry.torch:
            name, function = entry.torch
            found[f"{name}: {entry.title}"] = Contestant(timed(partial(function, cohort.rows)), 3)
    return found


def _fastest(actions: Mapping[str, Action]) -> tuple[str, Action]:
    taken = {}
    for kind, action in actions.items():
        began = time.perf_counter()
        action()
        taken[kind] = time.perf_counter() - began
    best = min(taken, key=lambda kind: taken[kind])
    return best, actions[best]


def run_size(size: Size, entries: Sequence[Entry], others: Others, repeats: int) -> tuple[list[Row], dict[str, Any]]:
    """The rows of one size for the table, and everything behind them for the record."""
    cohort = make_cohort(size)
    taking_part = contestants(cohort, entries, others, repeats)
    samples = interleaved(taking_part, repeats)
    details = {"seconds": {name: seconds(samples, name)._asdict() for name in taking_part}, "samples": samples}
    return list(_rows(size, entries, list(taking_part), samples)), details


def _rows(size: Size, entries: Sequence[Entry], names: Sequence[str], samples: Sequence[Sample]) -> Iterator[Row]:
    barred = size == BARS_AT
    for entry in entries:
        ours = f"ours: {entry.title}"
        most = Bar("at most", entry.plain) if entry.plain and barred else None
        yield Row(str(size), "ours / plain", entry.title, ratio(samples, ours, "plain"), most)
        for name in names:
            who, _, title = name.partition(": ")
            if title == entry.title and who != "ours":
                least = Bar("at least", entry.faster) if entry.faster and barred and "ByzFL" in who else None
                yield Row(str(size), f"{who} / ours", entry.title, ratio(samples, name, ours), least)
    if {"ours: bulyan", "ours: krum"} <= {*names}:
        bulyan = ratio(samples, "ours: bulyan", "ours: krum")
        yield Row(str(size), "bulyan / krum, both ours", "f = 10", bulyan, Bar("at most", 3) if barred else None)


# --- the command -----------------------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> None:
    options = _parser().parse_args(arguments)
    console, idle = Console(), others_meter()
    others = Others(byzfl(options.peers), flower(options.peers))
    for name, module in others._asdict().items():
        if module is None:
            console.print(f"Going on without {name}: it is not in {options.peers}; `make peers` puts it there.")
    rows: list[Row] = []
    kept = options.keep_freed_memory and keep_freed_memory()
    details: dict[str, Any] = {"rows": "standard normal", "freed_memory_kept": kept, "sizes": {}}
    for size in [Size(50, 64)] if options.quick else options.sizes:
        console.print(f"{size}: {options.repeats} interleaved repeats")
        found, details["sizes"][str(size)] = run_size(size, options.rules, others, options.repeats)
        rows += found
        write(options.json, "aggregators", rows, details, idle())
    d = vector_rules.QUICK if options.quick else vector_rules.RESNET9
    console.print(f"one vector of {d}: {options.repeats} interleaved repeats")
    found, details["vector"] = vector_rules.run(d, options.repeats)
    rows += found
    write(options.json, "aggregators", rows, details, idle())
    show(console, "Rules" + (" (quick: sizes too small to mean anything)" if options.quick else ""), CAPTION, rows)
    warn_if_busy(console, idle())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.aggregators", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--json", type=Path, required=True, metavar="FILE", help="where the numbers go")
    parser.add_argument("--sizes", type=_sizes, default=[Size(*BARS_AT), Size(1000, 100_000)], help="NxD,NxD,...")
    parser.add_argument("--repeats", type=positive, default=9, metavar="N", help="interleaved repeats")
    parser.add_argument(
        "--keep-freed-memory",
        action="store_true",
        help="as the sparsefed command does, for both sides: large temporary arrays get much cheaper",
    )
    parser.add_argument("--rules", type=_entries, default=ENTRIES, help="some of the rules, by name: krum,median")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: shows that it runs, measures nothing")
    parser.add_argument("--peers", type=Path, default=VENV, metavar="VENV", help="the peers' environment")
    return parser


def _entries(text: str) -> tuple[Entry, ...]:
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in {entry.name for entry in ENTRIES}:
            raise argparse.ArgumentTypeError(unknown("rule", name, {entry.name for entry in ENTRIES}))
    return tuple(entry for entry in ENTRIES if entry.name in names)


def _sizes(text: str) -> list[Size]:
    sizes = []
    for part in text.split(","):
        n, _, d = part.strip().partition("x")
        if not (n.isdecimal() and d.isdecimal() and int(n) >= 4 * F + 3 and int(d) >= 1):
            raise argparse.ArgumentTypeError(f"'{part}' is no size; write for instance 100x1000000, n at least 43")
        sizes.append(Size(int(n), int(d)))
    return sizes


if __name__ == "__main__":
    main()
