"""Rounding of updates to integers, so that the rounded norm is proven and sums are exact.

An update u becomes x = round(u / unit), and the norm bound L becomes B = L / unit, an integer. A field with modulus q
bounds B twice: nothing that wraps around may pass the proof (`circuit.largest_bound`), and the sum of n updates must
not wrap around, n B < q / 2. Rounding moves an update by about sqrt(d / 12) / B of L.

    field32   B up to 4 427      2 % of L at d = 10^5, 17 % at 6.6 10^6
    field64   B up to 1.2 10^8   less than 10^-5 of L up to d = 10^7, for twice the bytes

*Departures.* The draft's units are powers of 2 and it rounds down; here the unit is L / B, with the largest B, and
rounding is to the nearest integer, without bias and with half the error. The bytes follow from the integers either way.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sparsefed.core.errors import ConfigError, require
from sparsefed.secure.circuit import Circuit, circuit_for, largest_bound
from sparsefed.secure.field import FIELD32, FIELD64, Field, Integers
from sparsefed.secure.pine import squared_norm

MOST_ERROR = 0.05  # of L, that rounding may move one update by; field64 is chosen beyond it
USELESS = 1.0  # an error at which nothing of an update is left

Floats = npt.NDArray[np.floating]


@dataclass(frozen=True)
class Rounding:
    """How updates become integers in a round."""

    field: Field
    d: int
    limit: float  # L, the l2 norm that an update may have
    bound: int  # B, of the integers
    unit: float  # what an integer of 1 stands for

    @property
    def circuit(self) -> Circuit:
        """The parameters of the proof for this bound."""
        return _circuit(self.field, self.d, self.bound)

    @property
    def error(self) -> float:
        """The expected l2 error of one rounded update, as a share of L."""
        return math.sqrt(self.d / 12) / self.bound


@functools.lru_cache(maxsize=64)
def _circuit(field: Field, d: int, bound: int) -> Circuit:
    return circuit_for(field, d, bound)


def choose_rounding(
    d: int, limit: float, clients: int, field: Field | None = None, bits: int | None = None
) -> Rounding:
    """Return the finest rounding that fits a model and a cohort.

    Args:
        d: coordinates of an update.
        limit: L, the norm bound; 0 lets nothing but zeros through.
        clients: the most updates that are added up.
        field: the field; by default field32 if rounding costs at most 5 % of L there, else field64.
        bits: of B; by default as many as fit.

    Raises:
        ConfigError: if they do not fit.
    """
    require(math.isfinite(limit) and limit >= 0, f"the norm bound is {limit}; secure aggregation needs a finite one")
    require(d >= 1 and clients >= 1, f"there are {d} coordinates and {clients} clients; both must be at least 1")
    if field is not None:
        return _in_field(field, d, limit, clients, bits)
    small = _finest(FIELD32, clients)
    fits = small >= 1 and math.sqrt(d / 12) / small <= MOST_ERROR and (bits is None or small >> (bits - 1))
    return _in_field(FIELD32 if fits else FIELD64, d, limit, clients, bits)


def _finest(field: Field, clients: int) -> int:
    """Return the largest B for which neither squares nor sums of so many clients wrap around."""
    return min(largest_bound(field), (field.modulus // 2 - 1) // clients)


def _in_field(field: Field, d: int, limit: float, clients: int, bits: int | None) -> Rounding:
    bound = _finest(field, clients)
    require(bound >= 1, f"a sum of {clients} updates does not fit into {field.name}; use fewer clients or field64")
    if bits is not None:
        require(
            1 <= bits <= bound.bit_length(),
            f"secure.bits = {bits} does not fit: the norms of {clients} clients have room for 1 to "
            f"{bound.bit_length()} bits in {field.name}",
        )
        bound = min(bound, (1 << bits) - 1)
    rounding = Rounding(field, d, limit, bound, limit / bound)
    require(
        rounding.error < USELESS,
        f"rounding {d} coordinates to a norm of {bound} would leave nothing of an update; use more bits or field64",
    )
    return rounding


def rounded(update: Floats, rounding: Rounding) -> Integers:
    """Return an update as integers whose norm is at most B: clipped to L, rounded, and shrunk where rounding lengthens.

    Raises:
        ConfigError: if the update is not finite.
    """
    wide = update.astype(np.float64)
    norm = math.sqrt(float(np.dot(wide, wide)))
    if not math.isfinite(norm):
        raise ConfigError("the update is not finite, so it cannot be rounded; leave it out")
    scale = 0.0 if rounding.unit == 0 else 1 / rounding.unit
    scale *= rounding.limit / norm if norm > rounding.limit else 1.0
    while True:
        values = np.rint(wide * scale)
        square = squared_norm(values)
        if square <= rounding.bound**2:
            return values.astype(np.int32 if rounding.field.size == 4 else np.int64)
        scale *= min(rounding.bound / math.sqrt(square), 1 - 2.0**-40)


def restored(total: Integers, rounding: Rounding) -> npt.NDArray[np.float64]:
    """Return the real numbers that a sum of rounded updates stands for."""
    return total.astype(np.float64) * rounding.unit
