"""A run at one moment: its rounds so far, the refused replies by round and node, and the alerts."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from sparsefed.core.errors import ConfigError, SparseFedError
from sparsefed.core.progress import AtWork, Progress
from sparsefed.core.types import RunRecord
from sparsefed.flower.journal import COHORTS, REFUSALS
from sparsefed.flower.replies import RefusedReply
from sparsefed.flower.roster import ROSTER
from sparsefed.reports.result import Report
from sparsefed.results.numbers import finite, percent
from sparsefed.runs import load_run, read_bytes, record_of

LATE = ("late", "unsent")  # reasons that say that nothing came, not that something bad came


class NodeAccount(NamedTuple):
    """What one node did: in how many rounds it was asked, used and clipped, and what was refused of it."""

    node: int | None  # None: its number is in no roster
    device: int  # -1: never asked
    asked: int
    clipped: int | None  # None: not recorded
    reasons: Counter[str]
    last: RefusedReply | None

    @property
    def refused(self) -> int:
        return sum(self.reasons.values())

    @property
    def late(self) -> int:
        return sum(self.reasons[reason] for reason in LATE)


class CohortLine(NamedTuple):
    """The devices of a round that is done."""

    round: int
    asked: tuple[int, ...]
    used: tuple[int, ...]
    clipped: tuple[int, ...] | None  # None: not recorded


@dataclass(frozen=True)
class WatchResult(Report, described_by="sparsefed.commands.watch.document"):
    """A run as it stands: its rounds, the replies that were refused, and what exceeds the limit."""

    run: RunRecord
    refusals: tuple[RefusedReply, ...]
    is_deployment: bool  # its replies can be refused, late or missing
    cohorts: tuple[CohortLine, ...] = ()
    roster: tuple[int, ...] = ()  # the nodes, in the order of their devices
    most_refused: int | None = None

    @property
    def round(self) -> int:
        """The last complete round."""
        return len(self.run.rows)

    @property
    def rounds(self) -> int | None:
        """The number of the last round of all, if it is known."""
        for given in (self.run.manifest.get("rounds"), self.run.config.get("rounds")):
            if isinstance(given, int) and not isinstance(given, bool):
                return given
        return None

    @property
    def status(self) -> str:
        """One of created, running, interrupted, finished."""
        return str(self.run.manifest.get("status", "unknown"))

    @cached_property
    def refused_in(self) -> dict[int, Counter[str]]:
        """Refused replies by round and reason; of a simulation, the updates that were not finite."""
        by_round: dict[int, Counter[str]] = {}
        for one in self.refusals:
            by_round.setdefault(one.round, Counter())[one.reason] += 1
        if not self.is_deployment:
            dropped = ((int(row["round"]), int(finite(row.get("dropped")) or 0)) for row in self.run.rows)
            by_round |= {round: Counter({"not finite": count}) for round, count in dropped if count > 0}
        return by_round

    @cached_property
    def nodes(self) -> tuple[NodeAccount, ...]:
        """The nodes that were asked or refused: most refused first, then most clipped."""
        asked = Counter(device for line in self.cohorts for device in line.asked)
        known = [line.clipped for line in self.cohorts if line.clipped is not None]
        clipped = Counter(device for devices in known for device in devices)
        refused: dict[tuple[int, int | None], list[RefusedReply]] = {}
        for one in self.refusals:
            refused.setdefault((one.device, one.node), []).append(one)
        for device in asked:
            refused.setdefault((device, self.roster[device] if device < len(self.roster) else None), [])
        accounts = (
            NodeAccount(
                node,
                device,
                asked[device],
                clipped[device] if known else None,
                Counter(line.reason for line in lines),
                lines[-1] if lines else None,
            )
            for (device, node), lines in refused.items()
        )
        return tuple(sorted(accounts, key=lambda each: (-each.refused, -(each.clipped or 0), each.device)))

    @cached_property
    def alerts(self) -> dict[int, str]:
        """A sentence for every round in which more replies were refused than `most_refused`."""
        return dict(self._alerts())

    def _alerts(self) -> Iterator[tuple[int, str]]:
        if self.most_refused is None:
            return
        for round, reasons in sorted(self.refused_in.items()):
            if (count := sum(reasons.values())) > self.most_refused:
                causes = ", ".join(f"{n} {reason}" for reason, n in sorted(reasons.items()))
                yield round, f"round {round}: {count} refused ({causes}); the limit is {self.most_refused}"

    def progress(self) -> Progress:
        """Return how far the run is, for the progress view of a terminal."""
        measured = {name: percent(value) for name, value in self.latest.items() if name in ("test", "attack")}
        total = sum(sum(reasons.values()) for reasons in self.refused_in.values())
        fields = {**measured, **({"refused": f"{total:,}"} if total else {})}
        shown = ", ".join(f"{name} {value}" for name, value in fields.items())
        line = f"{self.run.name}: round {self.round}/{self.rounds or '?'}, {shown or 'nothing evaluated yet'}"
        part = AtWork(self.run.name, self.round, self.rounds or self.round or 1, fields)
        return Progress(f"rounds ({self.status})", part.done, part.total, (part,), line=line)

    @cached_property
    def latest(self) -> dict[str, float]:
        """The last measured value of each kind, by short names."""
        keys = {"test": "test_accuracy", "attack": "attack_accuracy", "clients": "client_accuracy", "loss": "test_loss"}
        keys |= {name: name for name in ("honest_norm", "honest_longest", "budget", "clipped", "cohort", "update_norm")}
        values: dict[str, float] = {}
        for name, key in keys.items():
            for row in reversed(self.run.rows):
                if (value := finite(row.get(key))) is not None:
                    values[name] = value
                    break
        return values


def watch(run: str | Path, *, most_refused: int | None = None) -> WatchResult:
    """Return a run as it stands at this moment, from its folder; it may be running or not.

    Args:
        run: the run folder of a simulation or of a deployment.
        most_refused: the most refused or missing replies that a round may have; more is an alert.

    Raises:
        RunError: The folder holds no run, or a damaged one.
    """
    if most_refused is not None and most_refused < 0:
        raise ConfigError(f"most_refused is {most_refused}, but is a number of replies in a round: 0 or more")
    folder = Path(run)
    record = load_run(folder)
    last = len(record.rows) + 1
    refused = tuple(one for line in _lines(folder / REFUSALS) if (one := _refused(line, last)) is not None)
    cohorts = tuple(each for line in _lines(folder / COHORTS) if (each := _cohort(line, last)) is not None)
    deployed = bool(refused or cohorts) or any("refused" in row for row in record.rows[:1])
    return WatchResult(record, refused, deployed, cohorts, _roster(folder), most_refused)


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the records of a file of lines, up to an incomplete one; none if there is no file."""
    if path.exists():
        for line in read_bytes(path, limit=None).splitlines(keepends=True):
            if (record := record_of(line)) is None:
                return
            yield record[0]


def _refused(line: dict[str, Any], last: int) -> RefusedReply | None:
    """Return a line of the account of refusals; None if it is not what a deployment writes up to that round."""
    try:
        node, round, device = int(line["node"]), int(line["round"]), int(line["device"])
        one = RefusedReply(round, node, device, str(line["reason"])[:200], str(line["detail"])[:500])
    except (KeyError, TypeError, ValueError, OverflowError):
        return None
    usual = 1 <= round <= last and 0 <= node < 2**64 and -1 <= device < 2**31
    return one if usual else None


def _cohort(line: dict[str, Any], last: int) -> CohortLine | None:
    """Return the devices of a round; None if the line is not what a deployment writes up to that round."""
    try:
        lists = [line.get(key) for key in ("asked", "used", "clipped")]
        devices = [None if given is None else tuple(map(int, given)) for given in lists]
        round, (asked, used, clipped) = int(line["round"]), devices
    except (KeyError, TypeError, ValueError, OverflowError):
        return None
    if asked is None or used is None or not 1 <= round <= last:
        return None
    return CohortLine(round, asked, used, clipped)


def _roster(folder: Path) -> tuple[int, ...]:
    """Return the nodes of a deployment in the order of their devices; none of a simulation, or if it is damaged."""
    try:
        return tuple(int(node) for node in json.loads(read_bytes(folder / ROSTER))["nodes"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError, SparseFedError):
        return ()
