"""A round of proven secure aggregation between devices, a leader and a helper; no transport, bytes in and bytes out.

    device    upload(task, sender, values)      -> bytes to the leader; the helper's share in it is sealed
    leader    Leader.receive(sender, bytes)     -> None, or why the report is refused
              Leader.request()                  -> bytes to the helper: sealed shares and the leader's answers
    helper    Helper.answer(bytes)              -> bytes to the leader: its answers, and its share of the sum
    leader    Leader.finish(bytes or None)      -> the sum, who is in it, who is not and why

The leader runs the training; the helper is another operator with a key of its own. Both follow the protocol: one that
lies can spoil the sum. Neither learns anything of a single update, as long as they do not collude; so the helper sums
up once a round, and not fewer than `least` reports. Nothing here raises on what a device, or the other server, sent.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sparsefed.core.errors import ConfigError, printable, require
from sparsefed.secure import codec, pine
from sparsefed.secure.circuit import Circuit, circuit_for
from sparsefed.secure.field import Elements, Integers, RejectedReport, field_named, kernels
from sparsefed.secure.sealing import KEY, OVERHEAD, public_key, seal, shared_secret, unseal
from sparsefed.secure.xof import SEED

RUN = 16  # bytes that name a run
MOST_REPORTS = 1 << 20  # of a round
MOST_COORDINATES = 1 << 31
_LENGTH = struct.Struct("<I")
_SENDER = struct.Struct("<q")

Sum = npt.NDArray[np.int64]


@dataclass(frozen=True)
class RoundTask:
    """The public facts of a round that devices and both servers agree on."""

    circuit: Circuit
    run: bytes  # 16 random bytes, new for every run
    round: int
    leader_key: bytes  # public keys
    helper_key: bytes
    least: int = 2  # reports in a sum

    def __post_init__(self) -> None:
        require(len(self.run) == RUN, f"the name of a run has {RUN} bytes, not {len(self.run)}")
        require(self.least >= 1, f"a sum has at least one report, not {self.least}")

    @property
    def context(self) -> bytes:
        return self.run + _SENDER.pack(self.round)


def encode_task(task: RoundTask) -> bytes:
    """Return a task as JSON, for devices and the helper; the circuit is given by its field, d and bound."""
    circuit = task.circuit
    if circuit != circuit_for(circuit.field, circuit.d, circuit.bound):
        raise ConfigError("a task is sent with the parameters that circuit_for chooses; this circuit has others")
    keys = {"run": task.run.hex(), "leader_key": task.leader_key.hex(), "helper_key": task.helper_key.hex()}
    numbers = {"d": circuit.d, "bound": circuit.bound, "round": task.round, "least": task.least}
    return json.dumps({"field": circuit.field.name, **numbers, **keys}, sort_keys=True).encode()


def decode_task(data: bytes) -> RoundTask:
    """Return the task of JSON; raise RejectedReport if it is none."""
    try:
        table = json.loads(data)
        d, bound, number, least = (int(table[key]) for key in ("d", "bound", "round", "least"))
        run, leader, helper = (bytes.fromhex(table[key]) for key in ("run", "leader_key", "helper_key"))
        if not 1 <= d <= MOST_COORDINATES or len(leader) != KEY or len(helper) != KEY or leader == helper:
            raise ValueError("a number or a key that cannot be")
        return RoundTask(circuit_for(field_named(table["field"]), d, bound), run, number, leader, helper, least)
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError, ConfigError) as error:
        raise RejectedReport(f"the task of the round cannot be read ({type(error).__name__})") from None


class Outcome(NamedTuple):
    """The result of a round: the sum of the accepted vectors, or None and the reason why there is none."""

    total: Sum | None
    accepted: tuple[int, ...]
    rejected: Mapping[int, str]  # sender -> why
    problem: str = ""


def upload(task: RoundTask, sender: int, values: Integers, nonce: bytes | None = None) -> bytes:
    """Return the report of a device, for the leader; the share inside that is the helper's is sealed.

    Raises:
        ConfigError: if the norm of the values is above the bound.
    """
    return sealed_report(task, sender, pine.shard(task.circuit, values, nonce or pine.fresh_nonce()))


def sealed_report(task: RoundTask, sender: int, report: pine.PineReport) -> bytes:
    """Return the bytes of a report, with the helper's share sealed to its key, this round, sender and nonce."""
    public = codec.encode_public(report.public)
    context = _context(task, sender, report.nonce, public)
    sealed = seal(codec.encode_helper(report.helper), task.helper_key, context)
    return pack([report.nonce, public, sealed, codec.encode_leader(task.circuit, report.leader)])


def _context(task: RoundTask, sender: int, nonce: bytes, public: bytes) -> bytes:
    return task.context + _SENDER.pack(sender) + nonce + public


# --- the leader ------------------------------------------------------------------------------------------------------


class _Waiting(NamedTuple):
    """A report that has passed the leader's door and waits for the helper's answer."""

    nonce: bytes
    public: bytes
    sealed: bytes
    prepared: pine.PreparedShare
    share: pine.VerifierShare


@dataclass
class Leader:
    """The leader's part of one round."""

    task: RoundTask
    private: bytes = field(repr=False)
    nonces: set[bytes] = field(default_factory=set)  # of all rounds of the run; pass the same set to each
    rejected: dict[int, str] = field(default_factory=dict)
    _waiting: dict[int, _Waiting] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._key = shared_secret(self.private, self.task.helper_key, self.task.context)

    def receive(self, sender: int, data: bytes) -> str | None:
        """Take a report; return None, or a sentence that says why it is refused. One report a sender counts."""
        if sender in self._waiting:
            return "this sender has sent a report in this round already"
        try:
            self._waiting[sender] = self._checked(data)
        except RejectedReport as error:
            self.rejected[sender] = str(error)
            return str(error)
        self.rejected.pop(sender, None)
        return None

    def _checked(self, data: bytes) -> _Waiting:
        circuit = self.task.circuit
        nonce, public, sealed, leader = unpack(data, 4)
        if len(nonce) != pine.NONCE or len(sealed) != OVERHEAD + 4 * SEED:
            raise RejectedReport("the nonce or the sealed share has the wrong length")
        if bytes(nonce) in self.nonces:
            raise RejectedReport("the nonce has been used before: a replay")
        share = codec.decode_leader(circuit, leader)
        shared = codec.decode_public(public)
        self.nonces.add(bytes(nonce))
        prepared, answer = pine.prepare(circuit, self._key, pine.LEADER, bytes(nonce), shared, share)
        return _Waiting(bytes(nonce), bytes(public), bytes(sealed), prepared, answer)

    def request(self) -> bytes:
        """Return the message to the helper: for every report its sender, nonce, public and sealed share, answers."""
        circuit = self.task.circuit
        parts: list[bytes] = [self.task.context]
        for sender, waiting in sorted(self._waiting.items()):
            answers = codec.encode_verifier(circuit, waiting.share)
            parts += [_SENDER.pack(sender), waiting.nonce, waiting.public, waiting.sealed, answers]
        return pack(parts)

    def finish(self, answer: bytes | None) -> Outcome:
        """Return the round's outcome from the helper's answer; None if it did not answer."""
        if answer is None:
            return self._none("the helper did not answer, so this round has no sum")
        try:
            return self._finished(answer)
        except RejectedReport as error:
            return self._none(f"the helper's answer cannot be used: {error}")

    def _none(self, problem: str) -> Outcome:
        return Outcome(None, (), dict(self.rejected), problem)

    def _finished(self, answer: bytes) -> Outcome:
        circuit, senders = self.task.circuit, sorted(self._waiting)
        refusal = unpack(answer, None)[0]
        if refusal:
            return self._none(f"the helper refused: {printable(bytes(refusal).decode('utf-8', 'replace'), 300)}")
        total, *answers = unpack(answer, 2 + len(senders))[1:]
        accepted, sums = [], circuit.field.zeros(circuit.d)
        for sender, theirs in zip(senders, answers, strict=True):
            try:
                kernels().add_all(sums, self._judged(self._waiting[sender], theirs), sums)
                accepted.append(sender)
            except RejectedReport as error:
                self.rejected[sender] = str(error)
        helper = circuit.field.decode(total, "the helper's sum")
        if len(helper) != circuit.d:
            return self._none(f"the helper's sum has {len(helper)} coordinates, not {circuit.d}")
        return Outcome(pine.unshard(circuit.field, [sums, helper]), tuple(accepted), dict(self.rejected))

    def _judged(self, waiting: _Waiting, theirs: bytes) -> Elements:
        if not theirs:
            raise RejectedReport("the helper cannot use its share")
        other = codec.decode_verifier(self.task.circuit, theirs)
        return _accepted_share(self.task.circuit, waiting.public, waiting.prepared, (waiting.share, other))


def _accepted_share(
    circuit: Circuit, public: bytes, prepared: pine.PreparedShare, shares: tuple[pine.VerifierShare, pine.VerifierShare]
) -> Elements:
    """Return a server's share of an accepted vector; raise RejectedReport if the two answers do not prove it.

    Both servers must come to the same verdict, or their sums would not match. So the hashes that the device claims must
    be those of the shares; each server then has the same challenges, and all else is the same for both.
    """
    claimed = codec.decode_public(public)
    if claimed.wr_parts != tuple(share.wr_part for share in shares):
        raise RejectedReport("a hash in the public share is not that of the share")
    if claimed.joint_parts != tuple(share.joint_part for share in shares):
        raise RejectedReport("a hash in the public share is not that of the share")
    return pine.finish(prepared, pine.decide(circuit, shares))


# --- the helper ------------------------------------------------------------------------------------------------------


@dataclass
class Helper:
    """The helper's part, for all rounds of all runs; `save` and `load` keep what it must not forget."""

    private: bytes = field(repr=False)
    leader: bytes | None = None  # the public key of the only leader that it works with; None: any
    nonces: set[bytes] = field(default_factory=set)
    rounds: set[bytes] = field(default_factory=set)  # contexts of rounds that it has summed up

    @property
    def public(self) -> bytes:
        return public_key(self.private)

    def answer(self, task: RoundTask, request: bytes) -> bytes:
        """Return the answer to a leader's request; a refusal is an answer too, and never an exception."""
        try:
            return self._answered(task, request)
        except RejectedReport as error:
            return pack([str(error).encode(), b""])

    def _answered(self, task: RoundTask, request: bytes) -> bytes:
        if task.helper_key != self.public or self.leader not in (None, task.leader_key):
            raise RejectedReport("the round is for another helper, or from a leader that this helper does not know")
        context, *parts = unpack(request, None)
        if bytes(context) != task.context:
            raise RejectedReport("the request is about another round")
        if task.context in self.rounds:
            raise RejectedReport("this round has been summed up already")
        if len(parts) % 5 or len(parts) // 5 < task.least:
            raise RejectedReport(f"{len(parts) // 5} reports are fewer than the {task.least} that hide one another")
        key = shared_secret(self.private, task.leader_key, task.context)
        circuit, answers = task.circuit, []
        total, accepted = circuit.field.zeros(circuit.d), 0
        for start in range(0, len(parts), 5):
            answer, share = self._checked(task, key, [bytes(part) for part in parts[start : start + 5]])
            answers.append(answer)
            if share is not None:
                kernels().add_all(total, share, total)
                accepted += 1
        self.rounds.add(task.context)
        if accepted < task.least:
            raise RejectedReport(
                f"only {accepted} reports are valid, fewer than the {task.least} that hide one another"
            )
        return pack([b"", circuit.field.encode(total), *answers])

    def _checked(self, task: RoundTask, key: bytes, parts: list[bytes]) -> tuple[bytes, Elements | None]:
        """Return the helper's answers about one report, empty if it cannot use it, and its share if it is valid."""
        circuit, (sender, nonce, public, sealed, theirs) = task.circuit, parts
        answer = b""
        try:
            if nonce in self.nonces:
                raise RejectedReport("the nonce has been used before: a replay")
            if len(sender) != _SENDER.size:
                raise RejectedReport("the sender has the wrong length")
            opened = unseal(sealed, self.private, _context(task, _SENDER.unpack(sender)[0], nonce, public))
            self.nonces.add(nonce)
            shared, share = codec.decode_public(public), codec.decode_helper(opened)
            prepared, own = pine.prepare(circuit, key, pine.HELPER, nonce, shared, share)
            answer = codec.encode_verifier(circuit, own)
            leader = codec.decode_verifier(circuit, theirs)
            return answer, _accepted_share(circuit, public, prepared, (leader, own))
        except RejectedReport:
            return answer, None

    def save(self) -> dict[str, Any]:
        """Return what a restarted helper must know, as data for a JSON file."""
        return {"nonces": sorted(n.hex() for n in self.nonces), "rounds": sorted(r.hex() for r in self.rounds)}

    @classmethod
    def load(cls, private: bytes, saved: Mapping[str, Iterable[str]], leader: bytes | None = None) -> Helper:
        """Return a helper with the memory that `save` wrote."""
        return cls(private, leader, *({bytes.fromhex(text) for text in saved[key]} for key in ("nonces", "rounds")))


# --- bytes -----------------------------------------------------------------------------------------------------------


def pack(parts: Iterable[bytes]) -> bytes:
    """Return byte strings as one, each after its length."""
    return b"".join(piece for part in parts for piece in (_LENGTH.pack(len(part)), part))


def unpack(data: bytes, count: int | None) -> list[bytes]:
    """Return the byte strings of `pack`; raise RejectedReport if there are not so many or the lengths do not add up."""
    parts: list[Any] = []  # views of the data, which behave as bytes do
    view, start = memoryview(data), 0
    while start < len(view):
        if start + _LENGTH.size > len(view) or len(parts) > 5 * MOST_REPORTS:
            raise RejectedReport("the message is cut off")
        (length,) = _LENGTH.unpack_from(view, start)
        start += _LENGTH.size
        if start + length > len(view):
            raise RejectedReport("the message is cut off")
        parts.append(view[start : start + length])
        start += length
    if (count is not None and len(parts) != count) or not parts:
        raise RejectedReport(f"the message has {len(parts)} parts, not {count or 'one or more'}")
    return parts
