"""The price of every vote: how many of a group's own devices it takes to change it, where its server clips.

A group whose server clips updates (and keeps k coordinates of an error memory, if it is SparseFed) bears some attackers
of its own: for one softmax layer the radii of `theory.linear` say on which points its prediction stays, as they do for
a whole federation. `theory.votes.priced` turns these prices into a certificate for the vote.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch

from sparsefed.commands.certify import assumptions as known
from sparsefed.commands.certify.group_plan import GroupPlan
from sparsefed.commands.certify.group_training import GroupModels, group_setup
from sparsefed.commands.certify.subject import CertificateSource, Round, server_of
from sparsefed.config import BuiltSimulation
from sparsefed.core.engine import one_step
from sparsefed.core.errors import ConfigError
from sparsefed.core.types import Arrays, Context
from sparsefed.theory import linear, lipschitz
from sparsefed.theory.linear import Points
from sparsefed.theory.lipschitz import Smoothness
from sparsefed.theory.threat_schedule import ThreatSchedule
from sparsefed.theory.votes import FREE, IntArray


def vote_prices(built: BuiltSimulation, arrays: Arrays, plan: GroupPlan, models: GroupModels) -> IntArray:
    """Return how many of its own devices it takes to change each group's vote on each test point [groups, N].

    Raises:
        ConfigError: The groups' model or server has no certificate of its own.
    """
    check_priced(built, plan)
    x, y = torch.from_numpy(arrays.x_test), torch.from_numpy(arrays.y_test)
    seen = linear.task_points(built.task, models.thetas[0], x, y)
    margins = linear.margins(built.task, models.thetas, x)
    setups = [group_setup(built, plan, group) for group in range(plan.groups)]
    decay = max(setup.weight_decay for setup in setups)
    smooth = lipschitz.exact(built.task, built.setup.federation, decay)
    prices = np.ones(margins.shape, np.int64)
    for group, setup in enumerate(setups):
        schedule = _schedule(replace(built, setup=setup), arrays, models.longest[group].tolist(), smooth)
        size, cohort = len(plan.members[group]), setup.federation.n
        prices[group] = _prices(replace(seen, margin=margins[group]), schedule, size, cohort)
    return prices


def check_priced(built: BuiltSimulation, plan: GroupPlan) -> None:
    """Raise an error with the reason if votes have no prices above 1."""
    if not lipschitz.is_softmax_task(built.task):
        raise ConfigError("a group's own certificate is for one softmax layer; this model has none")
    if plan.kind != "disjoint":
        raise ConfigError("prices are for disjoint groups; in these a device reaches several groups at once")
    if plan.sizes[1] == 1:
        raise ConfigError("a group of one device bears no attacker of its own; prices need larger groups")
    server_of(built.config)
    setup = built.setup
    if setup.device_lr and not one_step(setup.plan, np.diff(setup.federation.partition.offsets)):
        raise ConfigError("a group's own certificate is for one local step a device")


def _schedule(built: BuiltSimulation, arrays: Arrays, longest: Sequence[float], smooth: Smoothness) -> ThreatSchedule:
    """Return the threat schedule of one group, from the lengths of its honest updates."""
    setup, config = built.setup, built.config
    rounds = []
    for t, norm in enumerate(longest, 1):
        lr = setup.schedule(t)
        rounds.append(Round(lr, setup.defense.budget({}, Context(t, lr)), setup.federation.n, 0, None, norm))
    source = CertificateSource("a group", config, server_of(config, len(built.theta)), arrays, built, tuple(rounds))
    omegas, _ = known.losing(source, known.WORST)
    return known.threat_schedule(source, [0.0] * len(rounds), smooth, omegas)[0]


def _prices(seen: Points, schedule: ThreatSchedule, size: int, cohort: int) -> npt.NDArray[np.int64]:
    """Return the price of one group's vote on each point: 1 more than the attackers among its devices that it bears.

    All of its attackers may be in every cohort. The radius grows with them, so the first number that no point bears
    ends the search; a vote that bears all of the group's devices cannot be bought.
    """
    of_share, prices = linear.radii_of_share(schedule), np.ones(len(seen.margin), np.int64)
    for attackers in range(1, size + 1):
        kept = linear.keeps(seen, of_share(min(attackers, cohort) / cohort))
        if not kept.any():
            break
        prices[kept] = FREE if attackers == size else attackers + 1
    return prices
