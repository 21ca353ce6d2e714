"""What a proven norm costs a device and each server, in seconds of cpu.

    python -m benchmarks.secure --json FILE [--repeats N] [--quick]

In one process, interleaved: a device that shares an update and proves its norm, each server that checks it, and as the
reference what no implementation of this protocol can do without: the hashes of the share and the pseudorandom bits of
the wraparound checks (two HMAC-SHA256 of the share, AES-128 in counter mode), by the same library. Cpu time, because
the bars are for it; ratios within a repeat.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from rich.console import Console

from benchmarks.arguments import usual
from benchmarks.machine import others_meter
from benchmarks.outcome import Bar, Row, show, warn_if_busy, write
from benchmarks.timing import Contestant, Sample, Spread, interleaved, ratio, spread
from sparsefed.secure import codec, pine
from sparsefed.secure.field import FIELD32, FIELD64, Field
from sparsefed.secure.rounding import Rounding, choose_rounding, rounded
from sparsefed.secure.xof import Xof

CASES = {"cnn": 95_366, "resnet9": 6_567_488}
REPEATS = {"cnn": 15, "resnet9": 3}
LIMITS = {"cnn": (40.0, 12.0, 6.0), "resnet9": (1200.0, 300.0, 0.5)}  # ms of a device, of a server; upload in percent
CAPTION = """\
device: share and prove. server: check one report (the slower of leader and helper). reference: two SHA-256 of the share
and the AES stream of the checks. A bar is for the median.""".replace("\n", " ")


def of_cpu(action: Callable[[], object]) -> Callable[[], float]:
    """The action as a contestant that counts seconds of cpu."""

    def run() -> float:
        began = time.process_time()
        action()
        return time.process_time() - began

    return run


def reference(rounding: Rounding) -> Callable[[], object]:
    """The hashes and the random bits that a server needs for a report."""
    circuit = rounding.circuit
    share, width = bytes(circuit.field.size * circuit.measurement), -(-circuit.d // 4)

    def step() -> object:
        for _ in Xof(bytes(32), b"reference").rows(circuit.checks, width):
            pass
        return [hashlib.sha256(share).digest() for _ in range(2)]

    return step


def milliseconds(samples: Sequence[Sample], name: str) -> Spread:
    """The milliseconds of cpu of one contestant."""
    return spread([1000 * sample[name] for sample in samples])


def run_case(name: str, d: int, field: Field, repeats: int, barred: bool) -> tuple[list[Row], dict[str, Any]]:
    """The rows for the table, and everything behind them for the record."""
    rounding, nonce, key = choose_rounding(d, 1.0, 100, field), bytes(16), bytes(range(32))
    circuit, values = rounding.circuit, rounded(np.random.default_rng(0).normal(size=d), rounding)
    report = pine.shard(circuit, values, nonce)
    taking_part = {
        "device": Contestant(of_cpu(lambda: pine.shard(circuit, values, nonce))),
        "leader": Contestant(of_cpu(lambda: pine.prepare(circuit, key, 0, nonce, report.public, report.leader))),
        "helper": Contestant(of_cpu(lambda: pine.prepare(circuit, key, 1, nonce, report.public, report.helper))),
        "reference": Contestant(of_cpu(reference(rounding))),
    }
    samples = interleaved(taking_part, repeats)
    limits = LIMITS[name] if barred else (None, None, None)
    bars = [None if limit is None else Bar("at most", limit) for limit in limits]
    more = 100 * (codec.upload_bytes(circuit) / (4 * d) - 1)
    rows = [
        Row(name, "device, ms of cpu", field.name, milliseconds(samples, "device"), bars[0]),
        Row(name, "leader, ms of cpu", field.name, milliseconds(samples, "leader"), bars[1]),
        Row(name, "helper, ms of cpu", field.name, milliseconds(samples, "helper"), bars[1]),
        Row(name, "device / reference", field.name, ratio(samples, "device", "reference")),
        Row(name, "helper / reference", field.name, ratio(samples, "helper", "reference")),
        Row(name, "upload beyond float32, %", field.name, spread([more]), bars[2]),
        Row(name, "rounding error, % of L", field.name, spread([100 * rounding.error])),
    ]
    return rows, {"samples": samples, "between_servers": codec.between_servers(circuit)}


def main(arguments: Sequence[str] | None = None) -> None:
    options = usual("secure", __doc__).parse_args(arguments)
    console, others = Console(), others_meter()
    details: dict[str, Any] = {"vectors": "random, at the bound", "models": {}}
    rows: list[Row] = []
    for name, d in CASES.items():
        for field in (FIELD32, FIELD64):
            size, repeats = (500, 2) if options.quick else (d, options.repeats or REPEATS[name])
            barred = field is FIELD32 and not options.quick
            found, details["models"][f"{name} {field.name}"] = run_case(name, size, field, repeats, barred)
            rows += found
            write(options.json, "secure", rows, details, others())
    title = "Proven norms" + (" (quick: sizes too small to mean anything)" if options.quick else "")
    show(console, title, CAPTION, rows)
    warn_if_busy(console, others())


if __name__ == "__main__":
    main()
