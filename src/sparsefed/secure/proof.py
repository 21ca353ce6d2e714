"""Fully linear proofs on shared data (Boneh et al. 2019; draft-irtf-cfrg-vdaf, section "Fully Linear Proofs").

A circuit calls one gadget G many times. Column by column, the inputs of the calls are the values of a *wire polynomial*
at the roots of unity 1, w, w^2, ...; at 1 stands a random seed. The proof is the seeds and the polynomial p = G(wires).
Who holds a share of the inputs and of the proof evaluates both at a random point t, which is linear; the two sums then
show whether p(t) = G(wires(t)), and the outputs of the calls are p(w), p(w^2), ...

    sum of squares    G(x) = sum_c x_c^2          the norm
    sum of products   G(x) = sum_j x_2j x_2j+1    everything else
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sparsefed.secure.field import (
    Elements,
    Field,
    evaluated,
    interpolated,
    kernels,
    lagrange,
    transform,
    values_at_roots,
)


def points_for(calls: int) -> int:
    """Return P, the number of points for so many calls and the seed.

    >>> points_for(3), points_for(4)
    (4, 8)
    """
    return 1 << calls.bit_length()


def polynomial_length(points: int) -> int:
    """Return the coefficients of the gadget's polynomial, whose degree is 2 (P - 1)."""
    return 2 * points - 1


def prove_squares(field: Field, x: Elements, seeds: Elements, points: int) -> list[Elements]:
    """Return the polynomial of sums of squares for each row of seeds, of one proof each.

    The wires are transformed once for all proofs: they differ in the seed alone, which adds l_k s_c to the value in
    column c at the k-th odd point, l the polynomial that is 1 at the first point and 0 at the others.

    Args:
        field: the field.
        x: [d], the inputs of the calls, one after the other.
        seeds: [proofs, inputs of a call].
        points: P.
    """
    constants = transform(field, points)
    squares, cross = field.zeros(points), field.zeros(len(seeds), points)
    forms = constants.back, constants.forward, constants.shift
    kernels().odd_squares(x, seeds, *forms, squares, cross)
    rows = field.zeros(points - 1)
    kernels().row_squares(x, seeds.shape[1], rows)
    first = _first_at_odd_points(field, points)
    proofs = []
    for s, seed in enumerate(seeds):
        own = field.zeros(1)
        kernels().row_squares(seed, len(seed), own)
        twice = field.mul(first, field.add(cross[s], cross[s]))
        odd = field.add(field.add(squares, twice), field.mul(field.mul(first, first), np.repeat(own, points)))
        proofs.append(_polynomial(field, np.concatenate([own, rows]), odd))
    return proofs


def prove_products(field: Field, wires: Elements) -> Elements:
    """Return the polynomial of sums of products; wires [P, 2 C], the seeds in the first row."""
    constants = transform(field, len(wires))
    even, odd, moved = field.zeros(len(wires)), field.zeros(len(wires)), wires.copy()
    kernels().row_products(wires, even)
    kernels().to_odd_points(moved, constants.back, constants.forward, constants.shift)
    kernels().row_products(moved, odd)
    return _polynomial(field, even, odd)


def _polynomial(field: Field, even: Elements, odd: Elements) -> Elements:
    values = np.empty(2 * len(even), field.dtype)
    values[0::2], values[1::2] = even, odd
    return interpolated(field, values)[:-1]


def _first_at_odd_points(field: Field, points: int) -> Elements:
    """Return (x^P - 1) / (P (x - 1)) at the odd 2P-th roots of unity, where x^P = -1."""
    odd = transform(field, 2 * points).points[1::2].copy()
    below, inverses = field.sub(odd, field.of([1] * points)), np.empty_like(odd)
    kernels().invert_all(below, np.uint64(field.modulus - 2), inverses)
    return field.mul(inverses, field.of([-2 * pow(points, -1, field.modulus)] * points))


def outputs(field: Field, polynomial: Elements, points: int, calls: int) -> Elements:
    """Return the outputs of the calls that a share of a proof claims."""
    return values_at_roots(field, polynomial, points)[1 : 1 + calls]


def query_squares(
    field: Field, x: Elements, seeds: Sequence[Elements], polynomials: Sequence[Elements], points: int, at: list[int]
) -> list[Elements]:
    """Return, for each proof, the wires and the gadget's polynomial at its query point."""
    weights = np.stack([lagrange(field, points, t) for t in at])
    wires = field.zeros(len(at), len(seeds[0]))
    kernels().weighted_rows(x, weights[:, 1:].copy(), wires)
    answers = []
    for i, t in enumerate(at):
        seeded = field.mul(seeds[i], np.full(len(seeds[i]), weights[i, 0], field.dtype))
        answers.append(np.concatenate([field.add(wires[i], seeded), evaluated(field, polynomials[i], t)]))
    return answers


def query_products(field: Field, wires: Elements, polynomial: Elements, t: int) -> Elements:
    """Return the wires [P, 2 C] and the gadget's polynomial at the query point."""
    weights, at = lagrange(field, len(wires), t)[None, :], field.zeros(1, wires.shape[1])
    kernels().weighted_rows(wires.reshape(-1), weights, at)
    return np.concatenate([at[0], evaluated(field, polynomial, t)])


def squares_hold(field: Field, answer: Elements) -> bool:
    """Return whether p(t) is the sum of squares of the wires at t."""
    out, wires = field.zeros(1), answer[:-1].copy()
    kernels().row_squares(wires, len(wires), out)
    return bool(out[0] == answer[-1])


def products_hold(field: Field, answer: Elements) -> bool:
    """Return whether p(t) is the sum of products of the wires at t."""
    out = field.zeros(1)
    kernels().row_products(answer[None, :-1].copy(), out)
    return bool(out[0] == answer[-1])
