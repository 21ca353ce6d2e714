"""The leader's side of proven secure aggregation: reports from the devices, one question to the helper, the sum.

The server sees no update. A round without the helper's answer, or with too few valid reports, has no sum; it is
repeated like any other round without a quorum.
"""

from __future__ import annotations

import re
import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from flwr.app import ConfigRecord, Message, MessageType, RecordDict

from sparsefed.core.errors import ConfigError, quoted
from sparsefed.core.types import Block
from sparsefed.flower.door import Refusal, Request, admit_report
from sparsefed.flower.replies import Asked, RefusedReply, TooFewRepliesError
from sparsefed.flower.sealed import LIMIT, REQUEST, SECURE, TASK, bytes_record, key_of
from sparsefed.secure.codec import upload_bytes
from sparsefed.secure.field import field_named
from sparsefed.secure.rounding import Rounding, choose_rounding, restored
from sparsefed.secure.sealing import KEY, new_key, public_key
from sparsefed.secure.simulated import SummedBlock
from sparsefed.secure.two_servers import RUN, Leader, RoundTask, encode_task

HELPER = -1  # in the place of a device number
MORE = 1024  # bytes of a report beyond its shares: lengths, the sealing, the nonce
LEADER_KEY = "leader.key"
Ask = Callable[[], tuple[Request, Any]]  # puts the question to the helper -> what was asked, its reply or a Refusal


@dataclass(frozen=True)
class Secure:
    """The settings of proven secure aggregation in a deployment.

    Args:
        helper: the id of the helper's node, as `flwr supernode list` tells it.
        helper_key: the helper's public key, in hexadecimal.
        least: reports that a sum must have, so that they hide one another.
        field: "field32", "field64", or "auto", which takes the second where rounding would cost more than 5 % of L.
        bits: of the rounded norm bound; by default as many as fit.
    """

    helper: int
    helper_key: str
    least: int = 2
    field: Literal["auto", "field32", "field64"] = "auto"
    bits: int | None = None

    def __post_init__(self) -> None:
        if not re.fullmatch(f"[0-9a-fA-F]{{{2 * KEY}}}", str(self.helper_key)):
            raise ConfigError(
                f"helper_key is {quoted(self.helper_key)}, but must be a public key: {2 * KEY} hexadecimal digits"
            )

    def rounding(self, d: int, limit: float, clients: int) -> Rounding:
        """Return how updates are rounded in a round."""
        chosen = None if self.field == "auto" else field_named(self.field)
        return choose_rounding(d, limit, clients, chosen, self.bits)


class SealedRound:
    """One round of the leader: the task that devices get, and the reports that come back."""

    def __init__(
        self, secure: Secure, private: bytes, rounding: Rounding, round: int, nonces: set[bytes] | None = None
    ) -> None:
        self.secure, self.rounding = secure, rounding
        keys = public_key(private), bytes.fromhex(secure.helper_key)
        # A new name for every attempt: the helper sums up each only once.
        self.task = RoundTask(rounding.circuit, secrets.token_bytes(RUN), round, *keys, least=secure.least)
        self.leader = Leader(self.task, private, set() if nonces is None else nonces)

    def record(self) -> ConfigRecord:
        """Return what devices and the helper must know of the round."""
        return ConfigRecord({TASK: encode_task(self.task), LIMIT: self.rounding.limit})

    def question(self, ttl: float) -> Message:
        """Return the message to the helper."""
        content = RecordDict({SECURE: self.record(), REQUEST: bytes_record(self.leader.request())})
        return Message(content, self.secure.helper, MessageType.QUERY, ttl=ttl, group_id=str(self.task.round))


@dataclass
class SealedReplies:
    """The reports of a round, and the one sum that comes of them; iterate over `blocks` once."""

    round: int
    sealed: SealedRound
    arriving: Iterable[tuple[Asked, Any]]
    quorum: int
    ask: Ask
    norms: list[float] = field(default_factory=list)  # nobody knows them
    used: list[int] = field(default_factory=list)
    refused: list[RefusedReply] = field(default_factory=list)

    @property
    def reasons(self) -> Counter[str]:
        return Counter(one.reason for one in self.refused)

    def blocks(self) -> Iterator[Block]:
        """Yield the sum of the accepted updates as one block.

        Raises:
            TooFewRepliesError: if too few reports came or were valid, or the helper gave no sum.
        """
        waiting = {asked.device: asked for asked, reply in self.arriving if self._received(asked, reply)}
        if len(waiting) < self.quorum:
            raise TooFewRepliesError(self._sentence(f"{len(waiting)} usable reports, but the quorum is {self.quorum}"))
        outcome = self.sealed.leader.finish(self._answer(len(waiting)))
        for device, why in outcome.rejected.items():
            if device in waiting:
                self._refuse(waiting[device], Refusal("proof", why))
        if outcome.total is None:
            raise TooFewRepliesError(self._sentence(f"no sum: {outcome.problem}"))
        self.used += outcome.accepted
        if len(self.used) < self.quorum:
            raise TooFewRepliesError(self._sentence(f"{len(self.used)} valid reports, the quorum is {self.quorum}"))
        total = torch.from_numpy(restored(outcome.total, self.sealed.rounding).astype(np.float32))
        yield SummedBlock(total, len(self.used), len(self.used) + len(self.refused))

    def _received(self, asked: Asked, reply: Any) -> bool:
        most = upload_bytes(self.sealed.task.circuit) + MORE
        verdict = reply if isinstance(reply, Refusal) else admit_report(reply, asked.request, most)
        if not isinstance(verdict, Refusal):
            problem = self.sealed.leader.receive(asked.device, verdict)
            if problem is None:
                return True
            verdict = Refusal("report", problem)
        self._refuse(asked, verdict)
        return False

    def _answer(self, reports: int) -> bytes | None:
        """Return what the helper answered about so many reports; None if it did not, or not as it should."""
        request, reply = self.ask()
        circuit = self.sealed.task.circuit
        most = circuit.field.size * (circuit.d + reports * circuit.verifier) + MORE * (1 + reports)
        verdict = reply if isinstance(reply, Refusal) else admit_report(reply, request, most)
        if not isinstance(verdict, Refusal):
            return verdict
        self._refuse(Asked(HELPER, request), verdict)
        return None

    def _refuse(self, asked: Asked, why: Refusal) -> None:
        self.refused.append(RefusedReply(self.round, asked.request.node, asked.device, *why))

    def _sentence(self, what: str) -> str:
        causes = ", ".join(f"{count} {reason}" for reason, count in sorted(self.reasons.items()))
        return (
            f"round {self.round} had {what}{f' ({causes})' if causes else ''}; the model is as it was before the round"
        )


def leader_key(folder: Path | None) -> bytes:
    """Return the leader's private key: that of the run folder, or a new one."""
    return new_key() if folder is None else key_of(folder / LEADER_KEY)
