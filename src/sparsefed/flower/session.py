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

from sparsefed.core.errors import RunError, printable
from sparsefed.core.rng import integer_seed
from sparsefed.core.round import UNREPORTED, RoundReport, ServerState
from sparsefed.defenses import Rule, rule_info
from sparsefed.flower.door import MOST_METRICS, Refusal, ReplyFormat, Request
from sparsefed.flower.journal import Journal, restore, state_of
from sparsefed.flower.records import arrays_of, metric_record, record_of_model, tensors_of
from sparsefed.flower.replies import Asked, Collector, RefusedReply, RoundReplies, TooFewRepliesError
from sparsefed.flower.roster import Roster
from sparsefed.kernels.rows import row_norms
from sparsefed.runs import is_run, load_config
from sparsefed.server import NamedBlocks, Server, ServerStep
from sparsefed.trackers import scalars

if TYPE_CHECKING:
    from sparsefed.flower.strategy import Options

log = logging.getLogger("sparsefed.flower")
Evaluate = Callable[[int, ArrayRecord], MetricRecord | None]

ARRAYS, CONFIG = "arrays", "config"  # the names of the records of a request, as FedAvg has them
TRANSPORT = ("httpx", "httpcore", "grpc")  # modules of the exceptions that say that the SuperLink cannot be reached
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
        self._deadline = deadline
        self._asked: list[Asked] = []
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
        """Do one round, repeated if it has no quorum."""
        for attempt in range(self.options.retries + 1):
            try:
                return self._attempt(grid, self.server.round + 1)
            except TooFewRepliesError as error:
                log.warning("%s (attempt %d of %d)", error, attempt + 1, self.options.retries + 1)
                last = error
        raise RunError(f"{last}; run it again when more nodes answer: it continues from the last checkpoint")

    def _attempt(self, grid: Grid, round: int) -> Mapping[str, Any]:
        messages = self.requests(grid, round)
        ids = list(grid.push_messages(messages))
        del messages
        ids += [""] * (len(self._asked) - len(ids))
        asked = [
            one._replace(request=one.request._replace(message_id=id or ""))
            for one, id in zip(self._asked, ids, strict=True)
        ]
        until = time.monotonic() + self._deadline
        collector = Collector(lambda id: _pulled(grid, id), time.monotonic, time.sleep, until, self.options.poll)
        collect = collector.as_they_come if self.options.spare else collector.in_order
        return self._step(round, collect(asked), len(asked))

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
        arrays = self.arrays()
        return [
            Message(
                RecordDict({ARRAYS: arrays, CONFIG: self._instructions(round, self.roster.number(node))}),
                node,
                MessageType.TRAIN,
                ttl=self._deadline + 60,
                group_id=str(round),
            )
            for node in nodes
        ]

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
        options = self.options
        least = options.nodes or ((options.cohort or LEAST_NODES - options.spare) + options.spare)
        until, noticed = time.monotonic() + options.patience, False
        while len(online := list(grid.get_node_ids())) < least:
            if time.monotonic() >= until:
                raise RunError(
                    f"round {round} needs {least} nodes, but only {len(online)} were connected after "
                    f"{options.patience:g} s; start more nodes and run it again: it continues from the last checkpoint"
                )
            if not noticed:
                noticed = True
                log.info("round %d waits for nodes: %d of %d are connected", round, len(online), least)
            time.sleep(min(options.poll * 5, 1.0))
        return online

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

    def _step(self, round: int, arriving: Iterable[tuple[Asked, Any]], asked: int) -> Mapping[str, Any]:
        options, server = self.options, self.server
        wanted = min(options.cohort or asked, asked)
        replies = RoundReplies(
            round,
            self.expected,
            arriving,
            wanted=wanted,
            quorum=options.quorum or wanted // 2 + 1,
            model=server.theta if options.sends == "model" else None,
            rows_per_block=self._rows_per_block(),
        )
        root = None if options.root is None else options.root(server.theta, round)
        try:
            budget = server.budget(options.rate(round))
            step = server.step(self._ordered(replies), options.rate(round), root=root)
        finally:
            self._refuse(replies.refused)
        self.journal.used(round, [one.device for one in self._asked], replies.used, step.clipped)
        return _metrics(options.rate(round), budget, replies, step)

    def _ordered(self, replies: RoundReplies) -> NamedBlocks:
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
            scores |= _usual_names(record)
        if self.options.evaluate_share:
            ids = [id for id in grid.push_messages(self.evaluations(grid, round, self._evaluate)) if id]
            until = time.monotonic() + self._deadline
            collector = Collector(lambda id: _pulled(grid, id), time.monotonic, time.sleep, until, self.options.poll)
            asked = [Asked(0, Request(0, round, id)) for id in ids]
            theirs = Session.medians(reply for _, reply in collector.as_they_come(asked))
            if theirs:
                self.result.evaluate_metrics_clientapp[round] = metric_record(theirs)
            scores |= {f"client_{name}": value for name, value in theirs.items()}
        return scores

    def evaluations(self, grid: Grid, round: int, config: ConfigRecord) -> list[Message]:
        """Return requests to a share of the connected nodes to evaluate the model."""
        online = list(grid.get_node_ids())
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

    @staticmethod
    def medians(replies: Iterable[Any]) -> dict[str, float]:
        """Return the median over the nodes of each metric that they report; what is no finite number is left out."""
        values: dict[str, list[float]] = {}
        for reply in replies:
            for name, value in _reported(reply):
                values.setdefault(name, []).append(value)
        enough = max(map(len, values.values()), default=0) // 2  # a name that few report is theirs alone
        return {name: median(all) for name, all in sorted(values.items()) if len(all) > enough}

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


def _pulled(grid: Grid, id: str) -> Any:
    """Return the reply to a message, a Refusal if it cannot be decoded, or None if there is none yet."""
    try:
        replies = list(grid.pull_messages([id]))
    except Exception as error:
        if type(error).__module__.split(".")[0] in TRANSPORT:
            raise RunError(
                f"the SuperLink cannot be reached ({printable(error, 200)}); start it and run this again: it continues "
                "from the last checkpoint"
            ) from error
        return Refusal("unreadable", printable(f"{type(error).__name__}: {error}", 200))
    return replies[0] if replies else None


def _metrics(lr: float, budget: float, replies: RoundReplies, step: ServerStep) -> dict[str, Any]:
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
        "dropped": step.received - len(norms),
        "refused": sum(reasons.values()),
        **{f"refused_{reason.replace(' ', '_')}": count for reason, count in sorted(reasons.items())},
    }


def _reported(reply: Any) -> Iterator[tuple[str, float]]:
    """Yield the finite numbers that a reply to an evaluation reports."""
    try:
        if isinstance(reply, Refusal) or reply.has_error():
            return
        for record in list(reply.content.metric_records.values())[:1]:
            for name, value in list(record.items())[:MOST_METRICS]:
                if name != "num-examples" and isinstance(value, (int, float)) and math.isfinite(value):
                    yield printable(name, 60), float(value)
    except Exception as error:
        log.warning("an evaluation could not be read: %s", printable(error, 200))


def _usual_names(record: MetricRecord) -> dict[str, Any]:
    """Return the metrics of the server's evaluation under the names that reports know."""
    usual = {"accuracy": "test_accuracy", "loss": "test_loss"}
    return {
        usual.get(name, name): value
        for name, value in record.items()
        if isinstance(value, (int, float)) or name == "class_accuracy"
    }


def _in_short(metrics: Mapping[str, Any]) -> str:
    names = ("cohort", "refused", "clipped", "update_norm", "test_accuracy")
    return ", ".join(f"{name} {metrics[name]:.4g}" for name in names if metrics.get(name) is not None)
