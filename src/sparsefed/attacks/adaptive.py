"""Attacks on a server that keeps the top k: they simulate it to learn which coordinates it will apply (the adaptive
attack of Panda et al. 2022, SparseFed, "perfect knowledge of the top-k coordinates").

    M(v)    =  { j : what the server would subtract is not 0 at j }, if the honest send what they do and attackers v
    topk    :  u = PGD along the gradient restricted to M(0)
    push    :  u_c = the c largest coordinates of u_PGD, at full norm;  c maximises <g(theta), what the server then
               subtracts>, by how much the attackers' loss falls to first order, on a batch of the goal's points

The first keeps to the coordinates that come through anyway. The second concentrates its norm on so few coordinates of
its own that they rise above the server's threshold, the k-th largest entry of its memory, and come through as well. The
threshold is not computed: a trial of the server accounts for budget, attackers, cohort, momentum and memory.

Their strength against SparseFed, measured on small federations: top-k alone discards what it does not pick, and there
the first beats `pgd`. The error memory only delays it, so that a full PGD update arrives all the same; the first
attack, bound to coordinates that the honest devices move as well, is then weaker, though harder to notice. The second
is stronger only where k is small and the norm that the server allows is well above the honest ones.

*Departures.* The paper gives no algorithm, and its authors' code computes the mask and never uses it. Where nothing
would be applied, or everything (a server without top-k), `adaptive_topk` is `pgd`. The second attack is ours.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import torch
from torch import Tensor

from sparsefed.attacks import goals
from sparsefed.attacks.attack import SERVER, Otherwise, attack
from sparsefed.attacks.base import granted, rescale
from sparsefed.attacks.goals import Goal
from sparsefed.attacks.own_data import some
from sparsefed.attacks.pgd import pgd
from sparsefed.core.errors import ConfigError
from sparsefed.core.threat import Attack, Knowledge, Need
from sparsefed.kernels.topk import topk_mask

PAPER = "Panda et al. 2022, SparseFed: Mitigating Model Poisoning Attacks in Federated Learning with Sparsification"

NEEDED: frozenset[Need] = frozenset({"defense", "honest updates", "server state"})

Epochs = Annotated[int, "PGD steps; each takes one batch of the goal's points"]
BatchSize = Annotated[int, "of the goal's points, in a step"]
Eta = Annotated[float, "eta, the length of a step"]
Boost = Annotated[float, "factor on the attacker's loss"]


@attack(paper=PAPER, goal=goals.labels, needs=SERVER, place=2, search={"passes": "1:4"})
def adaptive_topk(
    goal: Goal,
    *,
    passes: Annotated[int, "how often the coordinates are foreseen; after the first with the last update in mind"] = 1,
    epochs: Epochs = 5,
    batch: BatchSize = 100,
    step: Eta = 0.02,
    boost: Boost = 20.0,
    to_budget: Annotated[bool, "stretch the update to exactly the norm that the server enforces"] = True,
) -> Attack:
    """Colluding PGD that moves only the coordinates that the server is going to apply."""
    if passes < 1:
        raise ConfigError(f"adaptive_topk: passes = {passes}, but the coordinates must be foreseen once; use 1 or more")
    method = pgd.__wrapped__(goal, epochs=epochs, batch=batch, step=step, boost=boost, to_budget=to_budget)

    def craft(knowledge: Knowledge) -> Tensor:
        subtracted = foresight(knowledge)
        update = torch.zeros_like(knowledge.theta)
        for _ in range(passes):
            update = method(_restricted(knowledge, subtracted(update) != 0))
        return update

    return Attack(craft, NEEDED)


@attack(
    paper=PAPER,
    goal=goals.labels,
    needs=SERVER,
    otherwise=Otherwise("coordinates is given", {"coordinates": 40}, frozenset()),
    place=1,
)
def adaptive_push(
    goal: Goal,
    *,
    coordinates: Annotated[int | None, "how many to push over the threshold; None: as many as pay off most"] = None,
    epochs: Epochs = 5,
    batch: BatchSize = 100,
    step: Eta = 0.02,
    boost: Boost = 20.0,
) -> Attack:
    """Colluding PGD whose norm is spent on a few coordinates, so that they rise above the server's threshold."""
    if coordinates is not None and coordinates < 1:
        raise ConfigError(f"adaptive_push: coordinates = {coordinates}, but there must be one to push; use 1 or more")
    method = pgd.__wrapped__(goal, epochs=epochs, batch=batch, step=step, boost=boost)

    def craft(knowledge: Knowledge) -> Tensor:
        full = method(knowledge)
        if coordinates is not None:
            return concentrated(full, min(coordinates, len(full)), knowledge.budget)
        subtracted = foresight(knowledge)
        downhill = knowledge.gradient(knowledge.theta, *some(goal, knowledge, batch)).double()
        tried = [concentrated(full, count, knowledge.budget) for count in quarterings(len(full))]
        return max(tried, key=lambda update: float(downhill @ subtracted(update).double()))

    return Attack(craft, NEEDED if coordinates is None else frozenset())  # a given number needs no knowledge


def foresight(knowledge: Knowledge) -> Callable[[Tensor], Tensor]:
    """Return what the server would subtract in this round, as a function of what all the attackers send."""
    honest, serve = granted(knowledge.honest, "honest updates"), granted(knowledge.serve, "defense")
    rows = torch.cat([honest, honest.new_zeros(knowledge.attackers, honest.shape[1])])

    def subtracted(update: Tensor) -> Tensor:
        rows[len(honest) :] = update  # in place: copying the honest rows costs more than the server's own work
        return serve(rows)

    return subtracted


def concentrated(update: Tensor, count: int, budget: float) -> Tensor:
    """Return the `count` largest coordinates of an update alone, rescaled to the full norm.

    >>> concentrated(torch.tensor([3.0, 1.0, 4.0]), 2, 10.0)
    tensor([6., 0., 8.])
    """
    return rescale(update * topk_mask(update, count), budget)


def quarterings(d: int) -> list[int]:
    """Return d, a quarter of it, and so on down to 1 or more.

    >>> quarterings(100)
    [100, 25, 6, 1]
    """
    return [d >> i for i in range(0, d.bit_length(), 2)]


def _restricted(knowledge: Knowledge, mask: Tensor) -> Knowledge:
    """Return the public facts with a gradient that is 0 outside the mask; an empty mask is ignored."""
    kept = mask if bool(mask.any()) else ~mask

    def gradient(theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return knowledge.gradient(theta, x, y) * kept

    return Knowledge(knowledge.round, knowledge.theta, knowledge.budget, gradient, knowledge.seed)
