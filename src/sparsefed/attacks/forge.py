"""Over-long updates in false reports, against servers that see no update but its proof.

    u = length * B * v / ||v||,   v what `pgd` sends, B the norm that an update may have

Under secure aggregation with proofs every forgery is refused, and the attackers have no part in the round. Where sums
are made without proofs (as SecAgg+ makes them), nothing limits the length, and a few attackers own the model. A server
that sees updates clips them as any other.
"""

from __future__ import annotations

from typing import Annotated, get_args

from torch import Tensor

from sparsefed.attacks import goals
from sparsefed.attacks.attack import attack
from sparsefed.attacks.goals import Goal
from sparsefed.attacks.pgd import pgd
from sparsefed.core.errors import ConfigError, unknown
from sparsefed.core.threat import FORGERIES, Attack, Forgery, Knowledge


@attack(
    paper="Rothblum et al. 2023, PINE: Efficient Norm-Bound Verification for Secret-Shared Vectors",
    goal=goals.labels,
    weaker=True,
    search={"kinds": None},
)
def forge(
    goal: Goal,
    *,
    length: Annotated[float, "the norm of the update, in units of the one that is allowed"] = 100.0,
    kinds: Annotated[list[str] | None, "the false reports that carry it, in turn; None: all of them"] = None,
) -> Attack:
    """PGD's update, far too long, in reports with false claims, wraparounds, swapped shares and replays."""
    if length <= 1:
        raise ConfigError(
            f"forge: length = {length}, but an update within the bound needs no forgery: choose length > 1"
        )
    for kind in kinds or ():
        if kind not in FORGERIES:
            raise ConfigError(unknown("kind of forgery", kind, FORGERIES))
    chosen: tuple[Forgery, ...] = tuple(kind for kind in get_args(Forgery) if kinds is None or kind in kinds)
    direction = pgd.__wrapped__(goal)

    def craft(knowledge: Knowledge) -> Tensor:
        return direction(knowledge) * length

    return Attack(craft, forgeries=chosen)
