"""PINE: a device splits its vector between two servers and proves that its l2 norm is small (Rothblum et al. 2023).

Byte-compatible with the vectors of draft-chen-cfrg-vdaf-pine-01 (unfinished), for two servers and its XOF of
HMAC-SHA256 and AES-128. With integers x in [-q/2, q/2]^d, the *encoded vector* and the bound B, the proof shows

    bits          v and u, of so many bits each, the bits of the next line, and g_1 ... g_r in {0, 1}
    range         v + u = B^2
    norm          sum_i x_i^2 = v (mod q)                              so ||x||^2 <= B^2, if nothing wraps around
    wraparound    g_k (z_k . x - w_k) = 0 and sum_k g_k = successes     z_k ternary and random, w_k of few bits

A vector whose squares wrap around q has |z_k . x| too large for w_k about half of the time.

`shard` is the device's part, `prepare`, `decide` and `finish` the servers'. No transport, no rounding, no state.
"""

from __future__ import annotations

import functools
import secrets
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sparsefed.core.errors import ConfigError
from sparsefed.secure import proof
from sparsefed.secure.circuit import Circuit, Statement, bits_of, product_wires, statement
from sparsefed.secure.field import Elements, Field, Integers, RejectedReport, kernels
from sparsefed.secure.xof import SEED, Xof

LEADER, HELPER = 0, 1
VERSION = 1
IDS = {"field32": 0xFFFF1005, "field64": 0xFFFF1004}
NONCE = 16  # bytes
RANDOM = 7 * SEED  # bytes of randomness of a report

# What a pseudorandom stream is for, the last part of its domain separation tag.
MEASUREMENT, PROOFS, JOINT, PROVE, QUERY, JOINT_SEED, JOINT_PART, WR, WR_SEED, WR_PART = range(1, 11)


class PublicShare(NamedTuple):
    """The part of a report that both servers get: the hashes of both shares, which fix the proof's challenges."""

    wr_parts: tuple[bytes, bytes]
    joint_parts: tuple[bytes, bytes]


class LeaderShare(NamedTuple):
    """The leader's share of a vector, its bits and its proofs, in full."""

    measurement: Elements
    proofs: Elements
    wr_blind: bytes
    joint_blind: bytes


class HelperShare(NamedTuple):
    """The helper's share, as seeds from which it is expanded: 128 bytes."""

    measurement_seed: bytes
    proofs_seed: bytes
    wr_blind: bytes
    joint_blind: bytes


class PineReport(NamedTuple):
    """The report of a device."""

    nonce: bytes
    public: PublicShare
    leader: LeaderShare
    helper: HelperShare


class VerifierShare(NamedTuple):
    """One server's answers to the queries, sent to the other."""

    answers: Elements
    wr_part: bytes
    joint_part: bytes


class PreparedShare(NamedTuple):
    """A server's memory of a report between `prepare` and `finish`."""

    out_share: Elements  # [d]
    seeds: bytes  # the challenges that it used


class Claims(NamedTuple):
    """The functions by which a device states what it proves; false ones are for tests and attacks."""

    norm: Callable[[Circuit, Integers], Elements]
    wraparound: Callable[[Circuit, npt.NDArray[np.int64]], Elements]


def norm_bits(circuit: Circuit, values: Integers) -> Elements:
    """Return the bits of ||x||^2 and of B^2 - ||x||^2; raise ConfigError if that is negative."""
    square = squared_norm(values)
    if square > circuit.square:
        raise ConfigError(
            f"the squared norm of the rounded update is {square}, above the bound {circuit.square}; "
            "clip it with sparsefed.secure.rounding.rounded"
        )
    return norm_claim(circuit, square, circuit.square - square)


def norm_claim(circuit: Circuit, square: int, rest: int) -> Elements:
    """Return the bits of two numbers, the claimed square of the norm and what is left to the bound."""
    both = bits_of([square, rest], circuit.square_bits)
    return both.reshape(-1).astype(circuit.field.dtype)


def squared_norm(values: Integers) -> int:
    """Return the exact squared norm of integers; each must be below 2^31 in size, and the sum below 2^63."""
    wide = values.astype(np.int64)
    return int(np.dot(wide, wide))


def wraparound_bits(circuit: Circuit, results: npt.NDArray[np.int64]) -> Elements:
    """Return, for each check, the bits of its result and whether it counts; the first `successes` that pass do."""
    passed = (results > -circuit.wr_bound) & (results <= circuit.wr_bound)
    counted = passed & (np.cumsum(passed) <= circuit.successes)
    if int(counted.sum()) != circuit.successes:
        raise RejectedReport("too few wraparound checks passed: draw new randomness and try again")
    bits = ((results + (circuit.wr_bound - 1))[:, None] >> np.arange(circuit.wr_bits)) & 1
    return np.concatenate([bits, counted[:, None]], 1).reshape(-1).astype(circuit.field.dtype)


HONEST = Claims(norm_bits, wraparound_bits)


def fresh_nonce() -> bytes:
    """Return a nonce, never to be used again."""
    return secrets.token_bytes(NONCE)


# --- the device ------------------------------------------------------------------------------------------------------


def shard(
    circuit: Circuit, values: Integers, nonce: bytes, random: bytes | None = None, claims: Claims = HONEST
) -> PineReport:
    """Split a vector of integers into two shares and prove that its norm is at most the bound.

    Args:
        circuit: the parameters of the proof.
        values: [d], signed; `rounding.rounded` makes them of an update.
        nonce: 16 bytes that were never used before.
        random: 224 bytes; by default from the operating system. Anyone who knows them knows the vector.
        claims: what the device claims; for tests.

    Raises:
        ConfigError: if the norm is above the bound.
    """
    seeds = _cut(secrets.token_bytes(RANDOM) if random is None else random, [SEED] * 7)
    helper, blinds, prover_seed = HelperShare(*seeds[:4]), seeds[4:6], seeds[6]
    field, encoded = circuit.field, circuit.encoded
    x = field.from_signed(values)
    head = np.concatenate([x, claims.norm(circuit, values)])
    theirs = _helper_measurement(circuit, helper)
    ours = field.zeros(circuit.measurement)
    kernels().sub_all(head, theirs[:encoded], ours[:encoded])
    wr_parts = _parts(circuit, WR_PART, nonce, (blinds[0], helper.wr_blind), (ours[:encoded], theirs[:encoded]))
    results = wraparound_results(circuit, x, _seed_of(circuit, WR_SEED, wr_parts))
    tail = claims.wraparound(circuit, field.to_signed(results))
    kernels().sub_all(tail, theirs[encoded:], ours[encoded:])
    joint_parts = _parts(circuit, JOINT_PART, nonce, (blinds[1], helper.joint_blind), (ours, theirs))
    joint = _joint_randomness(circuit, _seed_of(circuit, JOINT_SEED, joint_parts))
    proofs = _prove(circuit, x, np.concatenate([head[circuit.d :], tail]), results, joint, prover_seed)
    proofs = field.sub(proofs, _helper_proofs(circuit, helper))
    public = PublicShare(wr_parts, joint_parts)
    return PineReport(nonce, public, LeaderShare(ours, proofs, blinds[0], blinds[1]), helper)


def _prove(
    circuit: Circuit, x: Elements, bits: Elements, results: Elements, joint: Elements, prover_seed: bytes
) -> Elements:
    """Return the proofs of the norm and then those of the rest, one after the other."""
    field = circuit.field
    counts = bytes([circuit.norm_proofs, circuit.proofs])
    stream = Xof(prover_seed, _tag(circuit, PROVE), counts)
    norm_seeds = circuit.norm_proofs * circuit.norm_chunk
    seeds = stream.vector(field, norm_seeds + 2 * circuit.chunk * circuit.proofs)
    first = seeds[:norm_seeds].reshape(circuit.norm_proofs, circuit.norm_chunk)
    given = statement(circuit, bits, results, shares=1)
    parts: list[Elements] = []
    for seed, polynomial in zip(first, proof.prove_squares(field, x, first, circuit.norm_points), strict=True):
        parts += [seed, polynomial]
    for seed, challenge in zip(seeds[norm_seeds:].reshape(circuit.proofs, -1), joint, strict=True):
        parts += [seed, proof.prove_products(field, product_wires(circuit, given, challenge, seed))]
    return np.concatenate(parts)


# --- the servers -----------------------------------------------------------------------------------------------------


def prepare(
    circuit: Circuit, key: bytes, server: int, nonce: bytes, public: PublicShare, share: LeaderShare | HelperShare
) -> tuple[PreparedShare, VerifierShare]:
    """Return what a server remembers of a report and what it sends to the other server about it.

    Args:
        circuit: the parameters of the proof.
        key: 32 bytes that the servers share and no device knows.
        server: LEADER or HELPER.
        nonce: the report's.
        public: the report's public share.
        share: the server's own share.

    Raises:
        RejectedReport: if the share has the wrong length, or the nonce is unlucky.
    """
    measurement, proofs = _expanded(circuit, share)
    x, bits = measurement[: circuit.d], measurement[circuit.d :]
    wr_part = _part(circuit, WR_PART, server, share.wr_blind, nonce, measurement[: circuit.encoded])
    wr_seed = _seed_of(circuit, WR_SEED, _with(public.wr_parts, server, wr_part))
    results = wraparound_results(circuit, x, wr_seed)
    joint_part = _part(circuit, JOINT_PART, server, share.joint_blind, nonce, measurement)
    joint_seed = _seed_of(circuit, JOINT_SEED, _with(public.joint_parts, server, joint_part))
    joint = _joint_randomness(circuit, joint_seed)
    answers = _query(circuit, key, nonce, x, bits, results, joint, proofs)
    return PreparedShare(x, wr_seed + joint_seed), VerifierShare(answers, wr_part, joint_part)


def _query(
    circuit: Circuit,
    key: bytes,
    nonce: bytes,
    x: Elements,
    bits: Elements,
    results: Elements,
    joint: Elements,
    proofs: Elements,
) -> Elements:
    counts = bytes([circuit.norm_proofs, circuit.proofs])
    points = Xof(key, _tag(circuit, QUERY), counts, nonce).vector(circuit.field, circuit.norm_proofs + circuit.proofs)
    at, cut = [int(t) for t in points], circuit.norm_proofs * circuit.norm_proof
    norm = _query_norm(circuit, x, bits, proofs[:cut], at[: circuit.norm_proofs])
    given = statement(circuit, bits, results, shares=2)
    rest = zip(proofs[cut:].reshape(circuit.proofs, -1), joint, at[circuit.norm_proofs :], strict=True)
    return np.concatenate([*norm, *(_query_rest(circuit, given, *one) for one in rest)])


def _query_norm(circuit: Circuit, x: Elements, bits: Elements, proofs: Elements, at: list[int]) -> list[Elements]:
    field, chunk, points = circuit.field, circuit.norm_chunk, circuit.norm_points
    each = proofs.reshape(circuit.norm_proofs, -1)
    seeds, polynomials = [row[:chunk] for row in each], [row[chunk:] for row in each]
    claimed = circuit.weighted(bits[: circuit.square_bits])
    answers = proof.query_squares(field, x, seeds, polynomials, points, at)
    parts = []
    for polynomial, answer in zip(polynomials, answers, strict=True):
        found = field.total(proof.outputs(field, polynomial, points, circuit.norm_calls))
        parts += [field.of([claimed - found]), answer]
    return parts


def _query_rest(circuit: Circuit, given: Statement, one: Elements, challenge: Elements, t: int) -> Elements:
    field, q, r = circuit.field, circuit.field.modulus, int(challenge[2])
    seeds, polynomial = one[: 2 * circuit.chunk], one[2 * circuit.chunk :]
    found = proof.outputs(field, polynomial, circuit.points, circuit.calls)
    in_bits, in_checks = field.total(found[: circuit.bit_calls]), field.total(found[circuit.bit_calls :])
    value = in_bits + r * given.range_error + r * r % q * in_checks + r * r % q * r % q * given.count_error
    wires = product_wires(circuit, given, challenge, seeds)
    return np.concatenate([field.of([value]), proof.query_products(field, wires, polynomial, t)])


def decide(circuit: Circuit, shares: Sequence[VerifierShare]) -> bytes:
    """Return the message that both servers finish with, if the report is valid.

    Raises:
        RejectedReport: if it is not.
    """
    field = circuit.field
    if any(len(share.answers) != circuit.verifier for share in shares):
        raise RejectedReport(f"an answer to the queries has not {circuit.verifier} elements")
    answers = field.add(shares[LEADER].answers, shares[HELPER].answers)
    cut = circuit.norm_proofs * (circuit.norm_chunk + 2)
    for answer in answers[:cut].reshape(circuit.norm_proofs, -1):
        if answer[0] or not proof.squares_hold(field, answer[1:]):
            raise RejectedReport("the norm is not what the report claims")
    for answer in answers[cut:].reshape(circuit.proofs, -1):
        if answer[0] or not proof.products_hold(field, answer[1:]):
            raise RejectedReport("the proof that the norm is within the bound is false")
    wr = _seed_of(circuit, WR_SEED, (shares[LEADER].wr_part, shares[HELPER].wr_part))
    joint = _seed_of(circuit, JOINT_SEED, (shares[LEADER].joint_part, shares[HELPER].joint_part))
    return wr + joint


def finish(prepared: PreparedShare, message: bytes) -> Elements:
    """Return the server's share of the accepted vector [d].

    Raises:
        RejectedReport: if the device lied about the hash of the other share, so that challenges could be chosen.
    """
    if message != prepared.seeds:
        raise RejectedReport("the challenges do not follow from the shares")
    return prepared.out_share


def aggregate(field: Field, d: int, shares: Iterable[Elements]) -> Elements:
    """Return the sum of a server's shares [d]."""
    total = field.zeros(d)
    for share in shares:
        kernels().add_all(total, share, total)
    return total


def unshard(field: Field, totals: Sequence[Elements]) -> npt.NDArray[np.int64]:
    """Return the sum of all accepted vectors from both servers' sums; exact while it is below q / 2 everywhere."""
    return field.to_signed(functools.reduce(field.add, totals))


# --- parts of both ---------------------------------------------------------------------------------------------------


def wraparound_results(circuit: Circuit, x: Elements, seed: bytes) -> Elements:
    """Return z_k . x in the field for the r random ternary vectors of a seed."""
    field, width = circuit.field, -(-circuit.d // 4)
    limbs = np.zeros((field.limbs, 4 * width), np.int16)
    kernels().split(x, np.uint64(field.modulus), limbs)
    sums, done = np.zeros((circuit.checks, field.limbs), np.int64), 0
    for rows in Xof(seed, _tag(circuit, WR)).rows(circuit.checks, width):
        kernels().ternary_sums(limbs, rows, _ternary_table(), sums[done : done + len(rows)])
        done += len(rows)
    results = field.zeros(circuit.checks)
    for limb in range(field.limbs):
        place = np.full(circuit.checks, pow(field.limb_base, limb, field.modulus), field.dtype)
        results = field.add(results, field.mul(field.reduced(sums[:, limb]), place))
    return results


@functools.cache
def _ternary_table() -> npt.NDArray[np.uint64]:
    """Return the coefficients of each byte: two bits each, lowest first; 00 is -1, 01 and 10 are 0, 11 is 1."""
    pairs = (np.arange(256)[:, None] >> np.arange(0, 8, 2)) & 3
    signs = ((pairs & 1) + (pairs >> 1) - 1).astype(np.int16)
    return np.ascontiguousarray(signs).view(np.uint64).reshape(256)


def _tag(circuit: Circuit, usage: int) -> bytes:
    return bytes([VERSION]) + IDS[circuit.field.name].to_bytes(4, "big") + usage.to_bytes(2, "big")


def _part(circuit: Circuit, usage: int, server: int, blind: bytes, nonce: bytes, share: Elements) -> bytes:
    wire = share.astype(f"<u{circuit.field.size}", copy=False)
    return Xof(blind, _tag(circuit, usage), bytes([server]), nonce, wire.data).bytes(SEED)


def _parts(
    circuit: Circuit, usage: int, nonce: bytes, blinds: tuple[bytes, bytes], shares: tuple[Elements, Elements]
) -> tuple[bytes, bytes]:
    first, second = (
        _part(circuit, usage, server, blinds[server], nonce, shares[server]) for server in (LEADER, HELPER)
    )
    return first, second


def _with(parts: tuple[bytes, bytes], server: int, own: bytes) -> tuple[bytes, bytes]:
    """Return the parts with a server's own in its place, whatever the device claimed it to be."""
    return (own, parts[1]) if server == LEADER else (parts[0], own)


def _seed_of(circuit: Circuit, usage: int, parts: tuple[bytes, bytes]) -> bytes:
    return Xof(bytes(SEED), _tag(circuit, usage), b"".join(parts)).bytes(SEED)


def _joint_randomness(circuit: Circuit, seed: bytes) -> Elements:
    stream = Xof(seed, _tag(circuit, JOINT), bytes([circuit.proofs]))
    return stream.vector(circuit.field, 3 * circuit.proofs).reshape(circuit.proofs, 3)


def _helper_measurement(circuit: Circuit, share: HelperShare) -> Elements:
    stream = Xof(share.measurement_seed, _tag(circuit, MEASUREMENT), bytes([HELPER]))
    return stream.vector(circuit.field, circuit.measurement)


def _helper_proofs(circuit: Circuit, share: HelperShare) -> Elements:
    binder = bytes([circuit.norm_proofs, circuit.proofs, HELPER])
    return Xof(share.proofs_seed, _tag(circuit, PROOFS), binder).vector(circuit.field, circuit.proof)


def _expanded(circuit: Circuit, share: LeaderShare | HelperShare) -> tuple[Elements, Elements]:
    if isinstance(share, HelperShare):
        return _helper_measurement(circuit, share), _helper_proofs(circuit, share)
    if len(share.measurement) != circuit.measurement or len(share.proofs) != circuit.proof:
        raise RejectedReport(f"a leader share has not {circuit.measurement} + {circuit.proof} elements")
    return share.measurement, share.proofs


def _cut(data: bytes, lengths: Sequence[int]) -> list[bytes]:
    if len(data) != sum(lengths):
        raise ConfigError(f"{len(data)} bytes were given where {sum(lengths)} are needed")
    stops = np.cumsum(lengths)
    return [data[stop - length : stop] for stop, length in zip(stops.tolist(), lengths, strict=True)]
