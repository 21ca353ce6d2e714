"""Attacks on certified votes in real training: none may flip a point at its certified m, and many should just above.

    python -m benchmarks.vote_attacks [POINTS]

White box: the attackers know every model, all data and the certificate of each vote. They choose the rival label, the
groups to buy and how many devices to use in each, the cheapest first, and in every round send what changes the margin
of the point in that group most: for one softmax layer the margin is linear in the model, so of all updates that the
server lets through the best is along its gradient. Other attacks with the same devices: the opposite of the honest
mean, and garbage (NaN).
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sparsefed import config as configs
from sparsefed import data
from sparsefed.commands.certify.group_plan import GroupPlan, plan_groups
from sparsefed.commands.certify.group_prices import vote_prices
from sparsefed.commands.certify.group_training import group_setup, label_ranks, train_groups
from sparsefed.config import BuiltSimulation
from sparsefed.core.engine import Cohort, LocalStep
from sparsefed.core.round import RoundSetup, simulate, start
from sparsefed.core.types import Arrays, Block
from sparsefed.kernels.blocks import RowsBlock
from sparsefed.theory.votes import IntArray, disjoint, priced, tally

KINDS = ("margin", "opposite", "garbage")


def federation(defense: dict[str, Any], devices: int, rounds: int, lr: float) -> dict[str, Any]:
    """A federation of devices that hold handwritten digits and train one softmax layer."""
    return {
        "rounds": rounds,
        "data": {"name": "digits", "partition": "iid", "devices": devices},
        "model": {"name": "softmax", "zero": True},
        "train": {"cohort": devices, "lr": lr, "schedule": "constant", "weight_decay": 0.0},
        "defense": {"rho": 0.0, **defense},
    }


CLIPPING = {"name": "clipping", "clip_norm": 1.0}
SPARSE = {"name": "sparsefed", "k": 648, "clip_norm": 1.0}
SETTINGS: dict[str, tuple[dict[str, Any], int]] = {
    "plain vote, 12 groups of 3": (federation({"name": "undefended"}, 36, 4, 0.05), 12),
    "clipping inside, 3 groups of 60": (federation(CLIPPING, 180, 1, 0.05), 3),
    "clipping inside, 3 groups of 60, 3 rounds": (federation(CLIPPING, 180, 3, 0.017), 3),
    "sparsefed inside, 3 groups of 60, 30 rounds": (federation(SPARSE, 180, 30, 0.0017), 3),
}


@dataclass(frozen=True)
class Scene:
    """A trained and certified vote, to be attacked."""

    built: BuiltSimulation
    arrays: Arrays
    setups: tuple[RoundSetup, ...]
    votes: IntArray  # [groups, N]
    prices: IntArray  # [groups, N]
    bears: IntArray  # [N]

    @property
    def labels(self) -> IntArray:
        """The winner of each vote."""
        labels: IntArray = tally(self.votes, len(self.arrays.classes)).argmax(1)
        return labels


def scene(table: dict[str, Any], groups: int) -> Scene:
    """Train the groups, and certify their votes: with prices if the server clips."""
    built = configs.build(configs.parse(table))
    arrays = data.load(configs.dataset(built.config))
    plan: GroupPlan = plan_groups(built.setup.federation.device_count, groups, built.config.seed)
    with tempfile.TemporaryDirectory() as folder:
        models = train_groups(built, plan, Path(folder))
    ranks = label_ranks(built.task, models.thetas, torch.from_numpy(arrays.x_test), torch.float32)
    votes = ranks.argmin(2)
    clips = table["defense"]["name"] != "undefended"
    prices = vote_prices(built, arrays, plan, models) if clips else np.ones(votes.shape, np.int64)
    classes = len(arrays.classes)
    bears = priced(votes, prices, classes, plan.devices) if clips else disjoint(votes, classes)
    setups = tuple(group_setup(built, plan, group) for group in range(groups))
    return Scene(built, arrays, setups, votes, prices, bears)


def rivals(scene: Scene, point: int, count: int = 2) -> list[int]:
    """Return the labels that are easiest to make win: those with most votes beside the winner."""
    order = np.argsort(-tally(scene.votes, len(scene.arrays.classes))[point], kind="stable")
    return [int(label) for label in order if label != scene.labels[point]][:count]


def flips(scene: Scene, point: int, m: int, rival: int, kind: str = "margin") -> bool:
    """Return whether so many devices change the label of a point, buying votes for a rival label."""
    label = int(scene.labels[point])
    votes = scene.votes[:, point].copy()
    for group, hostile in _bought(scene, point, label, rival, m):
        votes[group] = attacked_vote(scene, group, hostile, point, label, rival, kind)
    return int(np.bincount(votes).argmax()) != label


def _bought(scene: Scene, point: int, label: int, rival: int, m: int) -> Iterator[tuple[int, int]]:
    """Yield groups and how many of their devices attack: the cheapest for what their vote closes first, m in all."""
    votes, prices = scene.votes[:, point], scene.prices[:, point]
    closes = np.where(votes == label, 2, np.where(votes == rival, 0, 1))
    for group in np.argsort(prices / np.maximum(closes, 1e-9), kind="stable"):
        size = scene.setups[group].federation.device_count
        hostile = min(m, int(prices[group]), size)
        if hostile == 0 or closes[group] == 0:
            return
        m -= hostile
        yield int(group), hostile


def attacked_vote(
    scene: Scene, group: int, hostile: int, point: int, away: int, towards: int, kind: str = "margin"
) -> int:
    """Return the label that a group gives a point after training in which its first devices attack in every round."""
    setup, classes = scene.setups[group], len(scene.arrays.classes)
    x = torch.from_numpy(scene.arrays.x_test[point : point + 1])
    inputs = torch.cat([scene.built.task.prepare(x).flatten(), torch.ones(1)])
    push = torch.zeros(classes, len(inputs))
    push[away], push[towards] = inputs, -inputs
    crafted = 1e6 * torch.cat([push[:, :-1].reshape(-1), push[:, -1]])

    def engine(theta: Tensor, cohort: Cohort, step: LocalStep) -> Iterator[Block]:
        for block in setup.engine(theta, cohort, step):
            rows = block.rows().clone()
            theirs = torch.from_numpy(block.senders < hostile)
            sent = {"margin": crafted, "opposite": -1e3 * rows.mean(0), "garbage": torch.full_like(crafted, torch.nan)}
            rows[theirs] = sent[kind]
            yield RowsBlock(rows, block.senders)

    attacked = replace(setup, engine=engine)
    *_, last = simulate(attacked, start(attacked, scene.built.theta), scene.built.rounds)
    theta = last.state.theta
    scores = theta[:-classes].view(classes, -1) @ inputs[:-1] + theta[-classes:]
    return int(scores.argmax())


def main(arguments: Sequence[str]) -> None:
    """Print how often attacks flip points at their certified m, and how many points fall to one device more."""
    count = int(arguments[0]) if arguments else 120
    print("| vote | points | attacks at the certified m | flipped | one device more flips | of them bear one or more |")
    print("| --- |" + " ---: |" * 5)
    for name, (table, groups) in SETTINGS.items():
        attacked = scene(table, groups)
        points = np.flatnonzero(attacked.bears >= 1)[: max(1, count // max(1, table["rounds"] // 3))].tolist()
        tries = [(p, rival, kind) for p in points for rival in rivals(attacked, p) for kind in KINDS]
        at = sum(flips(attacked, p, int(attacked.bears[p]), rival, kind) for p, rival, kind in tries)
        near = range(min(len(attacked.bears), len(points)))
        fallen = [
            p
            for p in near
            if any(flips(attacked, p, int(attacked.bears[p]) + 1, rival) for rival in rivals(attacked, p))
        ]
        above = f"{len(fallen)} of {len(near)} | {np.count_nonzero(attacked.bears[fallen])}"
        print(f"| {name} | {len(points)} | {len(tries)} | {at} | {above} |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
