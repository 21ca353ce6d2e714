"""Results as lines of JSON, one file per plan: read back, put in order, written atomically.

A line is a run: its position in the plan, its key and what was measured. Nothing in it depends on when or how often the
runner was interrupted, so equal cells make equal files.

A results file that is only partly done can be taken to another machine without the run folders: what it has is not run
again there. A run is then compared with a twin by the lines of both, which gives accuracies; distances between the two
models and the class that lost most need both folders, and are missing from that line.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from sparsefed import runs
from sparsefed.core.errors import RunError
from sparsefed.core.types import RunRecord
from sparsefed.results import measures
from sparsefed.sweeps.cells import SweepCell
from sparsefed.sweeps.plan import CellGroup, CellSlot, Metrics, SweepPlan, strongest

CELLS, FAILED, TIMINGS = "cells", "failed", "timings.jsonl"
BRIEFLY = ("test_accuracy", "attack_accuracy", "attack_mean", "converged")  # for runs that are not reported
ROW = {"exhibit", "scale", "cell", "attack", "role", "seed", "key", "twins", "status", "metrics"}

Row = Mapping[str, Any]

logger = logging.getLogger(__name__)


def path(out: Path, plan: SweepPlan) -> Path:
    """Return the path of a plan's results file."""
    return out / (f"{plan.name}.{plan.scale}.jsonl" if plan.scale else f"{plan.name}.jsonl")


def folder(out: Path, key: str) -> Path:
    """Return the run folder of a cell."""
    return out / CELLS / key


def read(file: Path) -> list[Row]:
    """Return the lines of a results file; empty if there is no file."""
    if not file.exists():
        return []
    lines = runs.read_bytes(file).splitlines(keepends=True)
    records = list(map(runs.record_of, lines))  # files of early versions have no checksums
    rows: list[Row] = [record[0] for record in records if record is not None and record[0].keys() >= ROW]
    checked = {record[1] for record in records if record is not None}
    if len(rows) < len(lines) or len(checked) > 1:
        strange = [n for n, record in enumerate(records, 1) if record is None or not record[0].keys() >= ROW]
        where = f"line {strange[0]} is not a result's" if strange else "some lines have no checksum"
        again = "finished cells that are still there are not run again"
        raise RunError(f"{file} is damaged ({where}); delete it and give the same command: {again}")
    return rows


def write(out: Path, plan: SweepPlan, rows: Sequence[Row]) -> None:
    """Write the lines of a plan atomically."""
    with disk(out):
        runs.write_atomically(path(out, plan), b"".join(map(runs.line, rows)))


@contextmanager
def disk(out: Path) -> Iterator[None]:
    """Turn an error of the disk within the block into a `RunError`."""
    try:
        yield
    except OSError as error:
        raise trouble(out, error.strerror or str(error)) from error


def trouble(out: Path, reason: str) -> RunError:
    """Return the error for a disk that cannot be written to, with this reason."""
    return RunError(
        f"cannot write to {out} ({reason}); free some space or make it writable, then give the same command again: it "
        "goes on where it was. Or choose another folder with --out"
    )


def timings(out: Path) -> list[tuple[str, float, int]]:
    """Return key, seconds and rounds of every cell that was run in this folder; a line that was cut off is skipped."""
    file, entries = out / TIMINGS, []
    for line in file.read_text(encoding="utf-8").splitlines() if file.exists() else ():
        with suppress(ValueError, KeyError, TypeError):
            entry: Any = json.loads(line)
            entries.append((str(entry["key"]), float(entry["seconds"]), int(entry["rounds"])))
    return entries


def seconds(out: Path, keys: Container[str]) -> float | None:
    """Return the seconds that these cells took together; None if none was timed."""
    took = [seconds for key, seconds, _ in timings(out) if key in keys]
    return sum(took) if took else None


class Ledger:
    """The known state of the cells in a folder, read once from their run folders and from earlier results."""

    def __init__(self, out: Path, plans: Sequence[SweepPlan]) -> None:
        self._out = out
        self._old = {_id(row): row for plan in plans for row in read(path(out, plan)) if row["status"] == "done"}
        self._lines = _by_key(out, plans)  # also of other results files, which may share cells with these
        self._records: dict[str, RunRecord | None] = {}
        self._rows: dict[str, Row] = {}
        self.failed: dict[str, str] = {}  # the sentences of the cells that failed in this call, by key

    def forget(self, key: str) -> None:
        """Forget a cell's cached record, because the cell has been run; it is read again on next use."""
        self._records.pop(key, None)

    def record(self, key: str) -> RunRecord | None:
        """Return a cell's finished run; None also if it is damaged, so that it is run again."""
        if key not in self._records:
            self._records[key] = None
            place = folder(self._out, key)
            try:
                record = runs.load_run(place) if runs.is_run(place) else None
            except RunError as error:
                logger.warning("%s", error)
                return None
            if record is not None and record.manifest.get("status") == "finished":
                self._records[key] = record
        return self._records[key]

    def row(self, plan: SweepPlan, slot: CellSlot) -> Row | None:
        """Return the line of a run that is finished or failed; None if it is neither."""
        name = _id(_row(plan, slot, "done", {}))
        if name in self._rows:
            return self._rows[name]
        old = self._old.get(name)
        if old is not None and set(old["twins"]) == set(slot.twins) and ("curves" in old) == _curved(plan, slot):
            return self._rows.setdefault(name, old)
        record, line = self.record(slot.cell.key), old or self._lines.get(slot.cell.key)
        if record is None and line is not None and _serves(line, plan, slot):
            row = self._copied(plan, slot, line)
        elif record is None:
            return _row(plan, slot, "failed", {}) if slot.cell.key in self.failed else None
        else:
            row = self._measured(plan, slot, record)
        if set(row["twins"]) == set(slot.twins):  # otherwise a twin is still missing
            self._rows[name] = row
        return row

    def _measured(self, plan: SweepPlan, slot: CellSlot, record: RunRecord) -> Row:
        """Return the line of a run whose folder is here."""
        metrics = _reported(slot, measures.metrics(record))
        lines = self._twin_lines(slot)
        others = {str(kind): self.record(cell.key) for kind, cell in slot.twins.items()}
        there = {kind: other for kind, other in others.items() if other is not None}
        rest = {kind: line for kind, line in lines.items() if kind not in there}
        compared = measures.versus(record, there) | measures.beside(metrics, rest)
        row = _row(plan, slot, "done", {**metrics, **compared}, tuple(lines)) | {"dtype": runs.dtype_of(record)}
        return row | {"curves": measures.curves(record, plan.curves)} if _curved(plan, slot) else row

    def _copied(self, plan: SweepPlan, slot: CellSlot, line: Row) -> Row:
        """Return the line of a run whose folder is elsewhere, from one that was written when it was there."""
        lines = self._twin_lines(slot)
        gone = {name for kind, names in measures.OF_TWINS.items() if kind not in slot.twins for name in names}
        metrics = {name: value for name, value in _reported(slot, line["metrics"]).items() if name not in gone}
        rest = {kind: twin for kind, twin in lines.items() if kind not in line["twins"]}
        known = tuple(kind for kind in slot.twins if kind in line["twins"] or kind in rest)
        row = _row(plan, slot, "done", {**metrics, **measures.beside(metrics, rest)}, known)
        row |= {"dtype": line["dtype"]} if "dtype" in line else {}  # lines of early versions have none
        return row | {"curves": line["curves"]} if _curved(plan, slot) else row

    def _twin_lines(self, slot: CellSlot) -> dict[str, Metrics]:
        """Return what is known of the twins of a run, from their folders or from lines."""
        known = {kind: self._metrics(cell.key) for kind, cell in slot.twins.items()}
        return {str(kind): metrics for kind, metrics in known.items() if metrics is not None}

    def _metrics(self, key: str) -> Metrics | None:
        record, line = self.record(key), self._lines.get(key)
        return measures.metrics(record) if record is not None else line and line["metrics"]

    def wanting(self, plan: SweepPlan, slot: CellSlot) -> list[SweepCell]:
        """Return the cells that a line still waits for."""
        row = self.row(plan, slot)
        if row is not None and _id(row) in self._rows:
            return []
        missing = [cell for cell in slot.twins.values() if self._metrics(cell.key) is None]
        own = [] if row is not None else [slot.cell]
        return [cell for cell in (*own, *missing) if cell.key not in self.failed]


def _by_key(out: Path, plans: Sequence[SweepPlan]) -> dict[str, Row]:
    """Return a finished line of every cell, from all results files of the plans' scales; reported runs say most."""
    scales = dict.fromkeys(plan.scale for plan in plans if plan.scale)
    others = (file for scale in scales for file in sorted(out.glob(f"*.{scale}.jsonl")))
    lines: dict[str, Row] = {}
    for file in dict.fromkeys((*(path(out, plan) for plan in plans), *others)):
        with suppress(RunError):  # if it is a plan's own, it has been read before
            done = [row for row in read(file) if row["status"] == "done" and row["key"]]
            lines |= {row["key"]: row for row in done if row["role"] == "result" or row["key"] not in lines}
    return lines


def _serves(line: Row, plan: SweepPlan, slot: CellSlot) -> bool:
    """Return whether a line says all that another line of the same cell needs."""
    return slot.role != "result" or (line["role"] == "result" and ("curves" in line or not _curved(plan, slot)))


def _reported(slot: CellSlot, metrics: Metrics) -> Metrics:
    return metrics if slot.role == "result" else {name: metrics[name] for name in BRIEFLY if name in metrics}


def _curved(plan: SweepPlan, slot: CellSlot) -> bool:
    return bool(plan.curves) and slot.role == "result"


def _row(plan: SweepPlan, slot: CellSlot, status: str, metrics: Metrics, twins: Sequence[str] = ()) -> dict[str, Any]:
    return {
        "exhibit": plan.name,
        "scale": plan.scale,
        "cell": dict(slot.values),
        "attack": slot.attack,
        "role": slot.role,
        "seed": slot.seed,
        "key": slot.cell.key,
        "twins": list(twins),  # that it was compared with
        "status": status,
        "metrics": dict(metrics),
    }


def _id(row: Row) -> str:
    """Return the identity of a line: its place in the plan and its run."""
    return json.dumps([row[key] for key in ("exhibit", "scale", "cell", "role", "seed", "key", "attack")])


# --- a plan as a whole -----------------------------------------------------------------------------------------------


def slots(plan: SweepPlan, ledger: Ledger) -> list[CellSlot]:
    """Return every run that is known to be needed, in the order of the results."""
    return [slot for group in plan.groups for slot in (*group.trials, *(_outcomes(plan, group, ledger) or ()))]


def rows(plan: SweepPlan, ledger: Ledger) -> list[Row]:
    """Return the lines of the runs that are finished or failed."""
    known = (ledger.row(plan, slot) for slot in slots(plan, ledger))
    return [row for row in known if row is not None]


def missing(plan: SweepPlan, rows: Sequence[Row]) -> int:
    """Return how many runs of a plan have no finished line yet."""
    lines = sum(len(group.trials) + group.coming for group in plan.groups)
    return max(lines - len([row for row in rows if row["status"] == "done"]), 0)


def coming(plan: SweepPlan, ledger: Ledger) -> int:
    """Return how many runs are still unknown, because they wait for a search."""
    return sum(group.coming for group in plan.groups if _outcomes(plan, group, ledger) is None)


def _outcomes(plan: SweepPlan, group: CellGroup, ledger: Ledger) -> tuple[CellSlot, ...] | None:
    """Return the reported runs of a combination: None before its search has ended, none if the whole search failed."""
    if not group.trials:
        return group.outcomes(None)
    trials = {slot.attack or "": ledger.row(plan, slot) for slot in group.trials}
    known = {name: row for name, row in trials.items() if row is not None}
    if len(known) < len(trials):
        return None
    done = {name: row["metrics"] for name, row in known.items() if row["status"] == "done"}
    return group.outcomes(strongest(done)) if done else ()
