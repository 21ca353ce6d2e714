"""The runner of plans: every unfinished cell is run, several at a time, once for all plans that need it.

If this process is interrupted or killed, the same command resumes: finished cells are never run again, a cell that was
cut off continues from its checkpoint, and one that failed is retried. A cell's failure is recorded and does not stop
the others; a disk that cannot be written to does.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from statistics import fmean, median

from sparsefed import config as configs
from sparsefed import runs
from sparsefed.core.dtypes import computed_in
from sparsefed.core.errors import ConfigError, RunError
from sparsefed.core.progress import AtWork, OnProgress, Progress
from sparsefed.sweeps import ledger as results
from sparsefed.sweeps.cells import SweepCell
from sparsefed.sweeps.clock import Clock
from sparsefed.sweeps.ledger import Ledger
from sparsefed.sweeps.plan import CellSlot, SweepPlan
from sparsefed.sweeps.pool import Event, Workers, cores, pool

REFRESH = 0.25  # seconds between two polls of the workers while nothing happens


def default_jobs() -> int:
    """Return the default number of jobs, one per core."""
    return cores()


def run_plans(
    plans: Sequence[SweepPlan],
    out: Path,
    jobs: int,
    on_progress: OnProgress = lambda _: None,
    workers: Workers | None = None,
) -> Ledger:
    """Run what is missing of the plans, and keep their results files up to date.

    Args:
        plans: What to run; equal cells are run once.
        out: The folder of results and cells.
        jobs: How many cells run at a time.
        on_progress: Called with a `Progress` whenever something has changed.
        workers: Workers to use and to leave running, because more plans follow; own ones by default.

    Returns:
        What is known of every cell, also of those that failed.

    Raises:
        ConfigError: If `jobs` is not positive.
        RunError: If `out` cannot be written to, is damaged or is used by another process.
    """
    if jobs < 1:
        raise ConfigError(f"--jobs is {jobs}; at least one cell must run")
    with _alone(out):
        ledger = Ledger(out, plans)
        run = _Run(plans, out, ledger, on_progress)
        if run.waiting:
            for dtype in {cell.config.train.dtype for cell in run.waiting}:
                computed_in(dtype)  # warns here, because what workers print is not shown
            many, live = (
                min(jobs, len(run.waiting) + run.coming),
                any(configs.is_live(cell.config) for cell in run.waiting),
            )
            with pool(many, live) if workers is None else nullcontext(workers) as team:
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


@contextmanager
def _alone(out: Path) -> Iterator[None]:
    """Hold the folder's lock, and refuse a second runner in it."""
    with results.disk(out):
        out.mkdir(parents=True, exist_ok=True)
        (out / ".lock").open("a").close()
    with runs.locked(out):
        yield


class _Run:
    """The state of one call of `run_plans`: which cells wait, run, are done or failed."""

    def __init__(self, plans: Sequence[SweepPlan], out: Path, ledger: Ledger, on_progress: OnProgress) -> None:
        self._plans, self._out, self._ledger, self._on_progress = plans, out, ledger, on_progress
        self._clock = Clock()
        self._done: set[str] = set()
        self._titles: dict[str, str] = {}
        self._cells: dict[str, SweepCell] = {}
        self.waiting: list[SweepCell] = []  # the cells that can be run now, each once, in the order of the results
        self.coming = 0  # how many more cells follow from searches
        self._look()
        self._recall()

    def drive(self, workers: Workers) -> None:
        """Give cells to workers until nothing is left to do."""
        while True:
            running = {cell.key for cell in workers.running}
            for cell in [cell for cell in self.waiting if cell.key not in running][: workers.free]:
                self._clock.start(cell)
                workers.start(cell, results.folder(self._out, cell.key))
            if not workers.running:
                return
            self._on_progress(self._progress(workers))
            for event in workers.events(REFRESH):
                self._hear(event, workers)

    def _look(self) -> None:
        """Update the cells that can be run, after something has ended."""
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
        """Write the results of a plan as far as they are known; no file if there are none."""
        if rows := results.rows(plan, self._ledger):
            results.write(self._out, plan, rows)

    def _hear(self, event: Event, workers: Workers) -> None:
        if event.kind == "round":
            self._clock.hear(event.key, event.round)
            return
        if event.disk is not None:
            raise results.trouble(self._out, event.disk)
        cell, end = self._cells[event.key], "done"
        self._ledger.forget(event.key)
        self._ledger.failed.pop(event.key, None)
        if event.kind == "done" and self._ledger.finished(cell):
            self._done.add(event.key)
            self._note(cell, event.seconds)
        else:
            end = f"failed: {event.error or 'its run folder is damaged'}"
            self._ledger.failed[event.key] = event.error or "its run folder is damaged; delete it"
        self._write_down(event)
        for plan in self._plans:
            if any(event.key in _keys(slot) for slot in results.slots(plan, self._ledger)):
                self.write(plan)
        self._look()
        self._on_progress(self._progress(workers, f"{self._titles[event.key]}: {end}"))

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

    def _recall(self) -> None:
        """Learn the rates of cells from earlier calls."""
        known = {cell.key: cell for cell in self._planned()}
        for key, seconds, rounds in results.timings(self._out):
            if key in known:
                self._clock.learn(known[key], seconds, rounds)

    def _planned(self) -> Iterator[SweepCell]:
        for plan in self._plans:
            for slot in results.slots(plan, self._ledger):
                yield slot.cell

    def _progress(self, workers: Workers, ended: str = "") -> Progress:
        waiting, running = self.waiting, workers.running
        at_work = {cell.key for cell in running}
        still = len({cell.key for cell in waiting} | at_work) + self.coming
        failed = len(self._ledger.failed)
        shown = tuple(
            AtWork(self._titles[cell.key], self._clock.rounds.get(cell.key, 0), cell.config.rounds) for cell in running
        )
        left = self._left([cell for cell in waiting if cell.key not in at_work], running, workers.jobs)
        done, fields = len(self._done) + failed, {"failed": str(failed)} if failed else {}
        return Progress("cells", done, done + still, shown, fields, left, ended, unit="cell")

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


def _keys(slot: CellSlot) -> set[str]:
    return {slot.cell.key, *(cell.key for cell in slot.twins.values())}


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
