"""The runner of plans: every unfinished cell is run, several at a time, once for all plans that need it.

If this process is interrupted or killed, the same command resumes: finished cells are never run again, a cell that was
cut off continues from its checkpoint, and one that failed is retried. A cell's failure is recorded and does not stop
the others; a disk that cannot be written to does.
"""

from __future__ import annotations

import functools
import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median

from sparsefed import config as configs
from sparsefed import runs
from sparsefed.core.device import computed_on
from sparsefed.core.dtypes import computed_in
from sparsefed.core.errors import ConfigError, RunError
from sparsefed.core.progress import AtWork, OnProgress, Progress
from sparsefed.sweeps import ledger as results
from sparsefed.sweeps.cells import Event, SweepCell
from sparsefed.sweeps.ledger import Ledger
from sparsefed.sweeps.plan import CellSlot, SweepPlan
from sparsefed.sweeps.pool import Workers, cores, pool

REFRESH = 0.25  # seconds between two polls of the workers while nothing happens


MOST_JOBS = 10**6  # as many as a cluster has room for


def default_jobs(on: str | None = None) -> int:
    """Return the default number of jobs: one per core, or as many as a cluster has room for."""
    return cores() if on is None else MOST_JOBS


def run_plans(
    plans: Sequence[SweepPlan],
    out: Path,
    jobs: int,
    on_progress: OnProgress = lambda _: None,
    workers: Workers | None = None,
    on: str | None = None,
) -> Ledger:
    """Run what is missing of the plans, and keep their results files up to date.

    Args:
        plans: What to run; equal cells are run once.
        out: The folder of results and cells.
        jobs: How many cells run at a time.
        on_progress: Called with a `Progress` whenever something has changed.
        workers: Workers to use and to leave running, because more plans follow; own ones by default.
        on: "ray" to run cells on the machines of a Ray cluster.

    Returns:
        What is known of every cell, also of those that failed.

    Raises:
        ConfigError: If `jobs` is not positive.
        RunError: If `out` cannot be written to, is damaged or is used by another process.
    """
    if jobs < 1:
        raise ConfigError(f"--jobs is {jobs}; at least one cell must run")
    with results.disk(out):
        out.mkdir(parents=True, exist_ok=True)
        (out / ".lock").open("a").close()
    with runs.locked(out):
        ledger = Ledger(out, plans)
        run = _Run(plans, out, ledger, on_progress)
        if run.waiting:
            for dtype, device in {(cell.config.train.dtype, cell.config.train.device) for cell in run.waiting}:
                computed_in(dtype, computed_on(device))  # warns here, because what workers print is not shown
            live = any(configs.is_live(cell.config) for cell in run.waiting)
            many = min(jobs, len(run.waiting) + run.coming)
            with pool(many, live, on) if workers is None else nullcontext(workers) as team:
                run.drive(team)
        for plan in plans:
            run.write(plan)
    return ledger


@contextmanager
def working_folder(folder: str | Path | None) -> Iterator[Path]:
    """Yield the folder, or a temporary one that is removed at the end if none is given."""
    if folder is not None:
        yield Path(folder)
        return
    with tempfile.TemporaryDirectory(prefix="sparsefed-") as temporary:
        yield Path(temporary)


@dataclass
class Clock:
    """Seconds per round by kind of cell: data, model and training determine the cost, less so the defense."""

    rates: dict[str, list[float]] = field(default_factory=dict)
    began: dict[str, tuple[float, int]] = field(default_factory=dict)  # of running cells: when, from which round
    rounds: dict[str, int] = field(default_factory=dict)

    def hear(self, key: str, round: int) -> None:
        self.began.setdefault(key, (time.monotonic(), round))
        self.rounds[key] = round

    def learn(self, cell: SweepCell, seconds: float, rounds: int) -> None:
        self.rates.setdefault(_kind(cell), []).append(seconds / max(rounds, 1))

    def rate(self, cell: SweepCell) -> float | None:
        """Return the seconds per round of a cell: from its own rounds, from cells of its kind, or from all."""
        when, first = self.began.get(cell.key, (0.0, 0))
        heard = self.rounds.get(cell.key, 0) - first
        if heard > 0:
            return (time.monotonic() - when) / heard
        known = self.rates.get(_kind(cell)) or [each for every in self.rates.values() for each in every]
        return median(known) if known else None  # a worker's first cell also pays for compiling


@functools.lru_cache(maxsize=10_000)
def _kind(cell: SweepCell) -> str:
    return json.dumps([cell.table[part] for part in ("data", "model", "train")], sort_keys=True)


class _Run:
    """The state of one call of `run_plans`: which cells wait, run, are done or failed."""

    def __init__(self, plans: Sequence[SweepPlan], out: Path, ledger: Ledger, on_progress: OnProgress) -> None:
        self._plans, self._out, self._ledger, self._on_progress = plans, out, ledger, on_progress
        self._clock = Clock()
        self._done: set[str] = set()
        self._titles: dict[str, str] = {}
        self._cells: dict[str, SweepCell] = {}  # every cell that was ever wanted
        self._look()
        known = {slot.cell.key: slot.cell for _, slot in self._slots}
        for key, seconds, rounds in results.timings(out):
            if key in known:
                self._clock.learn(known[key], seconds, rounds)

    def drive(self, workers: Workers) -> None:
        """Give cells to workers until nothing is left to do."""
        while True:
            running = {cell.key for cell in workers.running}
            for cell in [cell for cell in self.waiting if cell.key not in running][: workers.jobs - len(running)]:
                workers.start(cell, results.folder(self._out, cell.key))
            if not workers.running:
                return
            self._on_progress(self._progress(workers))
            for event in workers.events(REFRESH):
                self._hear(event, workers)

    def _look(self) -> None:
        """Update what can be run (each cell once, in the order of the results) and what follows from searches."""
        self._slots = [(plan, slot) for plan in self._plans for slot in results.slots(plan, self._ledger)]
        wanted: dict[str, SweepCell] = {}
        for plan, slot in self._slots:
            for cell in self._ledger.wanting(plan, slot):
                wanted.setdefault(cell.key, cell)
                self._titles.setdefault(cell.key, _title(plan, slot, cell))
        self._cells |= wanted
        self.waiting = list(wanted.values())
        self.coming = sum(results.coming(plan, self._ledger) for plan in self._plans)

    def write(self, plan: SweepPlan) -> None:
        """Write the results of a plan as far as they are known; no file if there are none."""
        if rows := results.rows(plan, self._ledger):
            results.write(self._out, plan, rows)

    def _hear(self, event: Event, workers: Workers) -> None:
        """Take note of a cell's event, and update the results if the cell has ended."""
        if event.kind == "round":
            self._clock.hear(event.key, event.round)
            return
        if event.disk is not None:
            raise results.trouble(self._out, event.disk)
        cell, title, end = self._cells[event.key], self._titles[event.key], "done"
        self._ledger.forget(event.key)
        if event.kind == "done" and self._ledger.record(event.key) is not None:
            self._done.add(event.key)
            self._note(cell, event.seconds)
        else:
            sentence = event.error or "its run folder is damaged; delete it"
            self._ledger.failed[event.key], end = sentence, f"failed: {sentence}"
        self._write_down(event)
        self._look()
        for plan in self._plans:
            if any(owner is plan and event.key in slot.keys for owner, slot in self._slots):
                self.write(plan)
        self._on_progress(self._progress(workers, f"{title}: {end}"))

    def _write_down(self, event: Event) -> None:
        """Record why a cell failed; remove the record once the cell is finished."""
        file = self._out / results.FAILED / f"{event.key}.txt"
        with results.disk(self._out):
            if event.kind == "done":
                file.unlink(missing_ok=True)
            else:
                file.parent.mkdir(exist_ok=True)
                parts = (self._titles[event.key], event.error, event.trace)
                file.write_text("\n\n".join(part for part in parts if part) + "\n", encoding="utf-8")

    def _note(self, cell: SweepCell, seconds: float) -> None:
        """Record how long a cell took, for the next estimate; results must not depend on it."""
        self._clock.learn(cell, seconds, cell.config.rounds - self._clock.began.get(cell.key, (0.0, 0))[1])
        line = {"key": cell.key, "cell": self._titles[cell.key], "rounds": cell.config.rounds, "seconds": seconds}
        with results.disk(self._out), (self._out / results.TIMINGS).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, ensure_ascii=False) + "\n")

    def _progress(self, workers: Workers, ended: str = "") -> Progress:
        running, keys = workers.running, {cell.key for cell in workers.running}
        waiting = [cell for cell in self.waiting if cell.key not in keys]
        failed = len(self._ledger.failed)
        shown = tuple(
            AtWork(self._titles[cell.key], self._clock.rounds.get(cell.key, 0), cell.config.rounds) for cell in running
        )
        done, fields = len(self._done) + failed, {"failed": str(failed)} if failed else {}
        total = done + len(waiting) + len(running) + self.coming
        left = self._left(waiting, running, workers.jobs)
        return Progress("cells", done, total, shown, fields, left, ended, unit="cell")

    def _left(self, waiting: Sequence[SweepCell], running: Sequence[SweepCell], jobs: int) -> float | None:
        """Estimate the seconds left: all remaining rounds at their rates, shared by the workers."""
        rates = [self._clock.rate(cell) for cell in (*waiting, *running)]
        known = [rate for rate in rates if rate is not None]
        if not known:
            return None
        usual = median(known)
        rounds = [cell.config.rounds - self._clock.rounds.get(cell.key, 0) for cell in (*waiting, *running)]
        seconds = sum(n * (usual if rate is None else rate) for n, rate in zip(rounds, rates, strict=True))
        unknown = self.coming * usual * fmean(cell.config.rounds for cell in (*waiting, *running))
        return (seconds + unknown) / min(jobs, len(rounds) + self.coming)


def _title(plan: SweepPlan, slot: CellSlot, cell: SweepCell) -> str:
    """Return the title of a cell in a progress view."""
    twin = next((kind for kind, other in slot.twins.items() if other.key == cell.key and cell != slot.cell), "")
    what = {"search": f"search {slot.attack}", "twin": "unattacked", "plain": "plain"}.get(slot.role, twin)
    parts = (plan.name, *map(str, slot.values.values()), what, f"seed {slot.seed}")
    return " · ".join(part for part in parts if part)


def failures(ledger: Ledger, out: Path) -> RunError | None:
    """Return one error about all failed cells; None if none failed."""
    if not ledger.failed:
        return None
    sentences = list(dict.fromkeys(ledger.failed.values()))
    more = f" (and {len(sentences) - 1} other reasons)" if len(sentences) > 1 else ""
    return RunError(
        f"{len(ledger.failed)} cells failed: {sentences[0].rstrip('.')}{more}; {out / results.FAILED} tells of each. "
        "Mend it and give the same command again: finished cells are not run again"
    )
