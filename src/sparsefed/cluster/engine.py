"""An engine whose blocks are computed by the workers of a Ray cluster, and read in the order of the blocks.

The norm to which updates are clipped is known before a round, so a worker answers norms and the clipped sum at once: 8
bytes a device and 4 bytes a coordinate. Whatever else a rule asks (other weights, rows, slices of columns) is asked
again. At most `IN_FLIGHT` requests a worker are on their way or wait to be read, so the driver holds at most as many
sums.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sparsefed.cluster import connect
from sparsefed.cluster.greeting import greet
from sparsefed.cluster.requests import Answers, BlockAnswer, PartRequest, WorkerOrder
from sparsefed.cluster.slices import RemoteRows
from sparsefed.cluster.team import IN_FLIGHT, PendingAnswer, Team, WorkerLostError
from sparsefed.cluster.worker import Devices, foreseen, probed
from sparsefed.config import BuiltSimulation, Config, dump, is_live, rule
from sparsefed.config.build import whole_engine
from sparsefed.core.engine import Cohort, LocalStep
from sparsefed.core.errors import ConfigError
from sparsefed.core.round import RoundReport, ServerState
from sparsefed.core.task import draws
from sparsefed.core.types import Block, IntArray
from sparsefed.defenses.pipeline import clip_factors
from sparsefed.engines.parts import part_step, parts
from sparsefed.kernels.sliced import SlicedRows

LOOK = 1.0  # seconds between two looks for workers that came back while nobody answers

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ClusterSimulation(BuiltSimulation):
    """A simulation whose updates are computed on a cluster, from the first round that is run to the last."""

    def reports(self, state: ServerState) -> Iterator[RoundReport]:
        """Run the rounds that follow a state, and release the workers at the end."""
        try:
            yield from super().reports(state)
        finally:
            engine = self.setup.engine
            if isinstance(engine, RayEngine):
                engine.close()


def on_cluster(built: BuiltSimulation, on: str | None) -> BuiltSimulation:
    """Return a simulation that computes its updates on a cluster; as it is, if `on` is None.

    Raises:
        ConfigError: `on` is not ray or ray:N, Ray is not installed, or the run computes on an accelerator.
    """
    if on is None:
        return built
    wanted = connect.workers_wanted(on)
    connect.library()
    if built.task.device.type != "cpu":
        raise ConfigError(f"train.device is {built.task.device}, but --on ray computes on processors; leave it out")
    fields = {name: getattr(built, name) for name in BuiltSimulation.__dataclass_fields__}
    setup = replace(built.setup, engine=RayEngine(built, wanted))
    return ClusterSimulation(**{**fields, "setup": setup})


def answers_of(config: Config) -> Answers:
    """Return what the rule of a config reads of honest updates, besides their norms."""
    info = rule(config.defense.name)
    if config.secure is not None or config.train.worker_momentum is not None or config.defense.params.get("pre"):
        return "rows"
    if info.slices:
        return "slices"
    return "rows" if {"rows", "all rows"} & set(info.needs) else "sums"


class RayEngine:
    """An engine that computes the cohorts of rounds on a cluster, and everything else here."""

    def __init__(self, built: BuiltSimulation, wanted: int | None) -> None:
        self._built, self._wanted, self._here = built, wanted, built.setup.engine
        self._answers, self._noticed = answers_of(built.config), False
        self._team: Team | None = None
        self.spent: dict[int, float] = {}  # seconds that each worker computed in the last round
        self._random_layers = draws(built.task.template)

    def __call__(self, theta: Tensor, cohort: Cohort, step: LocalStep) -> Iterator[Block]:
        return self._here(theta, cohort, step) if cohort.use is None else self._blocks(theta, cohort, step)

    def close(self) -> None:
        """Release the workers; the next round starts others."""
        if self._team is not None:
            self._team.close()
        self._team = None

    def _blocks(self, theta: Tensor, cohort: Cohort, step: LocalStep) -> Iterator[Block]:
        requests = self._requests(cohort, step)
        team = self._started(requests[0], theta)
        self._notice(len(requests), len(team))
        call = RemoteCall(team, connect.connect().put(theta.numpy()), len(theta))
        self.spent = {}
        for request, worker, answers in call.in_order(requests):
            for number, answer in enumerate(answers):
                self.spent[worker] = self.spent.get(worker, 0.0) + answer.seconds
                yield RemoteBlock(call, request, number, answer, worker)
            del answers, answer  # their memory must be free while the next are read

    def _requests(self, cohort: Cohort, step: LocalStep) -> list[PartRequest]:
        use, name = cohort.use, uuid.uuid4().hex
        assert use is not None
        return [
            PartRequest(
                name,
                number,
                part.ids,
                use.round,
                part_step(step, number, self._random_layers),
                self._answers,
                use.rows,
                use.budget,
                np.array([use.weights[device] for device in part.ids.tolist()]) if use.weights else None,
            )
            for number, part in enumerate(parts(cohort, self._built.config.train.block))
        ]

    def _started(self, first: PartRequest, theta: Tensor) -> Team:
        """Return the workers; the first round finds out what they must share with this process, and starts them."""
        if self._team is not None:
            return self._team
        config, setup, threads = self._built.config, self._built.setup, torch.get_num_threads()
        live = is_live(config)
        devices = Devices(setup.federation, self._built.task, _EngineOf(config)) if live else None
        probe = first._replace(ids=first.ids[:2], number=-1)
        order = WorkerOrder(uuid.uuid4().hex, None if live else dump(config), devices, threads, probe, None, setup.root)
        ours = greet(setup.federation, threads, probed(self._here, setup.federation, order, theta.numpy()))
        ray = connect.connect()
        self._team = Team(ray, order._replace(expected=ours), ray.put(theta.numpy()), self._wanted)
        return self._team

    def _notice(self, requests: int, workers: int) -> None:
        if requests < workers and not self._noticed:
            size = self._built.config.train.cohort
            advice = max(1, -(-size // (2 * workers)))
            log.warning(
                "a round of %d part(s) keeps %d of %d workers busy; train.block = %d would give each two, with other "
                "last bits",
                requests, requests, workers, advice,
            )  # fmt: skip
        self._noticed = True


class _EngineOf:
    """The function from a task to its engine; a class, so that another process can import it."""

    def __init__(self, config: Config) -> None:
        self._config = config

    def __call__(self, task: Any) -> Any:
        return whole_engine(self._config, task)


class RemoteCall:
    """One call of the engine: the workers, and the model that they all compute with."""

    def __init__(self, team: Team, theta: Any, d: int) -> None:
        self.team, self.theta, self.d = team, theta, d

    def in_order(self, requests: list[PartRequest]) -> Iterator[tuple[PartRequest, int, list[BlockAnswer]]]:
        """Yield the answers in the order of the requests; any worker may answer any of them, in any order."""
        waiting, asked, done = list(range(len(requests))), dict[int, PendingAnswer](), dict[int, tuple[int, Any]]()
        for due in range(len(requests)):
            while due not in done:
                self._give_out(requests, waiting, asked, due)
                for task in self.team.answered(list(asked.values()), LOOK) if asked else ():
                    number = next(number for number, other in asked.items() if other is task)
                    del asked[number]
                    try:
                        done[number] = task.worker, self.team.answer(task)
                    except WorkerLostError:
                        waiting = sorted([*waiting, number])
            self._give_out(requests, waiting, asked, due + 1)
            yield requests[due], *done.pop(due)

    def _give_out(
        self, requests: list[PartRequest], waiting: list[int], asked: dict[int, PendingAnswer], due: int
    ) -> None:
        """Ask whatever may be asked: not too far ahead of what is read, and not too much of one worker."""
        ahead = due + IN_FLIGHT * len(self.team)
        while waiting and waiting[0] < ahead and (worker := self.team.free()) is not None:
            number = waiting.pop(0)
            asked[number] = self.team.ask(worker, "answer", requests[number], self.theta)
        if waiting and not asked and waiting[0] < ahead:
            self.team.someone()  # nobody is at work: wait, or give up

    def ask(self, worker: int, method: str, request: PartRequest, *given: Any) -> Any:
        """Return one more answer about a part, from the worker that has computed it, or from another one."""
        while True:
            try:
                return self.team.answer(self.team.ask(self.team.someone(worker), method, request, self.theta, *given))
            except WorkerLostError:
                continue


class RemoteBlock:
    """Some clients' updates, computed by a worker: norms and the clipped sum are here, all else is asked for."""

    def __init__(self, call: RemoteCall, request: PartRequest, number: int, answer: BlockAnswer, worker: int) -> None:
        self.call, self.request, self.number, self.worker = call, request, number, worker
        self._answer, self._norms = answer, _tensor(answer.norms)
        self.senders: IntArray = np.array(answer.senders)

    @property
    def size(self) -> int:
        return len(self.senders)

    @property
    def remote(self) -> RemoteBlock | None:
        """This block, if its rows stay with the worker and slices of them can be asked for."""
        return self if self.request.answers == "slices" else None

    def norms(self) -> Tensor:
        return self._norms

    def weighted_sum(self, weights: Tensor) -> Tensor:
        if self._answer.total is not None and torch.equal(weights, self._foreseen()):
            return _tensor(self._answer.total)
        asked = self.call.ask(self.worker, "weighted_sum", self.request, self.number, weights.numpy())
        return _tensor(asked)

    def rows(self) -> Tensor:
        if self._answer.rows is not None:
            return _tensor(self._answer.rows)
        return _tensor(self.call.ask(self.worker, "rows", self.request, self.number))

    def join(self, blocks: Any) -> SlicedRows:
        """Return the rows of a round's blocks, this one's among them, which stay where they are."""
        return RemoteRows(self.call, blocks, self.call.team)

    def _foreseen(self) -> Tensor:
        """Return the weights for which the worker has summed."""
        kept, weights = foreseen(self._norms, self.senders, self.request)
        full = torch.zeros(self.size, dtype=torch.float64)
        full[kept] = weights * clip_factors(self._norms[kept], self.request.budget)
        return full


def _tensor(array: Any) -> Tensor:
    """Return a copy: what Ray hands over is shared memory, read-only, and full while it is held."""
    return torch.from_numpy(np.array(array))
