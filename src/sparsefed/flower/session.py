"""A training session over Flower: requests to the nodes of a round, their replies to a `Server`, a report of it."""

from __future__ import annotations

import logging
import math
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result

from sparsefed.core.errors import ConfigError, RunError
from sparsefed.core.rng import integer_seed
from sparsefed.core.round import UNREPORTED, RoundReport, ServerState
from sparsefed.defenses import Rule, rule_info
from sparsefed.flower.door import Refusal, ReplyFormat, Request
from sparsefed.flower.evaluation import medians, usual_names
from sparsefed.flower.journal import Journal, restore, state_of
from sparsefed.flower.leader import HELPER, SealedReplies, SealedRound, leader_key
from sparsefed.flower.records import arrays_of, metric_record, record_of_model, tensors_of
from sparsefed.flower.replies import Asked, RefusedReply, RoundReplies, TooFewRepliesError
from sparsefed.flower.roster import Roster
from sparsefed.flower.sealed import SECURE
from sparsefed.flower.transport import collector_of, online_nodes, pushed
from sparsefed.kernels.rows import row_norms
from sparsefed.runs import is_run, load_config
from sparsefed.server import NamedBlocks, Server, ServerStep
from sparsefed.trackers import scalars

if TYPE_CHECKING:
    from sparsefed.flower.strategy import Options

log = logging.getLogger("sparsefed.flower")
Evaluate = Callable[[int, ArrayRecord], MetricRecord | None]

ARRAYS, CONFIG = "arrays", "config"  # the names of the records of a request, as FedAvg has them
LEAST_NODES = 2


class Session:
    """One training session: the server with its state, the roster, and the account of refusals."""

    def __init__(self, rule: Rule, options: Options, initial: ArrayRecord, deadline: float) -> None:
        arrays = arrays_of(initial)
        self.options = replace(options, seed=_seed(options))
        self.journal = Journal(None if options.folder is None else Path(options.folder))
        self.server = Server(
            rule,
            like=tensors_of(arrays),
            mode=options.usual_mode,
            preset=options.preset,
            local_steps=options.local_steps,
            seed=self.seed,
        )
        self.expected = ReplyFormat.of(arrays, self.server.layout, options.weight_cap)
        self.roster = Roster()
        self.refused: list[RefusedReply] = []
        self._deadline = self._wait = deadline
        self._asked: list[Asked] = []
        self._sealed: SealedRound | None = None
        self._nonces: set[bytes] = set()
        self._train, self._evaluate = ConfigRecord(), ConfigRecord()
        self._score: Evaluate | None = None
        self.result = Result()

    @property
    def seed(self) -> int:
        assert self.options.seed is not None
        return self.options.seed

    def configure(self, train: ConfigRecord | None, evaluate: ConfigRecord | None, score: Evaluate | None) -> None:
        """Set what is sent to the clients beside the model, and how the server evaluates."""
        self._train, self._evaluate = train or ConfigRecord(), evaluate or ConfigRecord()
        self._score = score

    def arrays(self) -> ArrayRecord:
        """Return the current model as a record, under the names of the initial one."""
        return record_of_model(self.server.model)

    # --- running -----------------------------------------------------------------------------------------------------

    def run(self, grid: Grid, rounds: int) -> Result:
        """Do the rounds that are left, up to `rounds`, and return the final model with the metrics of the rounds."""
        self.roster = self.journal.open(self._table(), rounds, self.options.facts)
        self.result = Result()
        for tracker in self.options.trackers:
            tracker.start(self._table())
        status = "interrupted"
        try:
            self.journal.run(
                state_of(self.server),
                lambda state: self._reports(grid, rounds, state),
                self.options.checkpoint_every,
                self._note,
            )
            status = "finished"
        finally:
            for tracker in self.options.trackers:
                tracker.finish(status)
        self.result.arrays = self.arrays()
        return self.result

    def _reports(self, grid: Grid, rounds: int, state: ServerState) -> Iterator[RoundReport]:
        restore(self.server, state)
        self.journal.forget_after(state.round)
        if state.round:
            log.info("continuing after round %d of %d", state.round, rounds)
        while self.server.round < rounds:
            began = time.perf_counter()
            metrics = self._round(grid)
            metrics = {**self._scores(grid), **metrics}
            yield RoundReport(state_of(self.server), metrics, time.perf_counter() - began)

    def _round(self, grid: Grid) -> Mapping[str, Any]:
        """Do one round, repeated if it has no quorum; each time it waits twice as long, or late nodes fall behind."""
        for attempt in range(self.options.retries + 1):
            self._wait = self._deadline * 2**attempt
            try:
                return self._attempt(grid, self.server.round + 1)
            except TooFewRepliesError as error:
                log.warning("%s (attempt %d of %d)", error, attempt + 1, self.options.retries + 1)
                last = error
        raise RunError(f"{last}; run it again when more nodes answer: it continues from the last checkpoint")

    def _attempt(self, grid: Grid, round: int) -> Mapping[str, Any]:
        messages = self.requests(grid, round)
        ids = pushed(grid, messages)
        del messages
        asked = [
            one._replace(request=one.request._replace(message_id=id)) for one, id in zip(self._asked, ids, strict=True)
        ]
        collector = collector_of(grid, self._wait, self.options.poll)
        collect = collector.as_they_come if self.options.spare else collector.in_order
        return self._step(round, collect(asked), len(asked), grid)

    def _note(self, report: RoundReport) -> None:
        round, metrics = report.state.round, scalars(report.metrics)
        self.result.train_metrics_clientapp[round] = metric_record(metrics)
        for tracker in self.options.trackers:
            tracker.log(round, metrics)
        self.options.on_round(report)
        log.info("round %d: %s", round, _in_short(report.metrics))

    # --- one round ---------------------------------------------------------------------------------------------------

    def requests(self, grid: Grid, round: int) -> list[Message]:
        """Return the requests of a round to its nodes, in the order of the draw; wait for nodes if there are too few.

        Raises:
            RunError: if too few nodes have connected after all patience.
        """
        online = self._online(grid, round)
        if self.roster.join(online):
            self.journal.enrol(self.roster)
        wanted = self.options.cohort or len(online)
        nodes = self.roster.cohort(online, wanted + self.options.spare, self.options.sample, self.seed, round)
        self._asked = [Asked(self.roster.number(node), Request(node, round)) for node in nodes]
        self._sealed = self._seal(round, wanted)
        sealed = {} if self._sealed is None else {SECURE: self._sealed.record()}
        arrays = self.arrays()
        return [
            Message(
                RecordDict({ARRAYS: arrays, CONFIG: self._instructions(round, self.roster.number(node)), **sealed}),
                node,
                MessageType.TRAIN,
                ttl=self._wait + 60,
                group_id=str(round),
            )
            for node in nodes
        ]

    def _seal(self, round: int, clients: int) -> SealedRound | None:
        """Return the secure aggregation of a round, if the deployment has it."""
        if (secure := self.options.secure) is None:
            return None
        rounding = secure.rounding(self.expected.d, self.server.budget(self.options.rate(round)), clients)
        return SealedRound(secure, leader_key(self.journal.folder), rounding, round, self._nonces)

    def _ask_helper(self, grid: Grid, sealed: SealedRound) -> tuple[Request, Any]:
        """Put the question of a round to the helper and return what was asked, and its reply or a Refusal."""
        (id,) = pushed(grid, [sealed.question(self._wait + 60)])
        asked = Asked(HELPER, Request(sealed.secure.helper, sealed.task.round, id))
        ((_, reply),) = collector_of(grid, self._wait, self.options.poll).in_order([asked])
        return asked.request, reply

    def _instructions(self, round: int, device: int) -> ConfigRecord:
        options = self.options
        return ConfigRecord(
            {
                "lr": options.rate(round),
                **self._train,
                "server-round": round,
                "device": device,
                "mode": options.usual_mode,
                "sends": options.sends,
                "round-seed": integer_seed(self.seed, "layers", round),
                **({"red-team": True} if options.red_team else {}),
            }
        )

    def _online(self, grid: Grid, round: int) -> list[int]:
        """Return the connected nodes but the helper's; wait while they are too few, or the helper is missing."""
        options = self.options
        least = options.nodes or ((options.cohort or LEAST_NODES - options.spare) + options.spare)
        helper = set() if options.secure is None else {options.secure.helper}
        until, noticed = time.monotonic() + options.patience, False
        while True:
            connected = set(online_nodes(grid))
            online = sorted(connected - helper)
            if len(online) >= least and helper <= connected:
                return online
            shortage = f"{len(online)} of {least}" + ("" if helper <= connected else ", without the helper,")
            if time.monotonic() >= until:
                raise RunError(
                    f"round {round} needs more nodes: {shortage} were connected after {options.patience:g} s; start "
                    "more nodes and run it again: it continues from the last checkpoint"
                )
            if not noticed:
                noticed = True
                log.info("round %d waits for nodes: %s are connected", round, shortage)
            time.sleep(min(options.poll * 5, 1.0))

    def aggregate(self, round: int, replies: Iterable[Message]) -> Mapping[str, Any]:
        """Aggregate replies that another loop has collected; without a quorum the model stays as it is."""
        by_node: dict[int, list[Message]] = {}
        for reply in replies:
            by_node.setdefault(int(reply.metadata.src_node_id), []).append(reply)
        arriving: list[tuple[Asked, Any]] = []
        for one in self._asked:
            sent = by_node.pop(one.request.node, [])
            arriving.append((one, sent[0] if sent else Refusal("late")))
            self._refuse(RefusedReply(round, one.request.node, one.device, "duplicate", "") for _ in sent[1:])
        self._refuse(RefusedReply(round, node, -1, "stranger", "") for node in by_node)
        try:
            return self._step(round, arriving, len(arriving))
        except TooFewRepliesError as error:
            log.warning("%s", error)
            return {"round": round, "skipped": 1}

    def _replies(
        self, round: int, arriving: Iterable[tuple[Asked, Any]], asked: int, grid: Grid | None
    ) -> RoundReplies | SealedReplies:
        options = self.options
        wanted = min(options.cohort or asked, asked)
        quorum = options.quorum or wanted // 2 + 1
        if (sealed := self._sealed) is not None:
            if grid is None:
                raise ConfigError("secure aggregation asks the helper while it aggregates: use Strategy.start")
            return SealedReplies(round, sealed, arriving, quorum, lambda: self._ask_helper(grid, sealed))
        return RoundReplies(
            round,
            self.expected,
            arriving,
            wanted=wanted,
            quorum=quorum,
            model=self.server.theta if options.sends == "model" else None,
            rows_per_block=self._rows_per_block(),
        )

    def _step(
        self, round: int, arriving: Iterable[tuple[Asked, Any]], asked: int, grid: Grid | None = None
    ) -> Mapping[str, Any]:
        options, server = self.options, self.server
        replies = self._replies(round, arriving, asked, grid)
        root = None if options.root is None else options.root(server.theta, round)
        try:
            budget = server.budget(options.rate(round))
            step = server.step(self._ordered(replies), options.rate(round), root=root)
        finally:
            self._refuse(replies.refused)
        self.journal.used(round, [one.device for one in self._asked], replies.used, step.clipped)
        return _metrics(options.rate(round), budget, replies, step)

    def _ordered(self, replies: RoundReplies | SealedReplies) -> NamedBlocks:
        """Return the updates as a stream; those that came in any order to a rule of rows, in the order of devices."""
        if not self.options.spare or not rule_info(self.server.rule.function).needs:
            return NamedBlocks(replies.blocks())
        return NamedBlocks(sorted(replies.blocks(), key=lambda block: int(block.senders[0])))

    def _rows_per_block(self) -> int:
        if self.options.block_mb is None or self.options.spare:
            return 1
        return max(1, self.options.block_mb * 2**20 // (4 * self.expected.d))

    def _refuse(self, refused: Iterable[RefusedReply]) -> None:
        lines = list(refused)
        for one in lines:
            log.warning("round %d: refused node %d: %s", one.round, one.node, Refusal(one.reason, one.detail))
        self.refused += lines
        self.journal.refuse(lines)

    # --- evaluation --------------------------------------------------------------------------------------------------

    def _scores(self, grid: Grid) -> Mapping[str, Any]:
        """Return the model's metrics by the server's own evaluation and by the nodes'."""
        round, scores = self.server.round, dict[str, Any]()
        if self._score is not None and (record := self._score(round, self.arrays())) is not None:
            self.result.evaluate_metrics_serverapp[round] = record
            scores |= usual_names(record)
        if self.options.evaluate_share:
            ids = pushed(grid, self.evaluations(grid, round, self._evaluate))
            collector = collector_of(grid, self._deadline, self.options.poll)
            asked = [Asked(0, Request(0, round, id)) for id in ids if id]
            theirs = medians(reply for _, reply in collector.as_they_come(asked))
            if theirs:
                self.result.evaluate_metrics_clientapp[round] = metric_record(theirs)
            scores |= {f"client_{name}": value for name, value in theirs.items()}
        return scores

    def evaluations(self, grid: Grid, round: int, config: ConfigRecord) -> list[Message]:
        """Return requests to a share of the connected nodes to evaluate the model."""
        online = online_nodes(grid)
        self.roster.join(online)
        count = min(len(online), math.ceil(self.options.evaluate_share * len(online)))
        if not count:
            return []
        nodes = self.roster.cohort(online, count, self.options.sample, self.seed + 1, round)
        arrays, common = self.arrays(), {**config, "server-round": round}
        records = {
            node: RecordDict({ARRAYS: arrays, CONFIG: ConfigRecord({**common, "device": self.roster.number(node)})})
            for node in nodes
        }
        kind, ttl = MessageType.EVALUATE, self._deadline + 60
        return [Message(record, node, kind, ttl=ttl, group_id=str(round)) for node, record in records.items()]

    # --- papers ------------------------------------------------------------------------------------------------------

    def _table(self) -> dict[str, Any]:
        """Return the config that the run folder keeps; that of a simulation if there is one."""
        if self.options.table is not None:
            return dict(self.options.table)
        options, rule = self.options, self.server.rule
        rate = {} if callable(options.lr) else {"lr": float(options.lr)}
        cohort = {} if options.cohort is None else {"cohort": options.cohort}
        return {
            "name": "",
            "seed": self.seed,
            "model": {"name": "flower", "parameters": self.expected.d},
            "train": {"mode": options.usual_mode, "preset": options.preset, **rate, **cohort},
            "defense": rule.to_config() if rule.name else {"name": repr(rule)},
            "flower": {"sends": options.sends, "sampling": options.sampling, "red_team": options.red_team},
        }

    @staticmethod
    def announce(rule: Rule, options: Options) -> None:
        """Log the rule and the settings."""
        log.info("rule %s; clients send their %s; run folder: %s", rule, options.sends, options.folder or "none")
        if options.red_team:
            log.warning("this is a rehearsal: clients with a red_team mod are allowed to attack")


def _seed(options: Options) -> int:
    """Return the seed: the given one, that of the run in the folder, or a new one that cannot be guessed."""
    if options.seed is not None:
        return options.seed
    if options.folder is not None and is_run(Path(options.folder)):
        return int(load_config(Path(options.folder)).get("seed", 0))
    return secrets.randbits(62)


def _metrics(lr: float, budget: float, replies: RoundReplies | SealedReplies, step: ServerStep) -> dict[str, Any]:
    """Return the metrics of a round: those of a simulation, and the refusals by reason; numbers alone."""
    reasons, norms = replies.reasons, replies.norms
    return {
        "round": step.round,
        "lr": lr,
        "cohort": step.received,
        "attackers": 0,
        "honest_norm": median(norms) if norms else None,
        "honest_longest": max(norms, default=None),
        "attacker_norm": None,
        "budget": budget if math.isfinite(budget) else None,
        "update_norm": float(row_norms(step.delta[None])[0]),
        **{name: value for name, value in step.stats.items() if name not in UNREPORTED},
        "dropped": step.received - len(replies.used),
        "refused": sum(reasons.values()),
        **{f"refused_{reason.replace(' ', '_')}": count for reason, count in sorted(reasons.items())},
    }


def _in_short(metrics: Mapping[str, Any]) -> str:
    names = ("cohort", "refused", "clipped", "update_norm", "test_accuracy")
    return ", ".join(f"{name} {metrics[name]:.4g}" for name in names if metrics.get(name) is not None)
