"""Mimic: all attackers copy one honest device, which then counts many times (Karimireddy, He and Jaggi 2022,
Byzantine-Robust Learning on Heterogeneous Datasets via Bucketing).

    z = the direction of largest variance of the honest updates,  argmax_|z| = 1  sum_i <z, u_i - mean>^2
    u = u_i of the device i that stands out most along it,  argmax_i |<z, u_i - mean>|

Nothing that is sent is out of the ordinary; only the weights of the honest devices are wrong. That hurts rules that
look for a majority where devices differ, and hardly a mean: f copies among n devices shift it by f / n of the distance
of the device that is copied.

*Departures.* The paper's workers are the same in every round: it learns z over the first rounds, by a power step in
each, and then follows one worker for ever. Here a cohort is drawn anew each round and an attack remembers nothing, so z
is that of the round, exactly, and so is the device: less persistent than the paper's. z is known up to its sign, so the
device is the farthest from the mean on either side.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sparsefed.attacks.attack import HONEST, attack
from sparsefed.attacks.goals import Goal
from sparsefed.attacks.honest import centred_gram, received
from sparsefed.core.threat import Attack, Knowledge


@attack(
    paper="Karimireddy et al. 2022, Byzantine-Robust Learning on Heterogeneous Datasets via Bucketing",
    needs=HONEST,
    place=13,
)
def mimic(goal: Goal | None) -> Attack:  # noqa: ARG001
    """All attackers copy the update of the honest device that stands out most."""

    def craft(knowledge: Knowledge) -> Tensor:
        rows = received(knowledge)
        return rows[outstanding(rows)]

    return Attack(craft, frozenset({"honest updates"}))


def outstanding(rows: Tensor) -> int:
    """Return the row farthest from the mean along the direction of largest variance.

    With U the centred rows and U U^T v = lambda v, z = U^T v / sqrt(lambda), so <z, U_i> = sqrt(lambda) v_i: the top
    eigenvector of the small matrix suffices, and z need not be computed.
    """
    _, vectors = torch.linalg.eigh(centred_gram(rows))
    return int(vectors[:, -1].abs().argmax())
