"""What PINE's proof is about, as numbers: its parameters, the lengths that follow, and the wires of its checks.

*Departures.* The draft's reference code lets a check's bound w be as large as w^2 <= 4000 q. That is unsound: with
B = 32 768 in field32 (w = 2^19), a vector of norm 8 B whose square is 16 q passes every check, as the results are about
6 B. What must fail half of the time is every vector with a square of q or more, so w must be a fraction of sqrt(q):
here at most 1 / sqrt(15). Single coordinates and equal ones, the shapes whose sums are most often near 0, then pass a
check with probability 1/2 at most. The draft's vectors are within this limit; the price is a coarser rounding.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sparsefed.core.errors import require
from sparsefed.secure.field import Elements, Field, kernels
from sparsefed.secure.proof import points_for, polynomial_length

CHECKS = 100  # of wraparound; the draft's, as is ALPHA
ALPHA = 8.7  # honest results are within ALPHA times the bound, except with probability 2^-100
ROOM = 15  # how often the square of a check's bound must fit into q
# In field32 every bit counts: a few checks more, of which a few may fail, allow a smaller ALPHA and a larger bound.
SMALL = {"checks": 112, "successes": 109, "alpha": 3.7}


@dataclass(frozen=True)
class Circuit:
    """The parameters of PINE: all that devices and servers must agree on, besides the servers' key."""

    field: Field
    d: int
    bound: int  # B, of the l2 norm of the integers
    chunk: int  # products that a call of the gadget sums up
    norm_chunk: int  # squares that a call of the gadget sums up
    proofs: int
    norm_proofs: int
    checks: int = CHECKS
    successes: int = CHECKS
    alpha: float = ALPHA

    def __post_init__(self) -> None:
        q, bound = self.field.modulus, self.wr_bound
        require(self.d >= 1 and self.bound >= 1, f"d is {self.d} and the bound {self.bound}; both must be at least 1")
        require(self.chunk >= 1 and self.norm_chunk >= 1, "a chunk must have at least one element")
        require(1 <= self.proofs <= 255 and 1 <= self.norm_proofs <= 255, "use 1 to 255 proofs of each kind")
        require(1 <= self.successes <= self.checks, "successes must be between 1 and the number of checks")
        require(
            3 * self.square + 2 < q and 2600 * bound <= q and ROOM * bound**2 <= q,
            f"a norm of {self.bound} is too large for {self.field.name}: a vector whose square wraps around could pass "
            "the checks against it; use fewer bits or field64",
        )

    @property
    def square(self) -> int:
        """The square of the bound, which the squared norm may not exceed."""
        return self.bound**2

    @property
    def square_bits(self) -> int:
        return self.square.bit_length()

    @property
    def wr_bound(self) -> int:
        """The power of 2 above alpha B that a wraparound check's result must not exceed."""
        return 1 << math.ceil(self.alpha * self.bound).bit_length()

    @property
    def wr_bits(self) -> int:
        return (2 * self.wr_bound - 1).bit_length()

    @property
    def encoded(self) -> int:
        """The elements that the wraparound checks depend on: the vector and the bits of its norm."""
        return self.d + 2 * self.square_bits

    @property
    def bits(self) -> int:
        return 2 * self.square_bits + (self.wr_bits + 1) * self.checks

    @property
    def measurement(self) -> int:
        """The elements of a share of the vector and all bits."""
        return self.d + self.bits

    @property
    def norm_calls(self) -> int:
        return -(-self.d // self.norm_chunk)

    @property
    def norm_points(self) -> int:
        return points_for(self.norm_calls)

    @property
    def norm_proof(self) -> int:
        return self.norm_chunk + polynomial_length(self.norm_points)

    @property
    def bit_calls(self) -> int:
        return -(-self.bits // self.chunk)

    @property
    def check_calls(self) -> int:
        return -(-self.checks // self.chunk)

    @property
    def calls(self) -> int:
        return self.bit_calls + self.check_calls

    @property
    def points(self) -> int:
        return points_for(self.calls)

    @property
    def rest_proof(self) -> int:
        return 2 * self.chunk + polynomial_length(self.points)

    @cached_property
    def proof(self) -> int:
        """The elements of a share of all proofs."""
        return self.norm_proofs * self.norm_proof + self.proofs * self.rest_proof

    @property
    def verifier(self) -> int:
        """The elements that a server sends to the other."""
        return self.norm_proofs * (self.norm_chunk + 2) + self.proofs * (2 * self.chunk + 2)

    def weighted(self, bits: Elements) -> int:
        """Return the number that (shares of) bits stand for, lowest first."""
        return sum(int(bit) << place for place, bit in enumerate(bits)) % self.field.modulus


def circuit_for(field: Field, d: int, bound: int) -> Circuit:
    """Return the circuit of the shortest report for this bound, with proofs that are false with 2^-40 at most.

    Challenges that a device can try offline (everything but the norm) get proofs down to 2^-94 or less.
    """
    norm_proofs, proofs = (1, 2) if field.size == 8 else (2, 5)
    probe = Circuit(field, d, bound, 1, 1, proofs, norm_proofs, **_checks(field))
    chunk = min(_chunks(probe.bits + probe.checks), key=lambda c: replace(probe, chunk=c).rest_proof)
    norm_chunk = min(_chunks(d), key=lambda c: c + polynomial_length(points_for(-(-d // c))))
    return replace(probe, chunk=chunk, norm_chunk=norm_chunk)


def _checks(field: Field) -> dict[str, Any]:
    return SMALL if field.size == 4 else {}


def largest_bound(field: Field) -> int:
    """Return the largest bound that `circuit_for` takes.

    >>> from sparsefed.secure.field import FIELD32, FIELD64
    >>> largest_bound(FIELD32), largest_bound(FIELD64)
    (4427, 123418600)
    """
    widest = 1 << (math.isqrt(field.modulus // ROOM).bit_length() - 1)
    alpha: float = _checks(field).get("alpha", ALPHA)
    return math.floor((widest - 1) / alpha)


def _chunks(inputs: int) -> list[int]:
    """Return the chunks worth a look: those that fill a power of 2 of points, with room for a call that is short."""
    return sorted({max(1, -(-inputs // max(1, 2**k - 1 - spare))) for k in range(1, 21) for spare in (0, 1, 2)})


class Statement(NamedTuple):
    """What the products must show, from a share of the bits and results; constants are divided among the servers."""

    bits: Elements
    bits_less_one: Elements
    errors: Elements  # [checks], z_k . x - w_k
    counted: Elements  # [checks], g
    range_error: int  # v + u - B^2
    count_error: int  # sum of g - successes


def statement(circuit: Circuit, bits: Elements, results: Elements, shares: int) -> Statement:
    """Return the statement about (a share of) bits and results.

    Args:
        circuit: the parameters.
        bits: of v, of u, and for each check of its result and then g.
        results: z_k . x.
        shares: the number of servers among which the inputs are shared.
    """
    field, n = circuit.field, 2 * circuit.square_bits
    part = pow(shares, -1, field.modulus)
    checks = bits[n:].reshape(circuit.checks, circuit.wr_bits + 1)
    counted = checks[:, -1].copy()
    v, u = circuit.weighted(bits[: circuit.square_bits]), circuit.weighted(bits[circuit.square_bits : n])
    return Statement(
        bits,
        field.sub(bits, np.full(len(bits), part, field.dtype)),
        field.sub(results, _claimed(circuit, checks, part)),
        counted,
        v + u - circuit.square * part,
        field.total(counted) - circuit.successes * part,
    )


def product_wires(circuit: Circuit, given: Statement, challenge: Elements, seeds: Elements) -> Elements:
    """Return the wires [P, 2 chunk] of "every bit is one" and of the wraparound checks, below a row of seeds."""
    field, n = circuit.field, len(given.bits)
    matrix = field.zeros(circuit.points, 2 * circuit.chunk)
    matrix[0] = seeds
    flat = matrix[1 : 1 + circuit.bit_calls].reshape(-1)
    flat[0 : 2 * n : 2] = field.mul(field.powers(int(challenge[0]), n), given.bits)
    flat[1 : 2 * n : 2] = given.bits_less_one
    flat = matrix[1 + circuit.bit_calls : 1 + circuit.calls].reshape(-1)
    flat[0 : 2 * circuit.checks : 2] = field.mul(field.powers(int(challenge[1]), circuit.checks), given.errors)
    flat[1 : 2 * circuit.checks : 2] = given.counted
    return matrix


def _claimed(circuit: Circuit, checks: Elements, part: int) -> Elements:
    """Return the results that the bits claim."""
    field, total = circuit.field, circuit.field.zeros(1, circuit.checks)
    places = field.of([1 << place for place in range(circuit.wr_bits)])[None, :]
    kernels().weighted_rows(checks[:, :-1].T.reshape(-1), places, total)
    return field.add(total[0], field.of([(1 - circuit.wr_bound) * part] * circuit.checks))


def bits_of(numbers: Sequence[int], count: int) -> npt.NDArray[np.uint8]:
    """Return the lowest bits of numbers [n, count], lowest first."""
    return np.array([[(number >> place) & 1 for place in range(count)] for number in numbers], np.uint8)
