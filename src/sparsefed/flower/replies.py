"""The replies of a round as blocks of updates, read one at a time, with an account of those that were refused."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from sparsefed.core.errors import RunError
from sparsefed.core.types import Block, IntArray
from sparsefed.flower.door import Admitted, Refusal, ReplyFormat, Request, admit
from sparsefed.kernels.blocks import RowsBlock


class Asked(NamedTuple):
    """A node that was asked for an update in a round."""

    device: int  # its number in the roster
    request: Request


class TooFewRepliesError(RunError):
    """A round with fewer usable replies than the quorum; the model is as it was before the round."""


class RefusedReply(NamedTuple):
    """One line of the account of refusals."""

    round: int
    node: int
    device: int
    reason: str
    detail: str


@dataclass(frozen=True)
class ReplyBlock(RowsBlock):
    """The updates of admitted replies, whose norms are known already."""

    known: Tensor | None = None  # float64 [m]
    weights: Tensor | None = None  # float64 [m], of a mean; None: all the same

    def norms(self) -> Tensor:
        return super().norms() if self.known is None else self.known

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """Return the weighted sum; of a single row in a fifth of the time that a matrix product takes, bit for bit."""
        if self.size != 1 or not bool(weights[0]):
            return super().weighted_sum(weights)
        return torch.mul(self.tensor[0], weights.to(torch.float32)[0]).add_(0.0)  # a product with a matrix has no -0.0


@dataclass(frozen=True)
class AbsentBlock:
    """Updates that were asked for and did not come or were refused: a rule counts and drops them, as it does NaN."""

    senders: IntArray  # [m]
    d: int

    @property
    def size(self) -> int:
        return len(self.senders)

    def norms(self) -> Tensor:
        return torch.full((self.size,), math.nan, dtype=torch.float64)

    def weighted_sum(self, weights: Tensor) -> Tensor:  # noqa: ARG002 - all are 0
        return torch.full((self.d,), -0.0)  # adding this changes no bit; adding 0.0 would turn -0.0 into 0.0

    def rows(self) -> Tensor:
        return torch.full((1, 1), math.nan).expand(self.size, self.d)


@dataclass
class RoundReplies:
    """The replies of a round, admitted one by one; iterate over `blocks` once."""

    round: int
    expected: ReplyFormat
    arriving: Iterable[tuple[Asked, Any]]  # a reply for each node asked, or a Refusal in its place
    wanted: int  # usable replies after which the rest is not waited for
    quorum: int
    model: Tensor | None = None  # where clients reply with models
    rows_per_block: int = 1
    norms: list[float] = field(default_factory=list)
    used: list[int] = field(default_factory=list)  # devices, in the order of their updates
    refused: list[RefusedReply] = field(default_factory=list)
    _voted: set[int] = field(default_factory=set)

    @property
    def reasons(self) -> Counter[str]:
        return Counter(one.reason for one in self.refused)

    def blocks(self) -> Iterator[Block]:
        """Yield the updates in blocks, as the replies arrive, and at the end the absence of those that were refused.

        Raises:
            TooFewRepliesError: at the end, if fewer than the quorum were usable.
        """
        held: list[tuple[Asked, Admitted]] = []
        for asked, reply in self.arriving:
            verdict = self._judged(asked, reply)
            del reply  # its bytes must be free while the next one is read
            if isinstance(verdict, Admitted):
                held.append((asked, verdict))
            del verdict
            if len(held) == self.rows_per_block:
                yield _stacked(held, self.expected)
                held.clear()
            if len(self.norms) == self.wanted:
                break
        if held:
            yield _stacked(held, self.expected)
        if len(self.norms) < self.quorum:
            raise TooFewRepliesError(self._shortage())
        if self.refused:
            yield AbsentBlock(np.array([one.device for one in self.refused]), self.expected.d)

    def _judged(self, asked: Asked, reply: Any) -> Admitted | Refusal:
        verdict = reply if isinstance(reply, Refusal) else self._vote(asked, reply)
        if isinstance(verdict, Admitted):
            self.norms.append(verdict.norm)
            self.used.append(asked.device)
        else:
            self.refused.append(RefusedReply(self.round, asked.request.node, asked.device, *verdict))
        return verdict

    def _vote(self, asked: Asked, reply: Any) -> Admitted | Refusal:
        """Admit a reply; only the first of a node counts."""
        if asked.request.node in self._voted:
            return Refusal("duplicate", f"node {asked.request.node} has replied already")
        verdict = admit(reply, self.expected, asked.request, self.model)
        if isinstance(verdict, Admitted):
            self._voted.add(asked.request.node)
        return verdict

    def _shortage(self) -> str:
        causes = ", ".join(f"{count} {reason}" for reason, count in sorted(self.reasons.items())) or "none was asked"
        return (
            f"round {self.round} had {len(self.norms)} usable replies, but the quorum is {self.quorum} ({causes}); the "
            "model is as it was before the round"
        )


def _stacked(held: list[tuple[Asked, Admitted]], expected: ReplyFormat) -> ReplyBlock:
    """Return admitted replies as one block; a single one is not copied."""
    rows = [reply.row for _, reply in held]
    tensor = rows[0][None] if len(rows) == 1 else torch.stack(rows)
    norms = torch.tensor([reply.norm for _, reply in held], dtype=torch.float64)
    weights = None
    if expected.cap is not None:
        exponent = math.frexp(expected.cap)[1]  # scaled by a power of two, which changes no bit of a mean
        weights = torch.tensor([math.ldexp(reply.examples, -exponent) for _, reply in held], dtype=torch.float64)
    return ReplyBlock(tensor, np.array([asked.device for asked, _ in held]), norms, weights)
