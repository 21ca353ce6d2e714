"""What PINE's proof is about, as numbers: its parameters, the lengths that follow, and the wires of its checks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sparsefed.core.errors import require
from sparsefed.secure.field import Elements, Field
from sparsefed.secure.proof import points_for, polynomial_length

CHECKS = 100  # of wraparound, each passed by a vector that wraps around with probability 1/2 at most
ALPHA = 8.7  # honest results are within ALPHA times the bound, except with probability 2^-100


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
        require(1 <= self.chunk and 1 <= self.norm_chunk, "a chunk must have at least one element")
        require(1 <= self.proofs <= 255 and 1 <= self.norm_proofs <= 255, "use 1 to 255 proofs of each kind")
        require(1 <= self.successes <= self.checks, "successes must be between 1 and the number of checks")
        require(
            3 * self.square + 2 < q and 2600 * bound <= q and bound**2 / q <= 4000,
            f"a norm of {self.bound} is too large for {self.field.name}: its square could wrap around; use fewer bits",
        )

    @property
    def square(self) -> int:
        """B^2."""
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

    Challenges that a device can try offline (everything but the norm) get proofs down to 2^-100.
    """
    probe = Circuit(field, d, bound, 1, 1, 1, 1)
    chunk = min(_chunks(probe.bits + probe.checks), key=lambda c: replace(probe, chunk=c).rest_proof)
    norm_chunk = min(_chunks(d), key=lambda c: c + polynomial_length(points_for(-(-d // c))))
    norm_proofs, proofs = (1, 2) if field.size == 8 else (2, 5)
    return Circuit(field, d, bound, chunk, norm_chunk, proofs, norm_proofs)


def _chunks(inputs: int) -> list[int]:
    """Return the chunks worth a look: those that fill a power of 2 of points, with room for a call that is short."""
    return sorted({max(1, -(-inputs // max(1, 2**k - 1 - spare))) for k in range(1, 21) for spare in (0, 1, 2)})


class Wires(NamedTuple):
    """The inputs of the products, with two checks that are linear and need no product."""

    matrix: Elements  # [P, 2 chunk]; the first row is for seeds
    range_error: int  # v + u - B^2
    count_error: int  # sum of g - successes


def product_wires(circuit: Circuit, bits: Elements, results: Elements, challenge: Elements, shares: int) -> Wires:
    """Return the wires of "every bit is one" and of the wraparound checks, from (a share of) bits and results.

    Args:
        circuit: the parameters.
        bits: of v, of u, and for each check of its result and then g.
        results: z_k . x.
        challenge: [3] random elements: for the bits, for the checks, for their combination.
        shares: the number of servers among which the inputs are shared; constants are divided by it.
    """
    field, chunk, n = circuit.field, circuit.chunk, 2 * circuit.square_bits
    part = pow(shares, -1, field.modulus)
    matrix = field.zeros(circuit.points, 2 * chunk)
    flat = matrix[1 : 1 + circuit.bit_calls].reshape(-1)
    flat[0 : 2 * len(bits) : 2] = field.mul(field.powers(int(challenge[0]), len(bits)), bits)
    flat[1 : 2 * len(bits) : 2] = field.sub(bits, field.of([part] * len(bits)))
    checks = bits[n:].reshape(circuit.checks, circuit.wr_bits + 1)
    counted = checks[:, -1].copy()
    error = field.sub(results, _claimed(circuit, checks, part))
    flat = matrix[1 + circuit.bit_calls : 1 + circuit.calls].reshape(-1)
    flat[0 : 2 * circuit.checks : 2] = field.mul(field.powers(int(challenge[1]), circuit.checks), error)
    flat[1 : 2 * circuit.checks : 2] = counted
    v, u = circuit.weighted(bits[: circuit.square_bits]), circuit.weighted(bits[circuit.square_bits : n])
    return Wires(matrix, v + u - circuit.square * part, field.total(counted) - circuit.successes * part)


def _claimed(circuit: Circuit, checks: Elements, part: int) -> Elements:
    """Return the results that the bits claim."""
    field = circuit.field
    weights = field.of([1 << place for place in range(circuit.wr_bits)])
    total = field.of([(1 - circuit.wr_bound) * part] * circuit.checks)
    for place in range(circuit.wr_bits):
        column = checks[:, place].copy()
        total = field.add(total, field.mul(column, np.full(len(column), weights[place], field.dtype)))
    return total


def bits_of(numbers: Sequence[int], count: int) -> npt.NDArray[np.uint8]:
    """Return the lowest bits of numbers [n, count], lowest first."""
    return np.array([[(number >> place) & 1 for place in range(count)] for number in numbers], np.uint8)
