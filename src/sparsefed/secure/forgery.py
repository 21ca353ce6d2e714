"""False reports: what a device may try that wants an over-long vector into the sum. For attacks and tests.

norm         the norm is claimed to be the bound
wraparound   the square of the norm is a multiple of q, so that it looks small in the field
bits         the "bits" of the norm are arbitrary field elements with the right sum
swap         the helper's share belongs to another report
replay       an earlier report, once more
truncated    a report cut off somewhere
corrupt      a valid report with changed bytes
"""

from __future__ import annotations

import math

import numpy as np

from sparsefed.core.errors import ConfigError, unknown
from sparsefed.core.threat import FORGERIES, Forgery
from sparsefed.secure import pine
from sparsefed.secure.circuit import Circuit
from sparsefed.secure.field import Elements, Integers, RejectedReport
from sparsefed.secure.two_servers import RoundTask, sealed_report, upload

NOTHING_TRIED = 8  # randomness that a forger draws until the wraparound checks pass


def forged(kind: Forgery, task: RoundTask, sender: int, values: Integers, draw: np.random.Generator) -> bytes:
    """Return a false report of this kind.

    Args:
        kind: one of FORGERIES; a replay is `upload` twice, and is made by whoever sends.
        task: the round.
        sender: who sends it.
        values: [d], too long; a forgery that does not depend on its length takes zeros instead.
        draw: for what is random about the forgery.
    """
    if kind not in FORGERIES:
        raise ConfigError(unknown("kind of forgery", kind, FORGERIES))
    if kind in ("norm", "wraparound", "bits"):
        return sealed_report(task, sender, _false_claim(kind, task.circuit, values))
    valid = np.zeros(task.circuit.d, np.int64)
    if kind == "swap":
        one, other = (pine.shard(task.circuit, valid, pine.fresh_nonce()) for _ in range(2))
        return sealed_report(task, sender, one._replace(helper=other.helper))
    report = upload(task, sender, valid)
    if kind == "truncated":
        return report[: int(draw.integers(len(report)))]
    return _changed(report, draw) if kind == "corrupt" else report


def _changed(report: bytes, draw: np.random.Generator) -> bytes:
    data = bytearray(report)
    for place in draw.integers(len(data), size=int(draw.integers(1, 5))):
        data[place] ^= int(draw.integers(1, 256))
    return bytes(data) if bytes(data) != report else bytes([report[0] ^ 1]) + report[1:]


def _false_claim(kind: str, circuit: Circuit, values: Integers) -> pine.PineReport:
    claims, vector = _CLAIMS[kind], values
    if kind == "wraparound":
        vector = wrapping(circuit, values)
    for _ in range(NOTHING_TRIED):
        try:
            return pine.shard(circuit, vector, pine.fresh_nonce(), claims=pine.Claims(claims, pine.wraparound_bits))
        except RejectedReport:
            continue
    return pine.shard(circuit, vector, pine.fresh_nonce(), claims=pine.Claims(claims, _all_counted))


def wrapping(circuit: Circuit, values: Integers) -> Integers:
    """Return a vector in the direction of another whose square is a multiple of q, as small a one as is possible."""
    q, spare = circuit.field.modulus, min(circuit.d, 14)
    wide = values.astype(np.float64)
    wide[circuit.d - spare :] = 0
    length = float(np.linalg.norm(wide)) or 1.0
    vector = np.rint(wide * (0.9 * math.sqrt(q) / length)).astype(np.int64)
    rest = -sum(int(v) ** 2 for v in vector) % q
    for place in range(circuit.d - spare, circuit.d):
        vector[place] = math.isqrt(rest)
        rest -= int(vector[place]) ** 2
    return vector


def _at_the_bound(circuit: Circuit, values: Integers) -> Elements:  # noqa: ARG001
    return pine.norm_claim(circuit, circuit.square, 0)


def _in_the_field(circuit: Circuit, values: Integers) -> Elements:
    square = sum(int(v) ** 2 for v in values.tolist()) % circuit.field.modulus
    return pine.norm_claim(circuit, square, circuit.square - square)


def _no_bits(circuit: Circuit, values: Integers) -> Elements:
    square = sum(int(v) ** 2 for v in values.tolist())
    claim = circuit.field.zeros(2 * circuit.square_bits)
    claim[[0, circuit.square_bits]] = circuit.field.of([square, circuit.square - square])
    return claim


def _all_counted(circuit: Circuit, results: np.ndarray[tuple[int], np.dtype[np.int64]]) -> Elements:
    """Claim that all checks have passed that must, with the lowest bits of their results."""
    bits = ((results + (circuit.wr_bound - 1))[:, None] >> np.arange(circuit.wr_bits)) & 1
    counted = (np.arange(circuit.checks) < circuit.successes)[:, None]
    return np.concatenate([bits, counted], 1).reshape(-1).astype(circuit.field.dtype)


_CLAIMS = {"norm": _at_the_bound, "wraparound": _in_the_field, "bits": _no_bits}
