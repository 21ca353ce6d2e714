"""The two prime fields of PINE (draft-irtf-cfrg-vdaf, Field64; draft-chen-cfrg-vdaf-pine, Field32) on NumPy vectors.

Elements are uint32 or uint64 below the modulus; on the wire they are little-endian. The kernels import numba, which is
slow to import, so they are imported on first use.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sparsefed.core.errors import ConfigError, SparseFedError, unknown

if TYPE_CHECKING:
    from types import ModuleType

Elements = npt.NDArray[Any]  # uint32 or uint64
Integers = npt.NDArray[Any]  # int32 or int64


class RejectedReport(SparseFedError):  # noqa: N818 - it is about the report, not about the code
    """A report, or a message about one, that is refused; the sentence says why."""


@functools.cache
def kernels() -> ModuleType:
    """Return the compiled kernels."""
    from sparsefed.secure import field_kernels

    return field_kernels


@dataclass(frozen=True)
class Field:
    """A prime field with roots of unity of order 2^k."""

    name: str
    modulus: int
    root: int  # of order `order`
    order: int
    dtype: type[np.uint32] | type[np.uint64]
    limbs: int  # of the wraparound checks, see `field_kernels.split`
    limb_base: int
    scale: int  # what a prepared constant is multiplied by: 2^32 in Montgomery's form, or 1

    @property
    def size(self) -> int:
        """The bytes of an element on the wire."""
        return int(np.dtype(self.dtype).itemsize)

    def zeros(self, *shape: int) -> Elements:
        return np.zeros(shape, self.dtype)

    def of(self, values: list[int]) -> Elements:
        """Return Python integers of any size as elements."""
        return np.array([value % self.modulus for value in values], self.dtype)

    def prepared(self, values: list[int]) -> Elements:
        """Return constants in the form in which `field_kernels.times` multiplies with them."""
        return self.of([value * self.scale for value in values])

    def add(self, a: Elements, b: Elements) -> Elements:
        out = np.empty_like(a)
        kernels().add_all(a, b, out)
        return out

    def sub(self, a: Elements, b: Elements) -> Elements:
        out = np.empty_like(a)
        kernels().sub_all(a, b, out)
        return out

    def mul(self, a: Elements, b: Elements) -> Elements:
        out = np.empty_like(a)
        kernels().mul_all(a, b, out)
        return out

    def powers(self, base: int, count: int) -> Elements:
        """Return 1, base, base^2, ...; `count` of them."""
        out = np.ones(count, self.dtype)
        kernels().powers_of(self.of([base]), out)
        return out

    def total(self, a: Elements) -> int:
        """Return the sum of elements."""
        low, high = (a & self.dtype(0xFFFF)).sum(dtype=np.uint64), (a >> self.dtype(16)).astype(np.uint64)
        if self.size == 8:
            middle, top = int((high & np.uint64(0xFFFF)).sum()), int((high >> np.uint64(16)).sum())
            return (int(low) + (middle << 16) + (top << 32)) % self.modulus
        return (int(low) + (int(high.sum()) << 16)) % self.modulus

    def from_signed(self, values: Integers) -> Elements:
        """Return integers between -q and q as elements."""
        out = np.empty(len(values), self.dtype)
        kernels().wrapped(values, np.uint64(self.modulus), out)
        return out

    def reduced(self, values: Integers) -> Elements:
        """Return integers of any size that int64 holds as elements."""
        return self.from_signed(values % self.modulus if self.size == 4 else values)

    def to_signed(self, a: Elements) -> npt.NDArray[np.int64]:
        """Return the integers nearest to 0 that elements stand for."""
        words = a.astype(np.uint64)
        negative = words > np.uint64(self.modulus // 2)
        return np.where(negative, words - np.uint64(self.modulus), words).view(np.int64)

    def encode(self, a: Elements) -> bytes:
        """Return the bytes of elements."""
        return a.astype(f"<u{self.size}", copy=False).tobytes()

    def decode(self, data: bytes | memoryview, what: str) -> Elements:
        """Return the elements of bytes; raise RejectedReport if the length or an element is impossible."""
        if len(data) % self.size:
            raise RejectedReport(f"{what} has {len(data)} bytes, which is no whole number of elements")
        a = np.frombuffer(data, f"<u{self.size}").astype(self.dtype)  # a copy that kernels may be compiled for once
        if len(a) and int(a.max()) >= self.modulus:
            raise RejectedReport(f"{what} has an element that is not below the modulus")
        return a


FIELD32 = Field("field32", 2**32 - 2**20 + 1, 3925978153, 2**20, np.uint32, 2, 2**16, 2**32)
FIELD64 = Field("field64", 2**64 - 2**32 + 1, pow(7, 2**32 - 1, 2**64 - 2**32 + 1), 2**32, np.uint64, 5, 2**15, 1)
FIELDS = {field.name: field for field in (FIELD32, FIELD64)}


def field_named(name: str) -> Field:
    """Return the field of that name."""
    if name not in FIELDS:
        raise ConfigError(unknown("field", name, FIELDS))
    return FIELDS[name]


class RootTable(NamedTuple):
    """The constants of transforms of P points; all but `points` prepared for `field_kernels.times`."""

    forward: Elements  # [max(P / 2, 1)], powers of a P-th root
    back: Elements  # of its inverse
    shift: Elements  # [P], powers of a 2P-th root over P, in bit-reversed order
    order: npt.NDArray[np.int64]  # [P], bit-reversed
    points: Elements  # [P], powers of the P-th root


@functools.cache
def transform(field: Field, size: int) -> RootTable:
    """Return the constants of transforms of this size, a power of 2."""
    if 2 * size > field.order:
        raise ConfigError(f"{field.name} has no transform of {size} points; choose longer chunks or field64")
    q = field.modulus
    g, g2 = pow(field.root, field.order // size, q), pow(field.root, field.order // (2 * size), q)
    over = pow(size, -1, q)
    bits = size.bit_length() - 1
    order = np.zeros(size, np.int64)
    for bit in range(bits):
        order |= ((np.arange(size) >> bit) & 1) << (bits - 1 - bit)
    half = max(size // 2, 1)
    shifts = [int(power) * over for power in field.powers(g2, size)[order]]
    return RootTable(
        field.prepared([int(power) for power in field.powers(g, half)]),
        field.prepared([int(power) for power in field.powers(pow(g, -1, q), half)]),
        field.prepared(shifts),
        order,
        field.powers(g, size),
    )


def values_at_roots(field: Field, coefficients: Elements, size: int) -> Elements:
    """Return the values of a polynomial at the roots of unity of this order, which may be below its degree."""
    folded = field.zeros(size)
    for start in range(0, len(coefficients), size):
        part = coefficients[start : start + size]
        folded[: len(part)] = field.add(folded[: len(part)].copy(), part)
    constants = transform(field, size)
    column = folded[constants.order][:, None].copy()
    kernels().to_values(column, constants.forward)
    return column[:, 0].copy()


def interpolated(field: Field, values: Elements) -> Elements:
    """Return the coefficients of the polynomial that has these values at the roots of unity."""
    size = len(values)
    constants = transform(field, size)
    column = values[:, None].copy()
    kernels().to_coefficients(column, constants.back)
    scaled = field.mul(column[:, 0].copy(), np.full(size, pow(size, -1, field.modulus), field.dtype))
    return scaled[constants.order]  # reversing bits twice changes nothing


def lagrange(field: Field, size: int, t: int) -> Elements:
    """Return the values at t of the polynomials that are 1 at one root of unity of this order and 0 at the others.

    Raises:
        RejectedReport: if t is a root itself, which happens to one random t in q / size.
    """
    q, points = field.modulus, transform(field, size).points
    power = pow(t, size, q)
    if power == 1:
        raise RejectedReport("the query point is a root of unity: an unlucky nonce, send the update again with another")
    away = field.sub(np.full(size, t, field.dtype), points)
    inverses = np.empty_like(away)
    kernels().invert_all(away, np.uint64(q - 2), inverses)
    scale = np.full(size, (power - 1) * pow(size, -1, q) % q, field.dtype)
    return field.mul(field.mul(points, inverses), scale)


def evaluated(field: Field, coefficients: Elements, t: int) -> Elements:
    """Return the value of a polynomial at t, as one element."""
    out = field.zeros(1)
    kernels().evaluate(coefficients, field.of([t]), out)
    return out
