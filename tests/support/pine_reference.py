"""PINE once more, in plain Python integers from its definition: loops and interpolation, one element at a time."""

from __future__ import annotations

import hashlib
import hmac
import math
from collections.abc import Iterator, Sequence
from typing import Any

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

Q = {"field32": 2**32 - 2**20 + 1, "field64": 2**64 - 2**32 + 1}
ROOT = {"field32": (3925978153, 2**20), "field64": (pow(7, 2**32 - 1, Q["field64"]), 2**32)}
ID = {"field32": 0xFFFF1005, "field64": 0xFFFF1004}
SIZE = {"field32": 4, "field64": 8}


def stream(seed: bytes, tag: bytes, *binder: bytes) -> Iterator[int]:
    """The bytes of the XOF, block by block with a counter."""
    digest = hmac.new(seed, bytes([len(tag)]) + tag + b"".join(binder), hashlib.sha256).digest()
    key, counter = digest[:16], int.from_bytes(digest[16:], "big")
    while True:
        block = Cipher(algorithms.AES(key), modes.ECB()).encryptor()
        yield from block.update((counter % 2**128).to_bytes(16, "big"))
        counter += 1


def elements(field: str, bytes_: Iterator[int], count: int) -> list[int]:
    found: list[int] = []
    while len(found) < count:
        word = int.from_bytes(bytes(next(bytes_) for _ in range(SIZE[field])), "little")
        if word < Q[field]:
            found.append(word)
    return found


def encoded(field: str, values: Sequence[int]) -> bytes:
    return b"".join(value.to_bytes(SIZE[field], "little") for value in values)


def roots(field: str, size: int) -> list[int]:
    g, order = ROOT[field]
    return [pow(g, order // size * k, Q[field]) for k in range(size)]


def interpolate(field: str, values: Sequence[int]) -> list[int]:
    """The coefficients of the polynomial with these values at the roots of unity, by the sum of its definition."""
    q, n = Q[field], len(values)
    points, over = roots(field, n), pow(n, -1, q)
    return [sum(value * pow(points[k], -j % n, q) for k, value in enumerate(values)) * over % q for j in range(n)]


def value_at(field: str, coefficients: Sequence[int], t: int) -> int:
    return sum(c * pow(t, k, Q[field]) for k, c in enumerate(coefficients)) % Q[field]


def product(field: str, a: Sequence[int], b: Sequence[int]) -> list[int]:
    out = [0] * (len(a) + len(b) - 1)
    for i, x in enumerate(a):
        for j, y in enumerate(b):
            out[i + j] = (out[i + j] + x * y) % Q[field]
    return out


def points_for(calls: int) -> int:
    size = 1
    while size < 1 + calls:
        size *= 2
    return size


def gadget(field: str, rows: list[list[int]], pairs: bool) -> list[int]:
    """The polynomial of the gadget on wires [P][inputs]: sums of squares, or of products of neighbours."""
    columns = [interpolate(field, list(column)) for column in zip(*rows, strict=True)]
    terms = zip(columns[::2], columns[1::2], strict=True) if pairs else zip(columns, columns, strict=True)
    total = [0] * (2 * len(rows) - 1)
    for a, b in terms:
        total = [(x + y) % Q[field] for x, y in zip(total, product(field, a, b), strict=True)]
    return total


class Pine:
    """The protocol for two servers; parameters as in the draft's vectors."""

    def __init__(self, field: str, d: int, bound: int, chunk: int, norm_chunk: int, **more: Any) -> None:
        self.field, self.q, self.d, self.bound, self.chunk, self.norm_chunk = (
            field,
            Q[field],
            d,
            bound,
            chunk,
            norm_chunk,
        )
        self.proofs, self.norm_proofs = more["proofs"], more["norm_proofs"]
        self.checks, self.successes = more["checks"], more["successes"]
        self.square_bits = len(bin(bound * bound)) - 2
        self.w = 1
        while self.w < math.ceil(more["alpha"] * bound) + 1:
            self.w *= 2
        self.wr_bits = len(bin(2 * self.w - 1)) - 2

    def tag(self, usage: int) -> bytes:
        return bytes([1]) + ID[self.field].to_bytes(4, "big") + usage.to_bytes(2, "big")

    def hash(self, usage: int, seed: bytes, *binder: bytes) -> bytes:
        made = stream(seed, self.tag(usage), *binder)
        return bytes(next(made) for _ in range(32))

    def bits(self, number: int, count: int) -> list[int]:
        return [(number >> k) & 1 for k in range(count)]

    def dots(self, x: Sequence[int], seed: bytes) -> list[int]:
        made, width = stream(seed, self.tag(8)), -(-self.d // 4)
        out = []
        for _ in range(self.checks):
            row = [next(made) for _ in range(width)]
            z = [
                ((row[i // 4] >> 2 * (i % 4)) & 1) + ((row[i // 4] >> (2 * (i % 4) + 1)) & 1) - 1 for i in range(self.d)
            ]
            out.append(sum(a * b for a, b in zip(z, x, strict=True)) % self.q)
        return out

    def norm_wires(self, x: Sequence[int], seeds: list[int]) -> list[list[int]]:
        calls = -(-self.d // self.norm_chunk)
        size = points_for(calls)
        padded = [*x, *([0] * ((size - 1) * self.norm_chunk - self.d))]
        return [seeds, *(padded[k * self.norm_chunk : (k + 1) * self.norm_chunk] for k in range(size - 1))]

    def rest_wires(
        self, bits: Sequence[int], dots: Sequence[int], r: Sequence[int], shares: int, seeds: list[int]
    ) -> tuple[list[list[int]], int, int, int]:
        """The wires, the calls that are about bits, and the two linear checks."""
        q, part, n = self.q, pow(shares, -1, self.q), 2 * self.square_bits
        flat = [v for k, b in enumerate(bits) for v in (pow(r[0], k, q) * b % q, (b - part) % q)]
        flat += [0] * (-len(flat) % (2 * self.chunk))
        bit_calls, counted = len(flat) // (2 * self.chunk), []
        for k in range(self.checks):
            mine = bits[n + k * (self.wr_bits + 1) : n + (k + 1) * (self.wr_bits + 1)]
            claimed = sum(b << j for j, b in enumerate(mine[:-1])) - (self.w - 1) * part
            flat += [pow(r[1], k, q) * (dots[k] - claimed) % q, mine[-1]]
            counted.append(mine[-1])
        flat += [0] * (-len(flat) % (2 * self.chunk))
        rows = [flat[k : k + 2 * self.chunk] for k in range(0, len(flat), 2 * self.chunk)]
        size = points_for(len(rows))
        rows += [[0] * (2 * self.chunk) for _ in range(size - 1 - len(rows))]
        v = sum(b << j for j, b in enumerate(bits[: self.square_bits]))
        u = sum(b << j for j, b in enumerate(bits[self.square_bits : n]))
        return [seeds, *rows], bit_calls, v + u - self.bound**2 * part, sum(counted) - self.successes * part

    def shard(self, values: Sequence[int], nonce: bytes, random: bytes) -> tuple[bytes, bytes, bytes]:
        """The public share, the leader's and the helper's."""
        seeds = [random[k : k + 32] for k in range(0, 224, 32)]
        meas, prf, helper_wr, helper_joint, leader_wr, leader_joint, prove = seeds
        square, x = sum(v * v for v in values), [v % self.q for v in values]
        head = x + self.bits(square, self.square_bits) + self.bits(self.bound**2 - square, self.square_bits)
        theirs = elements(
            self.field,
            stream(meas, self.tag(1), b"\x01"),
            len(head) + (self.wr_bits + 1) * self.checks,
        )
        mine = [(a - b) % self.q for a, b in zip(head, theirs, strict=False)]
        wr = [
            self.hash(10, leader_wr, b"\x00", nonce, encoded(self.field, mine)),
            self.hash(10, helper_wr, b"\x01", nonce, encoded(self.field, theirs[: len(head)])),
        ]
        dots = self.dots(x, self.hash(9, bytes(32), *wr))
        tail, passed = [], 0
        for dot in dots:
            signed = dot - self.q if dot > self.q // 2 else dot
            good = -self.w < signed <= self.w and passed < self.successes
            passed += good
            tail += [*self.bits((signed + self.w - 1) % 2**64, self.wr_bits), int(good)]
        assert passed == self.successes
        mine += [(a - b) % self.q for a, b in zip(tail, theirs[len(head) :], strict=True)]
        joint = [
            self.hash(7, leader_joint, b"\x00", nonce, encoded(self.field, mine)),
            self.hash(7, helper_joint, b"\x01", nonce, encoded(self.field, theirs)),
        ]
        proof = self.prove(x, head[self.d :] + tail, dots, self.hash(6, bytes(32), *joint), prove)
        binder = bytes([self.norm_proofs, self.proofs, 1])
        blind = elements(self.field, stream(prf, self.tag(2), binder), len(proof))
        shared = [(a - b) % self.q for a, b in zip(proof, blind, strict=True)]
        leader = encoded(self.field, mine) + encoded(self.field, shared) + leader_wr + leader_joint
        return b"".join((*wr, *joint)), leader, meas + prf + helper_wr + helper_joint

    def challenges(self, seed: bytes) -> list[list[int]]:
        flat = elements(self.field, stream(seed, self.tag(3), bytes([self.proofs])), 3 * self.proofs)
        return [flat[3 * k : 3 * k + 3] for k in range(self.proofs)]

    def prove(self, x: list[int], bits: list[int], dots: list[int], joint: bytes, seed: bytes) -> list[int]:
        made, out = stream(seed, self.tag(4), bytes([self.norm_proofs, self.proofs])), []
        for _ in range(self.norm_proofs):
            seeds = elements(self.field, made, self.norm_chunk)
            out += [*seeds, *gadget(self.field, self.norm_wires(x, seeds), pairs=False)]
        for r in self.challenges(joint):
            seeds = elements(self.field, made, 2 * self.chunk)
            out += [*seeds, *gadget(self.field, self.rest_wires(bits, dots, r, 1, seeds)[0], pairs=True)]
        return out

    def prepare(
        self,
        key: bytes,
        server: int,
        nonce: bytes,
        public: bytes,
        meas: list[int],
        proof: list[int],
        blinds: list[bytes],
    ) -> bytes:
        """A server's answers, from its share in full."""
        parts = [public[k : k + 32] for k in range(0, 128, 32)]
        who, n = bytes([server]), self.d + 2 * self.square_bits
        parts[server] = self.hash(10, blinds[0], who, nonce, encoded(self.field, meas[:n]))
        parts[2 + server] = self.hash(7, blinds[1], who, nonce, encoded(self.field, meas))
        dots = self.dots(meas[: self.d], self.hash(9, bytes(32), *parts[:2]))
        joint = self.challenges(self.hash(6, bytes(32), *parts[2:]))
        binder = bytes([self.norm_proofs, self.proofs])
        at = elements(self.field, stream(key, self.tag(5), binder, nonce), self.norm_proofs + self.proofs)
        out: list[int] = []
        for i, t in enumerate(at):
            taken, answer = (self.ask_norm if i < self.norm_proofs else self.ask_rest)(
                meas, dots, joint[max(0, i - self.norm_proofs)], proof, t
            )
            out, proof = out + answer, proof[taken:]
        return encoded(self.field, out) + parts[server] + parts[2 + server]

    def ask_norm(
        self, meas: list[int], dots: list[int], r: list[int], proof: list[int], t: int
    ) -> tuple[int, list[int]]:
        del dots, r
        rows = self.norm_wires(meas[: self.d], proof[: self.norm_chunk])
        length = self.norm_chunk + 2 * len(rows) - 1
        poly, calls = proof[self.norm_chunk : length], -(-self.d // self.norm_chunk)
        claimed = sum(b << j for j, b in enumerate(meas[self.d : self.d + self.square_bits]))
        found = sum(value_at(self.field, poly, w) for w in roots(self.field, len(rows))[1 : 1 + calls])
        return length, [(claimed - found) % self.q, *self.wires_at(rows, t), value_at(self.field, poly, t)]

    def ask_rest(
        self, meas: list[int], dots: list[int], r: list[int], proof: list[int], t: int
    ) -> tuple[int, list[int]]:
        rows, bit_calls, in_range, count = self.rest_wires(meas[self.d :], dots, r, 2, proof[: 2 * self.chunk])
        length = 2 * self.chunk + 2 * len(rows) - 1
        poly = proof[2 * self.chunk : length]
        found = [value_at(self.field, poly, w) for w in roots(self.field, len(rows))[1:]]
        checks = sum(found[bit_calls : bit_calls - (-self.checks // self.chunk)])
        value = sum(found[:bit_calls]) + r[2] * in_range + r[2] ** 2 * checks + r[2] ** 3 * count
        return length, [value % self.q, *self.wires_at(rows, t), value_at(self.field, poly, t)]

    def wires_at(self, rows: list[list[int]], t: int) -> list[int]:
        return [value_at(self.field, interpolate(self.field, list(c)), t) for c in zip(*rows, strict=True)]

    def is_valid(self, one: list[int], other: list[int]) -> bool:
        """Whether the sum of both servers' answers proves the report."""
        v = [(a + b) % self.q for a, b in zip(one, other, strict=True)]
        for i in range(self.norm_proofs + self.proofs):
            width = self.norm_chunk if i < self.norm_proofs else 2 * self.chunk
            zero, wires, p, v = v[0], v[1 : 1 + width], v[1 + width], v[2 + width :]
            pairs = (
                zip(wires, wires, strict=True) if i < self.norm_proofs else zip(wires[::2], wires[1::2], strict=True)
            )
            if zero or sum(a * b for a, b in pairs) % self.q != p:
                return False
        return True
