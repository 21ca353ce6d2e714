"""Local top-k with a memory on every device: what SparseFed and FetchSGD are compared with (Stich et al. 2018,
Sparsified SGD with Memory, Algorithm 1; Aji and Heafield 2017; a baseline in Rothchild et al. 2020).

    e_i  <-  e_i + u_i           what device i has not sent yet; u_i is already clipped
    m_i   =  top_k(e_i)          what it sends, ties by lowest index, cut to `message_norm` where there is one
    e_i  <-  e_i - m_i
    u     =  (1/n) sum_i m_i

A device that took part T times, each time with |u_i| <= L, has sent messages whose sum is no longer than T L. A single
message can be longer than L: what waited comes at once. As top-k takes a share of at least k / d of the squares, the
memory stays below L q / (1 - q) with q = sqrt(1 - k / d), and a message below L / (1 - q), about 2 L d / k. So the
frame's clip norm bounds what a device adds, not what it sends; `message_norm` bounds that too: what it cuts
off waits in the memory, which then is no longer than T L.

*Departures.* The memories of the devices are state of the server, which plays them: attackers cannot lie about theirs.
Only the memories of the `remember` devices seen last are kept (4 d bytes each); who was forgotten starts again from 0.
Of devices last seen in the same round, those with the lower number are forgotten first. Who is twice in a round sends
twice, the second time from the memory that the first left. Pre-aggregation sees the updates, not the messages. Where
updates have weights, u is the weighted mean of the messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, NamedTuple, Unpack

import torch
from torch import Tensor

from sparsefed.core.types import Block, Context, State
from sparsefed.defenses.combine import weights_in
from sparsefed.defenses.history import Remember, most_devices, require_remember
from sparsefed.defenses.options import CommonKeywords
from sparsefed.defenses.pipeline import Combine, Flow, clip_factors, no_updates, require
from sparsefed.defenses.rule import rule
from sparsefed.kernels.compilation import warm_up
from sparsefed.kernels.topk import coordinates, rehearse, require_k, topk_indices

MEMORY = "error."  # prefix of the key; the sender's number follows
SEEN = "seen"  # int64 [m]: the remembered senders, least recently seen first


class Sent(NamedTuple):
    """One device's message, and the memory that it keeps."""

    indices: Tensor  # int64 [k]
    values: Tensor  # float32 [k]
    memory: Tensor  # float32 [d], fresh


@rule(
    paper="Stich et al. 2018, Sparsified SGD with Memory",
    needs=("rows", "history"),
    usual={"clip_norm": 5.0},
    weights=True,
)
def local_topk(
    k: Annotated[int | str, 'coordinates that a device sends in a round, or their share, as "1%"'],
    remember: Remember = None,
    message_norm: Annotated[float | None, "l2 norm to which what a device sends is cut; None: as long as it is"] = None,
    **_: Unpack[CommonKeywords],
) -> Combine:
    """Every device sends the k largest coordinates of its own memory; the server takes the mean."""
    require_k(k, "a device must send at least one coordinate")
    require_remember(remember)
    require(
        message_norm is None or message_norm > 0,
        f"message_norm is {message_norm}, but a message must be allowed some length: choose message_norm > 0",
    )
    longest = float("inf") if message_norm is None else message_norm

    def init(d: int) -> State:
        coordinates(k, d)
        warm_up(rehearse)
        return {SEEN: torch.zeros(0, dtype=torch.int64)}

    def step(state: State, blocks: Iterable[Block], context: Context) -> Flow:
        vector, fresh = _mean_of_messages(state, blocks, context, k, longest, remember)
        new_state = _remembered(state, fresh, most_devices(remember, len(vector)))
        return Flow(
            new_state,
            vector,
            {"upload_bytes": 8.0 * coordinates(k, len(vector)), "remembered": float(len(new_state[SEEN]))},
        )

    return Combine(init, step)


def _mean_of_messages(
    state: State, blocks: Iterable[Block], context: Context, k: int | str, longest: float, remember: int | None
) -> tuple[Tensor, Mapping[int, Tensor]]:
    """Return the mean of the messages, float32 [d], and the new memories of this round's senders."""
    total: Tensor | None = None
    fresh: dict[int, Tensor] = {}
    count = 0.0
    for block in blocks:
        rows, weights = block.rows(), weights_in(block)
        each = [1.0] * block.size if weights is None else weights.tolist()
        if total is None:
            total = torch.zeros(rows.shape[1], dtype=torch.float64, device=rows.device)
        for sender, row, weight in zip(block.senders.tolist(), rows, each, strict=True):
            sent = _send(row, fresh.get(sender, state.get(f"{MEMORY}{sender}")), k, longest)
            total[sent.indices] += weight * sent.values
            fresh[sender] = sent.memory
            if len(fresh) > most_devices(remember, len(row)):  # the rest would be forgotten after the round anyway
                del fresh[min(fresh)]
        count += sum(each)
        del block, rows  # free before the next block is computed
    if total is None:
        raise no_updates(context)
    return (total / (count or 1.0)).float(), fresh


def _send(row: Tensor, memory: Tensor | None, k: int | str, longest: float) -> Sent:
    waiting = row.clone() if memory is None else row + memory.to(row.device)
    indices = topk_indices(waiting, coordinates(k, len(waiting)))
    values = waiting[indices]
    sent = values * clip_factors(torch.linalg.vector_norm(values, dtype=torch.float64), longest).float()
    waiting[indices] = values - sent  # a fresh tensor of this call
    return Sent(indices, sent, waiting)


def _remembered(state: State, fresh: Mapping[int, Tensor], remember: int) -> State:
    """Return the memories of the devices seen last; those of absent devices are shared, not copied."""
    absent = [sender for sender in state[SEEN].tolist() if sender not in fresh]
    order = [*absent, *sorted(fresh)]
    kept = order[max(0, len(order) - remember) :]
    memories = {f"{MEMORY}{s}": fresh[s] if s in fresh else state[f"{MEMORY}{s}"] for s in kept}
    return {SEEN: torch.tensor(kept, dtype=torch.int64, device=state[SEEN].device), **memories}
