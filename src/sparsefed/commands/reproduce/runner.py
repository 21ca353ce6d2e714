"""Runs exhibits: every cell that is not finished yet, several at a time, each for all exhibits that need it.

Whatever happens to this process, the same command goes on: finished cells are never run again, a cell that was cut off
goes on from its checkpoint, and one that failed is tried again. A cell's failure is written down and does not stop the
others; a disk that cannot be written to does.
"""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median
from typing import Any

from sparsefed import runs
from sparsefed.commands.reproduce import ledger as results
from sparsefed.commands.reproduce.grid import SweepCell
from sparsefed.commands.reproduce.ledger import Ledger
from sparsefed.commands.reproduce.plan import CellSlot, SweepPlan
from sparsefed.commands.reproduce.pool import Event, Pool, cores, pool
from sparsefed.core.dtypes import computed_in
from sparsefed.core.errors import ConfigError, RunError

REFRESH = 0.25  # seconds between two looks at the workers where nothing happens


@dataclass(frozen=True)
class RunningCell:
    """A cell at work."""

    title: str
    round: int
    rounds: int


@dataclass(frozen=True)
class SweepProgress:
    """How far everything is."""

    done: int
    failed: int
    total: int  # as far as it is known: a search decides what follows it
    running: tuple[RunningCell, ...]
    left: float | None  # seconds, from what cells of the same kind took
    ended: str = ""  # the cell that has just come to its end, and how


Watch = Callable[[SweepProgress], None]


@dataclass
class _Clock:
    """Seconds a round, by kind of cell: what costs time is data, model and training, less so the defense."""

    rates: dict[str, list[float]] = field(default_factory=dict)
    began: dict[str, tuple[float, int]] = field(default_factory=dict)  # of running cells: when, from which round
    rounds: dict[str, int] = field(default_factory=dict)

    def start(self, cell: SweepCell) -> None:
        self.began.pop(cell.key, None)
        self.rounds[cell.key] = 0

    def hear(self, key: str, round: int) -> None:
        self.began.setdefault(key, (time.monotonic(), round))
        self.rounds[key] = round

    def learn(self, cell: SweepCell, seconds: float, rounds: int) -> None:
        self.rates.setdefault(_kind(cell), []).append(seconds / max(rounds, 1))

    def rate(self, cell: SweepCell) -> float | None:
        """Seconds a round of such a cell; by its own rounds, by cells of its kind, or by all."""
        when, first = self.began.get(cell.key, (0.0, 0))
        heard = self.rounds.get(cell.key, 0) - first
        if heard > 0 and cell.key in self.began:
            return (time.monotonic() - when) / heard
        known = self.rates.get(_kind(cell)) or [each for every in self.rates.values() for each in every]
        return median(known) if known else None  # the first of a worker also pays for compiling


@functools.lru_cache(maxsize=10_000)
def _kind(cell: SweepCell) -> str:
    table = cell.table
    return json.dumps([table[part] for part in ("data", "model", "train")], sort_keys=True)


def default_jobs() -> int:
    """One cell a core."""
    return cores()


def reproduce(
    plans: Sequence[SweepPlan], out: Path, jobs: int, watch: Watch = lambda _: None, workers: Pool | None = None
) -> Ledger:
    """Run what is missing of the plans, and keep their results files true all the while; `workers` who are there
    already, because more plans follow, are not sent home."""
    if jobs < 1:
        raise ConfigError(f"--jobs is {jobs}; at least one cell must run")
    with _alone(out):
        ledger = Ledger(out, plans)
        run = _Run(plans, out, ledger, watch)
        if run.waiting:
            for asked in {cell.config.train.dtype for cell in run.waiting}:
                computed_in(asked)  # the workers' words are not heard: what it has to say is said here
            own = pool(min(jobs, len(run.waiting) + run.coming)) if workers is None else nullcontext(workers)
            with own as team:
                run.drive(team)
        for plan in plans:
            run.write(plan)
    return ledger


@contextmanager
def _alone(out: Path) -> Iterator[None]:
    """One runner a folder."""
    with results.disk(out):
        out.mkdir(parents=True, exist_ok=True)
        (out / ".lock").open("a").close()
    with runs.locked(out):
        yield


class _Run:
    """One call: who waits for what, and what has become of it."""

    def __init__(self, plans: Sequence[SweepPlan], out: Path, ledger: Ledger, watch: Watch) -> None:
        self._plans = [plan for plan in plans if plan.exhibit.kind == "runs"]
        self._out, self._ledger, self._watch = out, ledger, watch
        self._clock = _Clock()
        self._done: set[str] = set()
        self._titles: dict[str, str] = {}
        self._cells: dict[str, SweepCell] = {}
        self.waiting: list[SweepCell] = []  # the cells that can be run now, each once, in the order of the results
        self.coming = 0  # how many more a search will ask for
        self._look()
        self._recall()

    def drive(self, workers: Pool) -> None:
        """Until nothing is left to do."""
        while True:
            running = {cell.key for cell in workers.running}
            for cell in [cell for cell in self.waiting if cell.key not in running][: workers.free]:
                self._clock.start(cell)
                workers.start(cell, results.folder(self._out, cell.key))
            if not workers.running:
                return
            self._watch(self._standing(workers))
            for event in workers.events(REFRESH):
                self._hear(event, workers)

    def _look(self) -> None:
        """What there is to do, now that something has come to its end."""
        wanted: dict[str, SweepCell] = {}
        for plan in self._plans:
            for slot in results.slots(plan, self._ledger):
                for cell in self._ledger.wanting(plan, slot):
                    wanted.setdefault(cell.key, cell)
                    self._titles.setdefault(cell.key, _title(plan, slot, cell))
        self._cells |= wanted
        self.waiting = list(wanted.values())
        self.coming = sum(results.coming(plan, self._ledger) for plan in self._plans)

    def write(self, plan: SweepPlan) -> None:
        """The results of an exhibit as far as they are known; nothing where nothing is."""
        rows = formula_rows(plan) if plan.exhibit.kind == "formula" else results.rows(plan, self._ledger)
        if rows:
            results.write(self._out, plan, rows)

    def _hear(self, event: Event, workers: Pool) -> None:
        if event.kind == "round":
            self._clock.hear(event.key, event.round)
            return
        if event.disk is not None:
            raise results.trouble(self._out, event.disk)
        cell, said = self._cells[event.key], "done"
        self._ledger.forget(event.key)
        self._ledger.failed.pop(event.key, None)
        if event.kind == "done" and self._ledger.finished(cell):
            self._done.add(event.key)
            self._note(cell, event.seconds)
        else:
            said = f"failed: {event.error or 'its run folder is damaged'}"
            self._ledger.failed[event.key] = event.error or "its run folder is damaged; delete it"
        self._write_down(event)
        for plan in self._plans:
            if any(event.key in _keys(slot) for slot in results.slots(plan, self._ledger)):
                self.write(plan)
        self._look()
        self._watch(self._standing(workers, f"{self._titles[event.key]}: {said}"))

    def _write_down(self, event: Event) -> None:
        """The sentence and all else that is known of a failure; gone once the cell is finished."""
        file = self._out / results.FAILED / f"{event.key}.txt"
        with results.disk(self._out):
            if event.kind == "done":
                file.unlink(missing_ok=True)
            else:
                file.parent.mkdir(exist_ok=True)
                told = (self._titles[event.key], event.error, event.trace)
                file.write_text("\n\n".join(part for part in told if part) + "\n", encoding="utf-8")

    def _note(self, cell: SweepCell, seconds: float) -> None:
        """How long a cell took, for the next estimate; apart from the results, which must not depend on it."""
        self._clock.learn(cell, seconds, cell.config.rounds - self._clock.began.get(cell.key, (0.0, 0))[1])
        line = {"key": cell.key, "cell": self._titles[cell.key], "rounds": cell.config.rounds, "seconds": seconds}
        with results.disk(self._out), (self._out / results.TIMINGS).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, ensure_ascii=False) + "\n")

    def _recall(self) -> None:
        """What cells took in earlier calls."""
        known = {cell.key: cell for cell in self._planned()}
        for key, seconds, rounds in results.timings(self._out):
            if key in known:
                self._clock.learn(known[key], seconds, rounds)

    def _planned(self) -> Iterator[SweepCell]:
        for plan in self._plans:
            for slot in results.slots(plan, self._ledger):
                yield slot.cell

    def _standing(self, workers: Pool, ended: str = "") -> SweepProgress:
        waiting, running = self.waiting, workers.running
        at_work = {cell.key for cell in running}
        still = len({cell.key for cell in waiting} | at_work) + self.coming
        failed = len(self._ledger.failed)
        shown = (
            RunningCell(self._titles[cell.key], self._clock.rounds.get(cell.key, 0), cell.config.rounds)
            for cell in running
        )
        left = self._left([cell for cell in waiting if cell.key not in at_work], running, workers.jobs)
        return SweepProgress(len(self._done), failed, len(self._done) + failed + still, tuple(shown), left, ended)

    def _left(self, waiting: Sequence[SweepCell], running: Sequence[SweepCell], jobs: int) -> float | None:
        """Seconds until the end: all rounds that are left at their rates, shared by the workers, of whom one may be
        between two cells."""
        rates = [self._clock.rate(cell) for cell in (*waiting, *running)]
        known = [rate for rate in rates if rate is not None]
        if not known:
            return None
        usual = median(known)
        rounds = [cell.config.rounds - self._clock.rounds.get(cell.key, 0) for cell in (*waiting, *running)]
        seconds = sum(n * (usual if rate is None else rate) for n, rate in zip(rounds, rates, strict=True))
        unknown = self.coming * usual * fmean(cell.config.rounds for cell in (*waiting, *running))
        return (seconds + unknown) / min(jobs, len(rounds) + self.coming)


def _keys(slot: CellSlot) -> set[str]:
    return {slot.cell.key, *(cell.key for cell in slot.twins.values())}


def _title(plan: SweepPlan, slot: CellSlot, cell: SweepCell) -> str:
    """What a person is told of a cell."""
    twin = next((kind for kind, other in slot.twins.items() if other.key == cell.key and cell != slot.cell), "")
    what = {"search": f"search {slot.attack}", "twin": "unattacked", "plain": "plain"}.get(slot.role, twin)
    parts = (plan.exhibit.name, *slot.values.values(), what, f"seed {slot.seed}")
    return " · ".join(part for part in parts if part)


def formula_rows(plan: SweepPlan) -> list[results.Row]:
    """What a formula gives, as results."""
    from sparsefed.config import resolve

    function = resolve("formula", plan.exhibit.formula, {})
    head = {"exhibit": plan.exhibit.name, "scale": plan.scale}
    tail: dict[str, Any] = {"attack": None, "role": "result", "seed": 0, "key": None, "twins": [], "status": "done"}
    return [{**head, "cell": row["cell"], **tail, "metrics": row["metrics"]} for row in function()]


def failures(ledger: Ledger, out: Path) -> RunError | None:
    """One sentence about all cells that failed."""
    if not ledger.failed:
        return None
    sentences = list(dict.fromkeys(ledger.failed.values()))
    more = f" (and {len(sentences) - 1} other reasons)" if len(sentences) > 1 else ""
    return RunError(
        f"{len(ledger.failed)} cells failed: {sentences[0].rstrip('.')}{more}; {out / results.FAILED} tells of each. "
        "Mend it and give the same command again: finished cells are not run again"
    )
