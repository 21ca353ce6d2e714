"""The runner: real processes, killed at any moment; results that are the same all the same."""

from __future__ import annotations

import dataclasses
import errno
import functools
import io
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from sparsefed import runs
from sparsefed.commands.reproduce import load as reading
from sparsefed.commands.reproduce.grid import plan
from sparsefed.core.errors import ConfigError, RunError
from sparsefed.core.progress import AtWork, Progress
from sparsefed.core.rng import rng
from sparsefed.reports.progress_view import ProgressView
from sparsefed.results import measures
from sparsefed.runs.disk import is_locked
from sparsefed.sweeps import ledger as results
from sparsefed.sweeps import pool, runner
from sparsefed.sweeps.ledger import Ledger
from sparsefed.sweeps.plan import SweepPlan
from sparsefed.sweeps.runner import Clock, failures, run_plans
from sparsefed.sweeps.worker import ABANDONED
from tests.support.exhibits_tiny import TINY
from tests.support.shared import Shared

KILLS = 10
LINUX = sys.platform.startswith("linux")
WORKER = [sys.executable, "-m", "sparsefed.sweeps.worker"]


def planned(text: str = TINY, name: str = "tiny") -> SweepPlan:
    return plan(reading.parse(name, text), "smoke").sweep


def read(out: Path) -> bytes:
    return (out / "tiny.smoke.jsonl").read_bytes()


@pytest.fixture(scope="module")
def undisturbed(shared: Shared) -> Path:
    """The tiny exhibit, run once in peace."""

    def make(out: Path) -> None:
        assert not run_plans([planned()], out, jobs=2).failed

    return shared.folder("tiny-exhibit", make)[0]


@pytest.fixture
def copied(undisturbed: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(undisturbed, tmp_path / "out"))


# --- what comes out --------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_every_run_of_the_grid_is_in_the_results_in_order(undisturbed: Path) -> None:
    rows = [json.loads(line) for line in read(undisturbed).splitlines()]
    told = [(row["cell"]["defense"], row["role"], row["seed"]) for row in rows]
    seeds = [(role, seed) for seed in (0, 1) for role in ("result", "twin", "plain")]
    attacked = [("search", 7), ("search", 7), *seeds]
    expected = [(defense, *each) for defense in ("Clipping", "SparseFed") for each in attacked]
    assert told == [*expected, ("Nobody", "result", 0), ("Nobody", "result", 1)]
    assert {row["status"] for row in rows} == {"done"}
    assert all(len(line) < 2000 for line in read(undisturbed).splitlines())
    for defense in ("Clipping", "SparseFed"):
        own = [row for row in rows if row["cell"]["defense"] == defense]
        tried = {row["attack"]: row["metrics"]["attack_mean"] for row in own if row["role"] == "search"}
        chosen = "weak" if tried["weak"] >= tried["strong"] else "strong"
        assert {row["attack"] for row in own if row["role"] != "search"} == {chosen}


def test_numbers_are_those_of_the_run_folders(undisturbed: Path) -> None:
    import torch

    rows = [json.loads(line) for line in read(undisturbed).splitlines()]
    for i, row in enumerate(rows):
        if row["role"] != "result" or row["attack"] is None:
            continue
        own, twin = (runs.load_run(undisturbed / "cells" / rows[j]["key"]) for j in (i, i + 1))
        states = [runs.load_state(record.folder) for record in (own, twin) if record.folder is not None]
        far = torch.cat([(s.theta if k else -s.theta)[None].double() for k, s in enumerate(states) if s]).sum(0)
        found = row["metrics"]
        assert found["l1"] == pytest.approx(float(far.abs().sum()), rel=1e-5)
        assert found["l2"] == pytest.approx(float(far.square().sum().sqrt()), rel=1e-5)
        ends = [record.rows[-1]["test_accuracy"] for record in (own, twin)]
        assert found["test_accuracy"] == pytest.approx(ends[0], abs=1e-6)
        assert found["lost"] == pytest.approx(ends[1] - ends[0], abs=1e-6)
        assert found["unattacked"] == pytest.approx(ends[1], abs=1e-6)
        assert found["attack_accuracy"] == pytest.approx(own.rows[-1]["attack_accuracy"], abs=1e-6)


def test_finished_cells_are_not_run_again(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = read(copied)
    monkeypatch.setattr(runner, "pool", _no_workers)
    run_plans([planned()], copied, jobs=2)
    assert read(copied) == before


def test_results_alone_are_enough_and_folders_alone_are_enough(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = read(copied)
    monkeypatch.setattr(runner, "pool", _no_workers)
    shutil.move(copied / "cells", copied / "elsewhere")
    run_plans([planned()], copied, jobs=1)
    assert read(copied) == before
    shutil.move(copied / "elsewhere", copied / "cells")
    (copied / "tiny.smoke.jsonl").unlink()
    run_plans([planned()], copied, jobs=1)
    assert read(copied) == before


def test_a_line_written_before_its_twin_was_done_is_completed(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a kill between a run and its twin leaves behind is no final result."""
    before = read(copied)
    rows = [json.loads(line) for line in before.splitlines()]
    for row in rows:
        del row["crc32"]
        row["twins"] = []
        row["metrics"].pop("lost", None)
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows if row["role"] != "twin")
    (copied / "tiny.smoke.jsonl").write_text(text)
    monkeypatch.setattr(runner, "pool", _no_workers)
    run_plans([planned()], copied, jobs=1)
    assert read(copied) == before


@pytest.mark.slow
def test_a_partial_file_goes_on_elsewhere_without_running_what_it_has(undisturbed: Path, tmp_path: Path) -> None:
    """On another machine, without run folders: a run meets its twin's line, and a line a twin that is run later."""
    whole = results.read(undisturbed / "tiny.smoke.jsonl")
    place = [(row["cell"]["defense"], row["role"], row["seed"]) for row in whole]
    gone = {place.index(("Clipping", "result", 0)), place.index(("SparseFed", "twin", 1))}
    alone = place.index(("SparseFed", "result", 1))
    of_twin = measures.OF_TWINS["unattacked"]
    bare = {name: value for name, value in whole[alone]["metrics"].items() if name not in of_twin}
    partial = list(whole)
    partial[alone] = {**whole[alone], "twins": ["plain"], "metrics": bare}
    one = planned()
    results.write(tmp_path, one, [row for i, row in enumerate(partial) if i not in gone])
    assert results.missing(one, results.read(tmp_path / "tiny.smoke.jsonl")) == 2
    assert not run_plans([one], tmp_path, jobs=2).failed
    assert {path.name for path in (tmp_path / "cells").iterdir()} == {whole[i]["key"] for i in gone}
    after = results.read(tmp_path / "tiny.smoke.jsonl")
    assert results.missing(one, after) == 0
    lost = {"l1", "l2", "class_lost_most"}
    for i, (old, new) in enumerate(zip(whole, after, strict=True)):
        without = lost if i == alone else {*lost, "l1_plain", "l2_plain"} if i in gone else set()
        kept = {name: value for name, value in old["metrics"].items() if name not in without}
        assert new["metrics"] == pytest.approx(kept, abs=2e-6), place[i]
        assert new["twins"] == old["twins"] and (i in (*gone, alone) or new == old)


def test_lines_of_another_exhibit_serve_where_the_cells_are_equal(
    copied: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "pool", _no_workers)
    shutil.copy(copied / "tiny.smoke.jsonl", tmp_path)
    fewer = TINY.replace('twins = ["unattacked", "plain"]', 'twins = ["unattacked"]')
    for folder in (copied, tmp_path):  # with the run folders, and with the lines alone
        run_plans([planned(fewer, "other")], folder, jobs=1)
    assert (copied / "other.smoke.jsonl").read_bytes() == (tmp_path / "other.smoke.jsonl").read_bytes()


def test_a_changed_config_is_another_cell(undisturbed: Path) -> None:
    def wanted(text: str) -> tuple[int, int]:
        one = planned(text)
        ledger = Ledger(undisturbed, [one])
        slots = results.slots(one, ledger)
        return len(slots), len({cell.key for slot in slots for cell in ledger.wanting(one, slot)})

    assert wanted(TINY) == (18, 0)
    other = TINY.replace("k = 50 } }\naxes.defense.Nobody", "k = 51 } }\naxes.defense.Nobody")
    assert wanted(other) == (12, 2)  # the search comes first; what follows it is not known yet
    more = wanted(TINY.replace("seeds = [0, 1]\nnote", "seeds = [0, 1, 2]\nnote"))[1]
    assert more in (6, 7)  # the plain twin is shared where both defenses meet the same attack


def _no_workers(jobs: int) -> None:
    raise AssertionError(f"{jobs} workers were asked for")


# --- kills -----------------------------------------------------------------------------------------------------------


def _forked(out: Path) -> tuple[int, int]:
    """A runner in a process group of its own, and a pipe that says a byte whenever a cell gets on."""
    ear, mouth = os.pipe()
    child = os.fork()
    if child:
        os.close(mouth)
        return child, ear
    try:
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        for stream in range(3):
            os.dup2(null, stream)
        run_plans([planned()], out, jobs=2, on_progress=functools.partial(_say, mouth))
    finally:
        os._exit(0)


def _say(mouth: int, reached: Progress) -> None:
    if reached.line or any(each.done for each in reached.running):
        os.write(mouth, b".")


def _rounds(out: Path) -> int:
    return sum(path.read_bytes().count(b"\n") for path in (out / "cells").glob("*/metrics.jsonl"))


def _children(pid: int) -> list[int]:
    found = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(child) for child in found.read_text().split()] if found.exists() else []


def _gone(pid: int) -> bool:
    status = Path(f"/proc/{pid}/status")
    try:
        return "\nState:\tZ" in status.read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True


def _soon(happens: Callable[[], bool], seconds: float = 15.0) -> bool:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if happens():
            return True
        time.sleep(0.02)
    return happens()


@pytest.mark.slow
@pytest.mark.skipif(not LINUX, reason="looks at /proc")
def test_killed_at_random_the_results_are_the_same(undisturbed: Path, tmp_path: Path) -> None:
    draw, cut = rng(0, "kills"), 0
    share = _rounds(undisturbed) // (KILLS + 2)
    for kill in range(KILLS):
        before = _rounds(tmp_path)
        child, ear = _forked(tmp_path)
        at_work = kill % 2 == 0  # every other one dies while a cell is at work, the rest at any moment of starting
        if at_work:
            select.select([ear], [], [], 120)
        end = time.monotonic() + draw.uniform(0, 0.4 if at_work else 1.0)
        while time.monotonic() < end and _rounds(tmp_path) < before + share:  # a fast machine would do all of them
            time.sleep(0.001)
        workers = _children(child)
        cut += not _gone(child)
        if kill % 4 < 2:
            os.kill(child, signal.SIGKILL)  # the parent alone: its workers must not outlive it
        else:
            os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(ear)
        assert _soon(lambda pids=workers: all(map(_gone, pids))), "workers outlived their parent"  # type: ignore[misc]
    assert cut >= KILLS - 2  # otherwise the exhibit is too short to say anything
    run_plans([planned()], tmp_path, jobs=2)
    assert read(tmp_path) == read(undisturbed)
    assert not list((tmp_path / "cells").glob("*/*.partial"))


def test_a_worker_whose_input_ends_ends(tmp_path: Path) -> None:
    """So it goes where the system does not kill children with their parents."""
    worker = [*WORKER, str(os.getpid())]
    done = subprocess.run(worker, stdin=subprocess.DEVNULL, capture_output=True, timeout=60, cwd=tmp_path)
    assert done.returncode == ABANDONED and not done.stdout


ORPHANAGE = """
import os, signal, subprocess, sys, time
pipe, seconds = int(sys.argv[1]), float(sys.argv[2])
worker = subprocess.Popen([*sys.argv[3:], str(os.getpid())], stdin=pipe, stdout=subprocess.DEVNULL)
print(worker.pid, flush=True)
time.sleep(seconds)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("seconds", [0.0, 2.0])
@pytest.mark.skipif(not LINUX, reason="looks at /proc")
def test_a_worker_does_not_need_the_end_of_its_input(seconds: float) -> None:
    """Its parent dies before or after it is bound to it, while another process holds its input open."""
    its, ours = os.pipe()
    parent = [sys.executable, "-c", ORPHANAGE, str(its), str(seconds), *WORKER]
    done = subprocess.run(parent, pass_fds=[its], stdout=subprocess.PIPE, timeout=60)
    worker = int(done.stdout.split()[0])
    try:
        assert _soon(lambda: _gone(worker))
    finally:
        os.close(its)
        os.close(ours)


@pytest.mark.slow
@pytest.mark.skipif(not LINUX, reason="looks at /proc")
def test_killed_at_any_moment_of_starting_no_worker_and_no_lock_is_left(tmp_path: Path) -> None:
    """The parent alone gets SIGKILL, mostly before its workers are at work; all of its session must be gone soon."""
    draw = rng(1, "kills")
    for _ in range(KILLS):
        child, ear = _forked(tmp_path)
        assert _soon(lambda pid=child: bool(_session(pid) - {pid}), 60)  # type: ignore[misc]
        time.sleep(draw.uniform(0, 0.5))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(ear)
        assert _soon(lambda pid=child: not _session(pid)), _session(child)  # type: ignore[misc]
        assert not is_locked(tmp_path)
        assert not any(is_locked(cell) for cell in (tmp_path / "cells").glob("*"))


def _session(leader: int) -> set[int]:
    """The living processes of a session, whoever their parents are."""
    pids = (int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit())
    return {pid for pid in pids if not _gone(pid) and _leader(pid) == leader}


def _leader(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return None


def test_interrupted_politely_it_saves_what_it_has(tmp_path: Path) -> None:
    def watch(reached: Progress) -> None:
        if any(each.done for each in reached.running):
            raise KeyboardInterrupt

    text = TINY.replace("set.rounds = 24", "set.rounds = 4000").replace(
        "checkpoint_every = 4", "checkpoint_every = 1000"
    )
    with pytest.raises(KeyboardInterrupt):
        run_plans([planned(text)], tmp_path, jobs=1, on_progress=watch)
    (manifest,) = [json.loads(path.read_text()) for path in (tmp_path / "cells").glob("*/manifest.json")]
    assert manifest["status"] == "interrupted" and 0 < manifest["round"] < 4000
    assert list((tmp_path / "cells").glob("*/checkpoint.safetensors"))


# --- failures --------------------------------------------------------------------------------------------------------

FAILING = """
title = "Models that fail"
where = "Table -1"
question = "Do the others go on?"
metrics = ["test_accuracy"]
[common]
rounds = 2
data = { name = "sparsefed.commands.reproduce.tiny:IMAGES", devices = 20 }
train = { cohort = 5 }
[axes.model]
deadly = { model = { name = "tests.support.exhibits_tiny:deadly" } }
broken = { model = { name = "tests.support.exhibits_tiny:broken" } }
"too small" = { model = { name = "softmax" }, defense = { name = "sparsefed", k = 100000, clip_norm = 1.0 } }
fine = { model = { name = "softmax" } }
[scales.smoke]
seeds = [0, 1]
"""


@pytest.mark.slow
def test_a_cell_that_fails_does_not_stop_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parents[2]), *sys.path]))
    one = planned(FAILING, "failing")
    ended: list[str] = []
    ledger = run_plans([one], tmp_path, jobs=1, on_progress=lambda reached: ended.append(reached.line))
    rows = results.read(tmp_path / "failing.smoke.jsonl")
    assert [(row["cell"]["model"], row["status"]) for row in rows] == [
        (model, status)
        for model, status in (("deadly", "failed"), ("broken", "failed"), ("too small", "failed"), ("fine", "done"))
        for _ in range(2)
    ]
    sentences = {row["cell"]["model"]: ledger.failed.get(row["key"], "") for row in rows}
    assert "SIGKILL" in sentences["deadly"] and "memory" in sentences["deadly"]
    assert "TypeError: a bug with" in sentences["broken"] and "exhibits_tiny.py, line" in sentences["broken"]
    assert "k is 100000" in sentences["too small"] and sentences["fine"] == ""
    texts = [path.read_text() for path in (tmp_path / "failed").iterdir()]
    assert len(texts) == 6 and sum("exhibits_tiny.py, line" in text for text in texts) == 2
    problem = failures(ledger, tmp_path)
    assert problem is not None and "6 cells failed" in str(problem) and "same command" in str(problem)
    assert sum("failed" in told for told in ended) == 6


FULL_DISK = """
import errno, os

def fsync(number):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

os.fsync = fsync
"""


def full_disk(number: int) -> None:  # noqa: ARG001
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a worker, while it makes a run folder: no fault of the cell's, so everything stops."""
    (tmp_path / "sitecustomize.py").write_text(FULL_DISK)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    one = planned()
    with pytest.raises(RunError, match=r"cannot write to .* \(No space left on device\).*same command again"):
        run_plans([one], tmp_path, jobs=1)


def test_no_space_for_the_results_is_one_sentence(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "pool", _no_workers)
    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(RunError, match=r"cannot write to .* \(No space left on device\)"):
        run_plans([planned()], copied, jobs=1)


def test_a_file_in_the_place_of_the_folder_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("no folder")
    with pytest.raises(RunError, match="cannot write to"):
        run_plans([planned()], tmp_path / "out", jobs=1)


def test_damaged_results_are_one_sentence(copied: Path) -> None:
    with (copied / "tiny.smoke.jsonl").open("a") as file:
        file.write("{}\n")
    with pytest.raises(RunError, match=r"is damaged .*line 19.*delete it"):
        run_plans([planned()], copied, jobs=1)


def test_two_runners_in_one_folder_are_refused(copied: Path) -> None:
    with runs.locked(copied), pytest.raises(RunError, match="another process is working on"):
        run_plans([planned()], copied, jobs=1)


def test_a_lock_that_is_held_for_a_moment_is_waited_for(tmp_path: Path) -> None:
    """As by who looks whether a run goes on, or by a killed process's child that has not begun its own program."""
    held = threading.Event()

    def hold() -> None:
        with runs.locked(tmp_path):
            held.set()
            time.sleep(0.2)

    holder = threading.Thread(target=hold)
    holder.start()
    assert held.wait(10)
    with runs.locked(tmp_path):
        assert is_locked(tmp_path)
    holder.join()


def test_no_jobs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="at least one"):
        run_plans([planned()], tmp_path, jobs=0)


# --- threads ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", [{}, {"OMP_NUM_THREADS": "3"}])
@pytest.mark.parametrize("jobs", [1, 2, 5])
def test_the_threads_of_a_worker_do_not_depend_on_the_jobs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, jobs: int, given: dict[str, str]
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    with pool.pool(jobs) as workers:
        workers.start(planned().groups[0].trials[0].cell, tmp_path)
        assert isinstance(workers, pool.Pool)
        assert f"OMP_NUM_THREADS={given.get('OMP_NUM_THREADS', '1')}".encode() in environ(workers._workers[0].process)


def environ(process: subprocess.Popen[bytes], seconds: float = 10.0) -> list[bytes]:
    """The variables that a process was started with; Linux shows none until its program is in place."""
    end = time.monotonic() + seconds
    while not (content := Path(f"/proc/{process.pid}/environ").read_bytes()) and time.monotonic() < end:
        time.sleep(0.001)
    return content.split(b"\0")


def test_time_left_counts_rounds_at_their_measured_rates() -> None:
    one = planned()
    cells = [slot.cell for slot in one.groups[0].trials]
    clock = Clock()
    assert clock.rate(cells[0]) is None
    clock.learn(cells[0], 8.0, 40)
    clock.learn(cells[0], 8.0, 40)
    clock.learn(cells[0], 400.0, 40)  # one that also paid for compiling
    assert clock.rate(cells[1]) == pytest.approx(0.2)  # of the same kind
    other = dataclasses.replace(cells[1], config=cells[1].config.model_copy(update={"rounds": 7}))
    assert clock.rate(other) == pytest.approx(0.2)


def test_time_left_does_not_double_while_a_worker_is_between_two_cells(tmp_path: Path) -> None:
    one = planned()
    run = runner._Run([one], tmp_path, Ledger(tmp_path, [one]), lambda _: None)
    run._clock.learn(run.waiting[0], 8.0, 40)
    first, *others = run.waiting
    between, both = (
        run._left(waiting, running, 2) for waiting, running in ((others, [first]), (others[1:], [first, others[0]]))
    )
    assert between is not None and between == pytest.approx(both)


def test_a_view_shows_cells_rounds_and_time_left() -> None:
    screen, paper = io.StringIO(), io.StringIO()
    running = (AtWork("tiny · One · Clipping · seed 0", 12, 24),)
    line = "tiny · One · SparseFed · seed 1: done"
    reached = Progress("cells", 4, 18, running, {"failed": "1"}, 75.0, line, unit="cell")
    for stream, terminal in ((screen, True), (paper, False)):
        with ProgressView(Console(file=stream, force_terminal=terminal, width=120)) as view:
            view.show(dataclasses.replace(reached, line=""))
            view.show(reached)
            view._bars.refresh()
    for part in ("4/18", "failed 1", "12/24", "Clipping · seed 0", "1 min 15 s left"):
        assert part in screen.getvalue(), part
    assert paper.getvalue() == "cell 4/18: tiny · One · SparseFed · seed 1: done; 1 min 15 s left\n"
