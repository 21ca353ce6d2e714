"""CPU kernels over the two fields of PINE: numba, each compiled for uint32 (Field32) and uint64 (Field64) elements.

    Field32   q = 2^32 - 2^20 + 1   products of two elements fit into 64 bits; in transforms they are Montgomery's
    Field64   q = 2^64 - 2^32 + 1   products are taken in halves of 32 bits; 2^64 = 2^32 - 1 (mod q) reduces them

The functions `add`, `sub`, `mul`, `times` and `gather` have one body for each type of element, chosen when a kernel is
compiled. Nothing else here depends on the field.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import types
from numba.extending import overload

from sparsefed.kernels.vector_kernels import compiled

Elements = npt.NDArray[Any]  # uint32 or uint64, each below the modulus
Words = npt.NDArray[np.uint64]
Limbs = npt.NDArray[np.int16]  # [limbs, 4, d / 4]
Bytes = npt.NDArray[np.uint8]
Sums = npt.NDArray[np.int64]

Q32, Q64 = 2**32 - 2**20 + 1, 2**64 - 2**32 + 1
COLUMNS = 16  # of a matrix that are transformed at once, so that they stay in the cache
TILE = 1024  # bytes of ternary coefficients, of 4 coordinates each, that meet a cached piece of the vector

_Q32, _Q64 = np.uint64(Q32), np.uint64(Q64)
_MINUS_INVERSE = np.uint64(-pow(Q32, -1, 2**32) % 2**32)
_R32 = np.uint64(2**32 % Q32)
_LOW = np.uint64(2**32 - 1)  # also 2^64 modulo Q64
_32 = np.uint64(32)
_0, _1 = np.uint64(0), np.uint64(1)


def add(a: Any, b: Any) -> Any:
    """Return a + b in the field of their type."""
    raise NotImplementedError("for compiled code")


def sub(a: Any, b: Any) -> Any:
    """Return a - b in the field of their type."""
    raise NotImplementedError("for compiled code")


def mul(a: Any, b: Any) -> Any:
    """Return a b in the field of their type."""
    raise NotImplementedError("for compiled code")


def times(a: Any, w: Any) -> Any:
    """Return a times a constant that `Field.prepared` has put into the form that is fastest to multiply with."""
    raise NotImplementedError("for compiled code")


def gather(low: Words, high: Words, place: int, a: Any, b: Any) -> None:
    """Add a b to the sum at a place; `settle` gives its value."""
    raise NotImplementedError("for compiled code")


def settle(low: Words, high: Words, place: int, like: Any) -> Any:
    """Return the value of a sum of `gather` as an element of the type of `like`."""
    raise NotImplementedError("for compiled code")


Body = Callable[..., Any]


@overload(add)
def _add(a: Any, b: Any) -> Body:  # noqa: ARG001
    def small(a: Any, b: Any) -> Any:
        s = np.uint64(a) + np.uint64(b)
        return np.uint32(s - _Q32 if s >= _Q32 else s)

    def large(a: Any, b: Any) -> Any:
        s = a + b
        return s - _Q64 if s < a or s >= _Q64 else s

    return small if a == types.uint32 else large


@overload(sub)
def _sub(a: Any, b: Any) -> Body:  # noqa: ARG001
    def small(a: Any, b: Any) -> Any:
        s = np.uint64(a) + (_Q32 - np.uint64(b))
        return np.uint32(s - _Q32 if s >= _Q32 else s)

    def large(a: Any, b: Any) -> Any:
        return a - b if a >= b else a + (_Q64 - b)

    return small if a == types.uint32 else large


@overload(mul)
def _mul(a: Any, b: Any) -> Body:  # noqa: ARG001
    def small(a: Any, b: Any) -> Any:
        return np.uint32((np.uint64(a) * np.uint64(b)) % _Q32)

    def large(a: Any, b: Any) -> Any:
        a0, a1, b0, b1 = a & _LOW, a >> _32, b & _LOW, b >> _32
        corner = a0 * b0
        left = a0 * b1 + (corner >> _32)
        right = a1 * b0 + (left & _LOW)
        high = a1 * b1 + (left >> _32) + (right >> _32)
        low = (right << _32) | (corner & _LOW)
        top = high >> _32  # 2^96 = -1 (mod q)
        s = low - top
        if low < top:
            s -= _LOW
        more = (high & _LOW) * _LOW
        r = s + more
        if r < more:
            r += _LOW
        return r - _Q64 if r >= _Q64 else r

    return small if a == types.uint32 else large


@overload(times)
def _times(a: Any, w: Any) -> Body:  # noqa: ARG001
    def small(a: Any, w: Any) -> Any:
        t = np.uint64(a) * np.uint64(w)
        m = ((t & _LOW) * _MINUS_INVERSE) & _LOW
        # t + m q may need 65 bits; its low half is 0, with a carry unless both low halves are 0.
        s = (t >> _32) + ((m * _Q32) >> _32) + (_1 if (t & _LOW) != _0 else _0)
        return np.uint32(s - _Q32 if s >= _Q32 else s)

    def large(a: Any, w: Any) -> Any:
        return mul(a, w)

    return small if a == types.uint32 else large


@overload(gather)
def _gather(low: Any, high: Any, place: Any, a: Any, b: Any) -> Body:  # noqa: ARG001
    def small(low: Any, high: Any, place: Any, a: Any, b: Any) -> None:
        t = np.uint64(a) * np.uint64(b)
        low[place] += t & _LOW
        high[place] += t >> _32

    def large(low: Any, high: Any, place: Any, a: Any, b: Any) -> None:  # noqa: ARG001
        low[place] = add(low[place], mul(a, b))

    return small if a == types.uint32 else large


@overload(settle)
def _settle(low: Any, high: Any, place: Any, like: Any) -> Body:  # noqa: ARG001
    def small(low: Any, high: Any, place: Any, like: Any) -> Any:  # noqa: ARG001
        return np.uint32((low[place] % _Q32 + (high[place] % _Q32) * _R32) % _Q32)

    def large(low: Any, high: Any, place: Any, like: Any) -> Any:  # noqa: ARG001
        return low[place]

    return small if like == types.uint32 else large


# --- vectors ---------------------------------------------------------------------------------------------------------


@compiled
def add_all(a: Elements, b: Elements, out: Elements) -> None:
    """Write a + b; `out` may be one of them."""
    for i in range(out.shape[0]):
        out[i] = add(a[i], b[i])


@compiled
def sub_all(a: Elements, b: Elements, out: Elements) -> None:
    """Write a - b; `out` may be one of them."""
    for i in range(out.shape[0]):
        out[i] = sub(a[i], b[i])


@compiled
def mul_all(a: Elements, b: Elements, out: Elements) -> None:
    """Write the products of the elements of a and b."""
    for i in range(out.shape[0]):
        out[i] = mul(a[i], b[i])


@compiled
def wrapped(values: Elements, modulus: np.uint64, out: Elements) -> None:
    """Write signed integers as elements: the modulus is added to those below 0."""
    for i in range(out.shape[0]):
        v = np.int64(values[i])
        out[i] = np.uint64(v) + (modulus if v < 0 else _0)  # wraps around 2^64


@compiled
def powers_of(base: Elements, out: Elements) -> None:
    """Write 1, r, r^2, ... where r is the only element of `base`; `out` begins with its 1."""
    for i in range(1, out.shape[0]):
        out[i] = mul(out[i - 1], base[0])


@compiled
def usable_words(words: Elements, modulus: np.uint64, out: Elements, count: Sums) -> None:
    """Copy the words below the modulus, in order, until `out` is full; `count[0]` is how many it holds."""
    n = count[0]
    for i in range(words.shape[0]):
        if n < out.shape[0] and np.uint64(words[i]) < modulus:
            out[n] = words[i]
            n += 1
    count[0] = n


@compiled
def evaluate(coefficients: Elements, t: Elements, out: Elements) -> None:
    """Write the value of a polynomial at t[0], by Horner's rule, to out[0]."""
    s = coefficients[-1]
    for i in range(coefficients.shape[0] - 2, -1, -1):
        s = add(mul(s, t[0]), coefficients[i])
    out[0] = s


@compiled
def invert_all(a: Elements, q_minus_2: np.uint64, out: Elements) -> None:
    """Write the inverses of elements, none of them 0, with one inversion for all (Montgomery's trick)."""
    s = a[0]
    for i in range(1, a.shape[0]):
        out[i] = s
        s = mul(s, a[i])
    base, e, started, r = s, q_minus_2, False, s
    while e > _0:
        if e & _1:
            r = mul(r, base) if started else base
            started = True
        base = mul(base, base)
        e >>= _1
    for i in range(a.shape[0] - 1, 0, -1):
        out[i] = mul(r, out[i])
        r = mul(r, a[i])
    out[0] = r


# --- transforms ------------------------------------------------------------------------------------------------------


@compiled
def to_coefficients(a: Elements, roots: Elements) -> None:
    """Transform the columns of a [P, C] in place by decimation in frequency: P times the coefficients, bits reversed.

    `roots` are the prepared powers of the inverse of a P-th root of unity.
    """
    half, step = a.shape[0] // 2, 1
    while half >= 1:
        for start in range(0, a.shape[0], 2 * half):
            for k in range(half):
                w = roots[k * step]
                upper, lower = a[start + k], a[start + k + half]
                for c in range(a.shape[1]):
                    u, v = upper[c], lower[c]
                    upper[c] = add(u, v)
                    lower[c] = times(sub(u, v), w)
        half //= 2
        step *= 2


@compiled
def to_values(a: Elements, roots: Elements) -> None:
    """Transform the columns of a [P, C], coefficients in bit-reversed order, in place to values at the P-th roots."""
    half, step = 1, a.shape[0] // 2
    while half < a.shape[0]:
        for start in range(0, a.shape[0], 2 * half):
            for k in range(half):
                w = roots[k * step]
                upper, lower = a[start + k], a[start + k + half]
                for c in range(a.shape[1]):
                    u, v = upper[c], times(lower[c], w)
                    upper[c] = add(u, v)
                    lower[c] = sub(u, v)
        half *= 2
        step //= 2


@compiled
def to_odd_points(a: Elements, back: Elements, roots: Elements, shift: Elements) -> None:
    """Replace values at the P-th roots, column by column, by values at the other 2P-th roots.

    `shift` [P]: the prepared powers of the first 2P-th root, in bit-reversed order, each over P.
    """
    to_coefficients(a, back)
    for k in range(a.shape[0]):
        row, w = a[k], shift[k]
        for c in range(a.shape[1]):
            row[c] = times(row[c], w)
    to_values(a, roots)


# --- gadgets ---------------------------------------------------------------------------------------------------------


@compiled
def row_squares(x: Elements, columns: int, out: Elements) -> None:
    """Write the sum of squares of each row of x, read as a matrix of so many columns whose last row may be short."""
    low, high = np.zeros(1, np.uint64), np.zeros(1, np.uint64)
    for k in range(out.shape[0]):
        low[0], high[0] = _0, _0
        for i in range(k * columns, min((k + 1) * columns, x.shape[0])):
            gather(low, high, 0, x[i], x[i])
        out[k] = settle(low, high, 0, x[0])


@compiled
def row_products(w: Elements, out: Elements) -> None:
    """Write, for each row of w [P, 2 C], the sum of the products of its neighbours 2 j and 2 j + 1."""
    low, high = np.zeros(1, np.uint64), np.zeros(1, np.uint64)
    for k in range(out.shape[0]):
        low[0], high[0] = _0, _0
        for j in range(0, w.shape[1], 2):
            gather(low, high, 0, w[k, j], w[k, j + 1])
        out[k] = settle(low, high, 0, w[k, 0])


@compiled
def odd_squares(
    x: Elements, seeds: Elements, back: Elements, roots: Elements, shift: Elements, squares: Elements, cross: Elements
) -> None:
    """Write what the norm proofs need at the odd points, of the wires whose first row is 0 and whose others are x.

    Args:
        x: [d], the rows of C elements from the second on; the last may be short, and rows after it are 0.
        seeds: [proofs, C], the first row of each proof.
        back, roots, shift: the transforms' constants, see `to_odd_points`.
        squares: [P], becomes the sums of squares over the columns.
        cross: [proofs, P], becomes the sums of products with the seeds.
    """
    points, columns = squares.shape[0], seeds.shape[1]
    low, high = np.zeros((1 + len(seeds), points), np.uint64), np.zeros((1 + len(seeds), points), np.uint64)
    tile = np.zeros((points, COLUMNS), x.dtype)
    for first in range(0, columns, COLUMNS):
        width = min(COLUMNS, columns - first)
        tile[:] = 0
        for k in range(1, points):
            begin = (k - 1) * columns + first
            for c in range(min(width, x.shape[0] - begin)):
                tile[k, c] = x[begin + c]
        to_odd_points(tile, back, roots, shift)
        for k in range(points):
            for c in range(width):
                gather(low[0], high[0], k, tile[k, c], tile[k, c])
        for s in range(len(seeds)):
            for k in range(points):
                for c in range(width):
                    gather(low[1 + s], high[1 + s], k, tile[k, c], seeds[s, first + c])
    for k in range(points):
        squares[k] = settle(low[0], high[0], k, x[0])
        for s in range(len(seeds)):
            cross[s, k] = settle(low[1 + s], high[1 + s], k, x[0])


@compiled
def weighted_rows(x: Elements, weights: Elements, out: Elements) -> None:
    """Write sum_k weights[p, k] row_k of x for every p, x read as rows of `out.shape[1]` columns, the last short."""
    columns = out.shape[1]
    for p in range(out.shape[0]):
        low, high = np.zeros(columns, np.uint64), np.zeros(columns, np.uint64)
        for k in range(weights.shape[1]):
            w = weights[p, k]
            for c in range(min(columns, x.shape[0] - k * columns)):
                gather(low, high, c, x[k * columns + c], w)
        for c in range(columns):
            out[p, c] = settle(low, high, c, x[0])


# --- the wraparound checks -------------------------------------------------------------------------------------------


@compiled
def split(x: Elements, modulus: np.uint64, limbs: Limbs) -> None:
    """Write x [d] as limbs of 16 bits [limbs, d or more], products of which have instructions of their own.

    Two limbs of base 2^16 hold the residue of an element of Field32 that is nearest to 0; five limbs of base 2^15 hold
    one of Field64.
    """
    for i in range(x.shape[0]):
        if limbs.shape[0] == 2:
            v = np.int64(x[i])
            if v > np.int64(modulus) // 2:
                v -= np.int64(modulus)
            low = np.int16(v & 0xFFFF)
            limbs[0, i] = low
            limbs[1, i] = np.int16((v - np.int64(low)) >> 16)
        else:
            word = np.uint64(x[i])
            for b in range(limbs.shape[0]):
                limbs[b, i] = np.int16(word & np.uint64(0x7FFF))
                word >>= np.uint64(15)


@compiled
def ternary_sums(limbs: Limbs, bits: Bytes, table: Words, out: Sums) -> None:
    """Add to out [checks, limbs] the dot products of each limb with each row of coefficients.

    Args:
        limbs: [limbs, 4 w], 0 beyond the last coordinate.
        bits: [checks, w], four coefficients a byte.
        table: [256], the four coefficients of each byte, as int16 side by side.
        out: where the sums are added.
    """
    words = np.empty(TILE, np.uint64)
    signs = words.view(np.int16)
    for first in range(0, bits.shape[1], TILE):
        n = min(TILE, bits.shape[1] - first)
        for g in range(bits.shape[0]):
            row = bits[g, first : first + n]
            for i in range(n):
                words[i] = table[row[i]]
            for b in range(limbs.shape[0]):
                piece = limbs[b, 4 * first : 4 * (first + n)]
                s = np.int32(0)  # at most 4 * TILE * 2^15
                for i in range(4 * n):
                    s = np.int32(s + np.int32(np.int32(piece[i]) * np.int32(signs[i])))
                out[g, b] += s
