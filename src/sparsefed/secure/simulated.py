"""Secure aggregation around a rule in a simulation: rounds as the protocol does; with `verify` it runs the proofs too.

    pine     devices round and clip to the norm that the rule enforces and prove it; reports with false proofs are out
    secagg   sums without proofs, as SecAgg+ makes them: devices clip on their honour, attackers do not

The rule sees one vector, the sum, and how many updates are in it. Attackers with any attack but `forge` send valid
reports, clipped like honest ones, as an over-long one has no effect; `forge` sends false ones. Without `verify` these
are left out unseen, which is what the proofs do to them: both ways give the same bits.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sparsefed.core.errors import ConfigError, require
from sparsefed.core.rng import rng
from sparsefed.core.threat import Forgery
from sparsefed.core.types import Block, Context, Defense, IntArray, State, Step
from sparsefed.secure.codec import upload_bytes
from sparsefed.secure.field import Field, Integers
from sparsefed.secure.forgery import forged
from sparsefed.secure.rounding import Rounding, choose_rounding, restored, rounded
from sparsefed.secure.sealing import new_key, public_key
from sparsefed.secure.two_servers import RUN, Helper, Leader, RoundTask, upload

Scheme = Literal["pine", "secagg"]
ATTEMPTS = 20  # of a device whose nonce is unlucky, one in a million


class Protection(NamedTuple):
    """The options of secure aggregation in a simulation."""

    scheme: Scheme = "pine"
    verify: bool = False
    field: Field | None = None  # None: chosen by precision
    bits: int | None = None  # of the bound; None: as many as fit


class SummedBlock:
    """The updates of a round as a rule sees them under secure aggregation: their sum, and how many are in it."""

    def __init__(self, total: Tensor, accepted: int, received: int) -> None:
        self._total, self._accepted, self.size = total, accepted, received

    @property
    def senders(self) -> IntArray:
        return np.arange(self.size)

    def norms(self) -> Tensor:
        """Return 0 for each accepted update, whose norm is proven and unknown, and NaN for each refused one."""
        norms = torch.zeros(self.size, dtype=torch.float64)
        norms[self._accepted :] = torch.nan
        return norms

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """Return the sum times the weight that all accepted updates have."""
        taken = weights[: self._accepted]
        if self._accepted and not bool((taken == taken[0]).all()):
            raise ConfigError("secure aggregation gives every update the same weight, but the rule asks for others")
        return self._total * float(taken[0]) if self._accepted else torch.zeros_like(self._total)

    def rows(self) -> Tensor:
        raise ConfigError("secure aggregation reveals the sum alone, but the rule asks for single updates")


@dataclass
class _Round:
    """The integers of a round as they add up."""

    rounding: Rounding
    total: npt.NDArray[np.int64]
    error: npt.NDArray[np.float64]  # of the sum, by rounding
    received: int = 0
    accepted: int = 0
    rejected: int = 0

    def add(self, values: Integers, update: npt.NDArray[np.float64]) -> None:
        self.total += values
        norm = float(np.linalg.norm(update))
        self.error += values * self.rounding.unit - update * (min(1.0, self.rounding.limit / norm) if norm else 1.0)
        self.accepted += 1


def secured(defense: Defense, protection: Protection, clients: int) -> Defense:
    """Return a defense that gets the sum of at most so many rounded updates, of which each proves its norm."""

    def init(d: int) -> State:
        if protection.verify:
            new_key()  # raises if the package is missing
        choose_rounding(d, 1.0, clients, protection.field, protection.bits)
        return defense.init(d)

    def step(state: State, blocks: Iterable[Block], context: Context) -> Step:
        limit = defense.budget(state, context)
        made: _Round | None = None
        servers: _Servers | None = None
        for block in blocks:
            rows = block.rows().detach().to(torch.float32).cpu().numpy()
            if made is None:
                made = _begin(rows.shape[1], limit, clients, protection)
                servers = _Servers(made.rounding, context.round) if protection.verify else None
            _collect(made, servers, rows, block, protection, context)
            del block, rows
        if made is None:
            return defense.step(state, blocks, context)  # raises: there were no updates
        if servers is not None:
            servers.check(made)
        total = torch.from_numpy(restored(made.total, made.rounding).astype(np.float32))
        done = defense.step(state, [SummedBlock(total, made.accepted, made.received)], context)
        return done._replace(stats={**done.stats, **_stats(made, protection)})

    return Defense(init, step, defense.budget, defense.check)


def _begin(d: int, limit: float, clients: int, protection: Protection) -> _Round:
    rounding = choose_rounding(d, limit, clients, protection.field, protection.bits)
    return _Round(rounding, np.zeros(d, np.int64), np.zeros(d))


def _collect(
    made: _Round,
    servers: _Servers | None,
    rows: npt.NDArray[np.float32],
    block: Block,
    protection: Protection,
    context: Context,
) -> None:
    """Add the updates of a block, each as its device would report it."""
    kinds: tuple[Forgery, ...] | None = getattr(block, "forgeries", None)
    for place, row in enumerate(rows):
        made.received += 1
        update, sender = row.astype(np.float64), made.received
        if not np.isfinite(update).all():
            continue  # a device that has none takes no part
        if protection.scheme == "secagg" and kinds is not None:
            made.total = _unproven(made, update)
        elif kinds:
            made.rejected += 1
            if servers is not None:
                servers.forge(kinds[(context.round + place) % len(kinds)], sender, update, context)
        else:
            values = rounded(row, made.rounding)
            made.add(values, update)
            if servers is not None:
                servers.send(sender, values)


def _unproven(made: _Round, update: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """Return the sum in the field with an attacker's vector of any length in it."""
    made.accepted += 1
    most = made.rounding.field.modulus // 4
    values = np.rint(np.clip(update / (made.rounding.unit or 1.0), -most, most)).astype(np.int64)
    ring = made.rounding.field
    return ring.to_signed(ring.add(ring.from_signed(made.total), ring.from_signed(values)))


def _stats(made: _Round, protection: Protection) -> Mapping[str, float]:
    limit, count = made.rounding.limit, max(made.accepted, 1)
    error = float(np.linalg.norm(made.error)) / count
    own = {"rejected": float(made.rejected), "rounding_error": error / limit if limit else 0.0}
    if protection.scheme == "pine":
        own["upload_bytes"] = float(upload_bytes(made.rounding.circuit))
    return own


@dataclass
class _Servers:
    """A leader and a helper in this process, for a round that is verified."""

    rounding: Rounding
    round: int
    earlier: bytes | None = None  # a report that was accepted, for replays
    refused: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        leader, helper = new_key(), new_key()
        self.helper = Helper(helper)
        keys = public_key(leader), public_key(helper)
        self.task = RoundTask(self.rounding.circuit, secrets.token_bytes(RUN), self.round, *keys, least=1)
        self.leader = Leader(self.task, leader)

    def send(self, sender: int, values: Integers) -> None:
        for _ in range(ATTEMPTS):
            self.earlier = upload(self.task, sender, values)
            if (problem := self.leader.receive(sender, self.earlier)) is None:
                return
        raise ConfigError(f"an honest report was refused {ATTEMPTS} times: {problem}")

    def forge(self, kind: Forgery, sender: int, update: npt.NDArray[np.float64], context: Context) -> None:
        draw = rng(context.seed, "forgery", context.round, sender)
        if kind == "replay" and self.earlier is not None:
            self.leader.receive(sender, self.earlier)
            return
        chosen: Forgery = "norm" if kind == "replay" else kind
        most = self.rounding.field.modulus // 4
        values = np.rint(np.clip(update / (self.rounding.unit or 1.0), -most, most)).astype(np.int64)
        self.leader.receive(sender, forged(chosen, self.task, sender, values, draw))

    def check(self, made: _Round) -> None:
        """Let the servers sum up; raise unless they accepted just the honest reports and their sum is exact."""
        if not made.accepted:
            return
        outcome = self.leader.finish(self.helper.answer(self.task, self.leader.request()))
        require(outcome.total is not None, f"the servers found no sum: {outcome.problem}")
        same = outcome.total is not None and np.array_equal(outcome.total, made.total)
        require(
            len(outcome.accepted) == made.accepted and same,
            "the verified sum is not the one of the fast path; this is a defect of the simulator, please report it",
        )
