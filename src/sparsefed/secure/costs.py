"""What a proven norm costs, measured on this machine: the numbers of the exhibit `proof-costs`."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from sparsefed.secure import codec, pine
from sparsefed.secure.circuit import Circuit
from sparsefed.secure.field import FIELD32, FIELD64, Field, Integers
from sparsefed.secure.rounding import choose_rounding, rounded

SIZES = {"CNN, 95 366": 95_366, "ResNet9, 6 567 488": 6_567_488}
FLOAT32 = 4  # bytes
OFTEN = 400_000  # coordinates up to which a time is the median of several


class Costs(NamedTuple):
    """The cost of one report: seconds of cpu for a device, milliseconds for a server, megabytes of 100 proofs."""

    prove_seconds: float
    verify_ms: float
    proofs_of_100_mb: float
    upload_more: float  # beyond the vector in float32, as a share of it
    rounding_error: float  # of one update, as a share of L


def measured(d: int, field: Field, repeats: int | None = None) -> Costs:
    """Return the costs of one report of a random vector at the bound, in seconds of cpu, after one to warm up."""
    rounding = choose_rounding(d, 1.0, 100, field)
    circuit, nonce, key = rounding.circuit, bytes(pine.NONCE), bytes(range(32))
    values = rounded(np.random.default_rng(0).normal(size=d), rounding)
    report = _warm(rounding.circuit, values)
    count = repeats or (5 if d <= OFTEN else 1)
    prove = median(_cpu(lambda: pine.shard(circuit, values, nonce)) for _ in range(count))
    verify = median(
        max(
            _cpu(lambda: pine.prepare(circuit, key, pine.LEADER, nonce, report.public, report.leader)),
            _cpu(lambda: pine.prepare(circuit, key, pine.HELPER, nonce, report.public, report.helper)),
        )
        for _ in range(count)
    )
    proofs = field.size * (circuit.bits + circuit.proof) + 6 * 32
    more = codec.upload_bytes(circuit) / (FLOAT32 * d) - 1
    return Costs(prove, 1000 * verify, 100 * proofs / 1e6, more, rounding.error)


def _warm(circuit: Circuit, values: Integers) -> pine.PineReport:
    report = pine.shard(circuit, values, bytes(pine.NONCE))
    shares: list[pine.LeaderShare | pine.HelperShare] = [report.leader, report.helper]
    for server, share in enumerate(shares):
        pine.prepare(circuit, bytes(range(32)), server, bytes(pine.NONCE), report.public, share)
    return report


def _cpu(action: Callable[[], object]) -> float:
    began = time.process_time()
    action()
    return time.process_time() - began


def rows() -> list[dict[str, Any]]:
    """Return the costs for two models in both fields, as an exhibit's rows."""
    return [
        {"cell": {"model": model, "field": field.name}, "metrics": measured(d, field)._asdict()}
        for model, d in SIZES.items()
        for field in (FIELD32, FIELD64)
    ]
