"""The bytes of PINE's messages, as the draft's vectors have them; decoding refuses whatever is not one."""

from __future__ import annotations

from collections.abc import Sequence

from sparsefed.secure.circuit import Circuit
from sparsefed.secure.field import RejectedReport
from sparsefed.secure.pine import HelperShare, LeaderShare, PublicShare, VerifierShare
from sparsefed.secure.xof import SEED


def encode_public(public: PublicShare) -> bytes:
    """Return the bytes of a public share."""
    return b"".join((*public.wr_parts, *public.joint_parts))


def decode_public(data: bytes) -> PublicShare:
    """Return the public share of bytes; raise RejectedReport if the length is wrong."""
    a, b, c, d = _cut("a public share", data, [SEED] * 4)
    return PublicShare((a, b), (c, d))


def encode_leader(circuit: Circuit, share: LeaderShare) -> bytes:
    """Return the bytes of the leader's share."""
    field = circuit.field
    return b"".join((field.encode(share.measurement), field.encode(share.proofs), share.wr_blind, share.joint_blind))


def decode_leader(circuit: Circuit, data: bytes) -> LeaderShare:
    """Return the leader's share of bytes; raise RejectedReport for a wrong length or an impossible element."""
    size, what = circuit.field.size, "a leader share"
    measurement, proofs, wr, joint = _cut(what, data, [circuit.measurement * size, circuit.proof * size, SEED, SEED])
    return LeaderShare(circuit.field.decode(measurement, what), circuit.field.decode(proofs, what), wr, joint)


def encode_helper(share: HelperShare) -> bytes:
    """Return the bytes of the helper's share."""
    return b"".join(share)


def decode_helper(data: bytes) -> HelperShare:
    """Return the helper's share of bytes; raise RejectedReport if the length is wrong."""
    return HelperShare(*_cut("a helper share", data, [SEED] * 4))


def encode_verifier(circuit: Circuit, share: VerifierShare) -> bytes:
    """Return the bytes of a server's answers."""
    return b"".join((circuit.field.encode(share.answers), share.wr_part, share.joint_part))


def decode_verifier(circuit: Circuit, data: bytes) -> VerifierShare:
    """Return a server's answers of bytes; raise RejectedReport for a wrong length or an impossible element."""
    what = "a server's answer"
    answers, wr, joint = _cut(what, data, [circuit.verifier * circuit.field.size, SEED, SEED])
    return VerifierShare(circuit.field.decode(answers, what), wr, joint)


def upload_bytes(circuit: Circuit) -> int:
    """Return the bytes that a device sends: both shares and, to both servers, the public share and the nonce."""
    return circuit.field.size * (circuit.measurement + circuit.proof) + 2 * SEED + 4 * SEED + 2 * (4 * SEED + 16)


def between_servers(circuit: Circuit) -> int:
    """Return the bytes that the servers exchange about a report: an answer each, and the decision."""
    return 2 * (circuit.field.size * circuit.verifier + 2 * SEED) + 2 * SEED


def _cut(what: str, data: bytes, lengths: Sequence[int]) -> list[bytes]:
    if len(data) != sum(lengths):
        raise RejectedReport(f"{what} has {len(data)} bytes, but must have {sum(lengths)}")
    view, pieces, start = memoryview(data), [], 0
    for length in lengths:
        pieces.append(view[start : start + length])
        start += length
    return [piece if len(piece) > SEED else bytes(piece) for piece in pieces]  # type: ignore[misc]
