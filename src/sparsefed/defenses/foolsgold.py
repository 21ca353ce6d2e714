"""FoolsGold: devices whose updates, summed over the rounds, resemble another's are taken for sybils and learn less.

The Limitations of Federated Learning in Sybil Settings (Fung, Yoon, Beschastnikh 2020, Algorithm 1). With H_i the sum
of all that device i sent, this round's update with it,

    cs_ij    =  cos(H_i, H_j),  i != j            v_i = max(0, max_j cs_ij)
    cs_ij    =  cs_ij v_i / v_j   where v_j > v_i                              pardoning
    alpha_i  =  1 - max_j cs_ij,  cut to [0, 1], divided by the largest
    alpha_i  =  kappa (ln(alpha_i / (1 - alpha_i)) + 1/2),  cut to [0, 1]      logit
    u        =  (1/n) sum_i alpha_i u_i

As in the authors' code, similarities below 0 count as 0, and an alpha above 0.99 enters the logit as 0.99.

*Departures.*

- The paper and the code add up alpha_i u_i; here the sum is divided by n, so that a cohort without sybils gives the
  mean and needs no learning rate of its own. (Dividing by the sum of the alphas, as others do, would give what little
  trust is left the weight of all.)
- The paper's clients are all there in every round. With sampled cohorts, similarities are among the devices of the
  round; the histories of the others wait, at most `remember` of them, the least recently seen forgotten first (of those
  last seen in the same round, the lowest number). remember = 0 judges each round by itself.
- No feature importance: all coordinates count alike, as in the authors' code for deep networks.
- Devices that are all alike (1 - cos below 1e-9) get nothing, where the formula is 0 / 0. One device alone is trusted.
- A device that sends several updates in one round has one history and one alpha for all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Unpack

import numpy as np
import torch
from torch import Tensor

from sparsefed.core.types import Block, Context, IntArray, State
from sparsefed.defenses.combine import accepted, stack
from sparsefed.defenses.history import Remember, most_devices, require_remember
from sparsefed.defenses.options import CommonKeywords
from sparsefed.defenses.pipeline import Combine, Flow, require
from sparsefed.defenses.rule import rule
from sparsefed.kernels.compilation import warm_up
from sparsefed.kernels.distances import gram, rehearse
from sparsefed.kernels.rows import weighted_sum

ALIKE = 1e-9  # a distance 1 - cos below this is rounding
SURE = 0.99  # the logit sees no larger alpha
TILE = 1 << 18  # coordinates, over all histories, compared at a time

Histories = Mapping[int, Tensor]  # of each sender, float32 [d]


@rule(paper="Fung et al. 2020, The Limitations of Federated Learning in Sybil Settings", needs=("all rows", "history"))
def foolsgold(
    remember: Remember = None,
    kappa: Annotated[float, "confidence: how steeply the logit parts sybils from the rest"] = 1.0,
    **_: Unpack[CommonKeywords],
) -> Combine:
    """The mean with weights that fall with the similarity of a device's past updates to those of any other device."""
    require_remember(remember)
    require(kappa > 0, f"kappa is {kappa}, but confidence must be positive: choose kappa > 0 (the authors have 1)")

    def init(d: int) -> State:  # noqa: ARG001
        warm_up(rehearse)
        return {}

    def step(state: State, blocks: Iterable[Block], context: Context) -> Flow:
        rows, senders, *_ = stack(blocks, context)
        if not len(rows):
            return Flow(state, rows.new_zeros(rows.shape[1]))
        histories = summed(state, rows, senders)
        trust = alphas(cosines(list(histories.values())), kappa)
        # Senders in the order of `histories`: sorted.
        weights = trust[torch.from_numpy(np.unique(senders, return_inverse=True)[1]).to(trust.device)]
        stats = {"trust": float(trust.mean()), "trusted": float((trust > 0).sum())}
        vector = weighted_sum(rows, weights / len(rows))
        most = most_devices(remember, len(vector))
        state = remembered(state, histories, context.round, most)
        return Flow(state, vector, stats, accepted(senders, weights))

    return Combine(init, step)


def summed(state: State, rows: Tensor, senders: IntArray) -> Histories:
    """Return the history of each sender of the round, this round's updates added, in their order; fresh tensors."""
    new: dict[int, Tensor] = {}
    for i in np.argsort(senders, kind="stable").tolist():
        sender = int(senders[i])
        old = new.get(sender, state.get(f"history.{sender}", torch.zeros(())))  # no history: one 0 for all coordinates
        new[sender] = old.to(rows.device) + rows[i]
    return new


def cosines(vectors: list[Tensor]) -> Tensor:
    """Return cos(vector_i, vector_j), float64 [m, m]; 0 on the diagonal and with a vector of zeros."""
    starts = range(0, len(vectors[0]), TILE)  # tile by tile: never a second copy of all histories
    products = torch.stack([gram(torch.stack([v[a : a + TILE] for v in vectors])) for a in starts]).sum(0)
    norms = products.diagonal().sqrt()
    directions = torch.where(norms > 0, 1 / norms, 0.0)
    return (products * directions[:, None] * directions).fill_diagonal_(0)


def alphas(similarity: Tensor, kappa: float) -> Tensor:
    """Return the learning rate of each device from their similarities [m, m], whose diagonal is 0."""
    v = similarity.amax(1)
    pardon = torch.where(v[:, None] < v, v[:, None] / v, 1.0)
    alpha = (1 - (similarity * pardon).amax(1)).clamp(0, 1)
    alpha = torch.where(alpha > ALIKE, alpha, 0.0)
    if not alpha.any():
        return alpha
    return (kappa * (torch.logit((alpha / alpha.max()).clamp_max(SURE)) + 0.5)).clamp(0, 1)


def remembered(state: State, new: Histories, round: int, remember: int) -> State:
    """Return the new state; unchanged histories are shared with the old one, not copied."""
    merged = {**state, **{f"history.{s}": history for s, history in new.items()}}
    merged |= {f"seen.{s}": torch.tensor(float(round), device=history.device) for s, history in new.items()}
    seen = {int(name.removeprefix("seen.")): float(t) for name, t in merged.items() if name.startswith("seen.")}
    latest = sorted(seen, key=lambda s: (seen[s], s), reverse=True)[:remember]
    return {f"{kind}.{s}": merged[f"{kind}.{s}"] for kind in ("history", "seen") for s in sorted(latest)}
