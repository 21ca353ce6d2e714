"""Training a model for every group of devices, and the order of the labels in their scores; resumed after any kill.

A group is the config's federation with its own devices alone: same server, rounds and first model, a seed of its own.
What other groups own or send reaches it nowhere. Groups are trained a few at a time; each few have a file with their
states, written as often as the config saves checkpoints, so that the same command goes on where it was.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.func import functional_call

from sparsefed import config as configs
from sparsefed.commands.certify.group_plan import GroupPlan
from sparsefed.config import BuiltSimulation, Config, live
from sparsefed.core.dtypes import computed_in
from sparsefed.core.engine import Cohort, LocalStep
from sparsefed.core.errors import RunError
from sparsefed.core.federation import none
from sparsefed.core.progress import OnProgress, Progress
from sparsefed.core.rng import integer_seed
from sparsefed.core.round import RoundSetup, ServerState, local_step, run_round, start
from sparsefed.core.task import Task, working_copy
from sparsefed.core.threat import ThreatModel
from sparsefed.core.types import Block, Context, IntArray, Partition
from sparsefed.engines.group_stacks import GroupStacks, GroupWork, worth_stacking
from sparsefed.kernels.blocks import RowsBlock
from sparsefed.runs import checkpoint
from sparsefed.runs.disk import disk, locked, read_bytes, write_atomically

STACKED_GROUPS = 50  # trained together at most: what a kill can cost, and what is in memory at a time
ENTRY, HEADER = "groups", ("round", "key")


@dataclass(frozen=True)
class GroupModels:
    """The trained model of every group, and the longest honest update of each of its rounds."""

    thetas: Tensor  # float32 [groups, d]
    longest: Tensor  # float64 [groups, rounds], before clipping


def group_setup(built: BuiltSimulation, plan: GroupPlan, group: int) -> RoundSetup:
    """Return the setup of one group: the config's, with the group's devices alone and a seed of its own."""
    setup, ids = built.setup, plan.members[group]
    federation, seed = setup.federation, integer_seed(built.config.seed, "group", client=group)
    n = min(federation.n, len(ids))
    setup.defense.check(n)
    own = replace(
        federation,
        partition=_part(federation.partition, ids),
        n=n,
        threat=ThreatModel(),
        malicious=np.zeros(0, np.int64),
        seed=seed,
    )
    decay = built.config.train.weight_decay / n
    return replace(setup, federation=own, seed=seed, attack=None, weight_decay=decay)


def _part(partition: Partition, ids: IntArray) -> Partition:
    """Return the partition of these devices alone, numbered from 0."""
    sizes = partition.offsets[ids + 1] - partition.offsets[ids]
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    rows = np.repeat(partition.offsets[ids] - offsets[:-1], sizes) + np.arange(offsets[-1])
    return Partition(offsets, partition.examples[rows])


def training_key(config: Config, plan: GroupPlan) -> str:
    """Return a key of everything that the models depend on, so that a folder never mixes two of them."""
    members = [each.tolist() for each in plan.members]
    text = json.dumps([live.numberless(configs.dump(config)), plan.kind, members], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def train_groups(
    built: BuiltSimulation, plan: GroupPlan, folder: Path, on_progress: OnProgress | None = None
) -> GroupModels:
    """Train a model for every group, or go on with those that a folder holds.

    Args:
        built: The simulation of the whole federation; its attackers are left out.
        plan: The groups.
        folder: Where the models and the states of unfinished groups are kept.
        on_progress: Called after every round of some groups.

    Raises:
        ConfigError: The config's rule does not work with so few devices.
        RunError: The folder holds groups of another config, or cannot be written to.
    """
    setups = [group_setup(built, plan, group) for group in range(plan.groups)]
    stacked = _stacked(built, setups)
    few = STACKED_GROUPS if stacked else 1
    reports, key = _Reports(len(setups), built.rounds, on_progress), training_key(built.config, plan)
    with disk(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with locked(folder):
        trained = [
            _trained(built, setups[first : first + few], stacked, _File(folder, first, key), reports)
            for first in range(0, len(setups), few)
        ]
    return GroupModels(torch.cat([each.thetas for each in trained]), torch.cat([each.longest for each in trained]))


def _stacked(built: BuiltSimulation, setups: Sequence[RoundSetup]) -> bool:
    """Return whether groups are computed in stacks, or each by itself because that is faster."""
    setup = max(setups, key=lambda each: int(np.diff(each.federation.partition.offsets).max()))
    return setup.root is None and worth_stacking(built.task, built.theta, _cohort(setup, 1), setup.plan)


# --- a few groups, round by round ------------------------------------------------------------------------------------


def _trained(
    built: BuiltSimulation, setups: Sequence[RoundSetup], stacked: bool, file: _File, reports: _Reports
) -> GroupModels:
    """Train some groups together, from the last state in their file."""
    begin = [start(setup, built.theta) for setup in setups]
    stacks = GroupStacks(built.task, computed_in(built.config.train.dtype)) if stacked else None
    states, longest = file.read(begin, built.rounds)
    reports.begin(len(setups), states[0].round)
    while (done := states[0].round) < built.rounds:
        engines = _engines(setups, states, stacks)
        for i, (setup, engine) in enumerate(zip(setups, engines, strict=True)):
            report = run_round(replace(setup, engine=engine), states[i])
            states[i], longest[i, done] = report.state, float(report.metrics["honest_longest"] or 0.0)
        if (done + 1) % built.config.checkpoint_every == 0 or done + 1 == built.rounds:
            file.write(states, longest)
        reports.advance(done + 1)
    return GroupModels(torch.stack([state.theta for state in states]), longest)


def _engines(
    setups: Sequence[RoundSetup], states: Sequence[ServerState], stacks: GroupStacks | None
) -> Iterator[Callable[..., Iterator[Block]]]:
    """Yield an engine for each group's next round: its own, or one that has all updates ready from a common pass."""
    if stacks is None:
        yield from (setup.engine for setup in setups)
        return
    round = states[0].round + 1
    work = [
        GroupWork(state.theta, _cohort(setup, round), local_step(setup, Context(round, setup.schedule(round))))
        for setup, state in zip(setups, states, strict=True)
    ]
    for rows in stacks.rows(work, all(setup.federation.augment is none for setup in setups)):

        def ready(theta: Tensor, cohort: Cohort, step: LocalStep, rows: Tensor = rows) -> Iterator[Block]:  # noqa: ARG001
            yield RowsBlock(rows, cohort.ids)

        yield ready


def _cohort(setup: RoundSetup, round: int) -> Cohort:
    federation = setup.federation
    ids = federation.cohort(round)
    return Cohort(ids, federation.sizes(ids), lambda some: federation.training(some, round))


class _Reports:
    """The progress of all groups, in rounds of a group."""

    def __init__(self, groups: int, rounds: int, on_progress: OnProgress | None) -> None:
        self._groups, self._rounds, self._on_progress = groups, rounds, on_progress
        self._before = self._now = 0  # groups that are finished, and in the file at work

    def begin(self, groups: int, done: int) -> None:
        self._before += self._now
        self._now = groups
        self.advance(done)

    def advance(self, done: int) -> None:
        if self._on_progress is not None:
            first, last = self._before + 1, self._before + self._now
            which = f"groups {first} to {last}" if last > first else f"group {first}"
            line = f"{which} of {self._groups}: trained" if done == self._rounds else ""
            rounds = self._before * self._rounds + self._now * done
            total = self._groups * self._rounds
            self._on_progress(Progress("rounds of groups", rounds, total, line=line, fields={"training": which}))


class _File:
    """The file with the states of some groups: their models alone once they are trained."""

    def __init__(self, folder: Path, first: int, key: str) -> None:
        self._path, self._key = folder / f"groups-{first:05d}.safetensors", key

    def read(self, begin: Sequence[ServerState], rounds: int) -> tuple[list[ServerState], Tensor]:
        """Return the last states that were written, or those before round 1."""
        longest = torch.zeros(len(begin), rounds, dtype=torch.float64)
        if not self._path.exists():
            return list(begin), longest
        try:
            tensors, header = checkpoint.loads(read_bytes(self._path, None), ENTRY, HEADER)
            round = int(header["round"])
            if header["key"] != self._key or tensors["theta"].shape[0] != len(begin) or not 1 <= round <= rounds:
                raise ValueError("it is of other groups")
            longest = tensors["longest"]
            states = [ServerState(round, tensors["theta"][i], _own(tensors, i)) for i in range(len(begin))]
        except (ValueError, KeyError, TypeError) as error:
            raise RunError(f"cannot go on with {self._path} ({error}); remove it to train its groups anew") from error
        return states, longest

    def write(self, states: Sequence[ServerState], longest: Tensor) -> None:
        """Write the states; those of the servers are left out after the last round."""
        tensors = {"theta": torch.stack([state.theta for state in states]), "longest": longest}
        if states[0].round < longest.shape[1]:
            for i, state in enumerate(states):
                tensors |= {f"{i}.{name}": value for name, value in state.defense.items()}
        with disk(self._path.parent):
            header = {"round": states[0].round, "key": self._key}
            write_atomically(self._path, checkpoint.dumps(tensors, header, ENTRY))


def _own(tensors: dict[str, Tensor], i: int) -> dict[str, Tensor]:
    return {name.removeprefix(f"{i}."): value for name, value in tensors.items() if name.startswith(f"{i}.")}


# --- votes -----------------------------------------------------------------------------------------------------------


@torch.inference_mode()
def label_ranks(task: Task, thetas: Tensor, x: Tensor, dtype: torch.dtype, batch: int = 500) -> npt.NDArray[np.uint8]:
    """Return the order of the labels in each model's scores [groups, N, classes]: 0 for the highest; ties by label."""
    module = working_copy(task, dtype).eval()
    weights = [
        {slot.name: theta[slot.start : slot.stop].view(slot.shape).to(dtype) for slot in task.slots} for theta in thetas
    ]
    ranks: npt.NDArray[np.uint8] | None = None
    for low in range(0, len(x), batch):
        inputs = task.prepare(x[low : low + batch])
        inputs = inputs.to(dtype) if inputs.is_floating_point() else inputs
        for group, own in enumerate(weights):
            scores = torch.nan_to_num(functional_call(module, own, (inputs,)).float(), nan=-torch.inf)
            order = torch.argsort(scores, dim=1, descending=True, stable=True)
            if ranks is None:
                ranks = np.empty((len(weights), len(x), scores.shape[1]), np.uint8)
            ranks[group, low : low + batch] = torch.argsort(order, dim=1).to(torch.uint8).numpy()
    assert ranks is not None
    return ranks
