"""A soak of kill -9: every command that computes is killed at random moments, repeated, and must come to the same bits.

    python -m fuzz.soak --kills 1000

Each job is run once undisturbed, then again in a fresh folder under kills: its process, and not its workers, gets
SIGKILL at a random moment; after that no process of its session may be left, no lock may be held, and the same command
goes on. In the end its results must equal the undisturbed ones. A job's process is forked from this one, which has
imported everything, so that the kills meet the work and not the imports; its workers are processes of their own.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import importlib
import json
import os
import random
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from tests.support.processes import CONFIG

from sparsefed import cli, sweep
from sparsefed.kernels import rows
from sparsefed.kernels.compilation import warm_up

PRELOADED = ("torch", "numba", "optuna", "altair", "sparsefed.simulation", "sparsefed.sweeps")
ORPHAN_SECONDS = 20.0  # after which a process that is still there counts as an orphan


@dataclass(frozen=True)
class Job:
    """A command that can be killed and repeated."""

    name: str
    begin: tuple[str, ...]
    again: tuple[str, ...]
    result: Callable[[Path], str]  # a digest of what it computed, without times
    seconds: float  # that it takes, about


def _digest(*parts: bytes) -> str:
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


def _run(folder: Path) -> str:
    timed = ("seconds", "crc32")
    rows = [json.loads(line) for line in (folder / "out/metrics.jsonl").read_text().splitlines()]
    kept = [{key: value for key, value in row.items() if key not in timed} for row in rows]
    return _digest((folder / "out/checkpoint.safetensors").read_bytes(), json.dumps(kept).encode())


def _files(*names: str) -> Callable[[Path], str]:
    return lambda folder: _digest(*((folder / "out" / name).read_bytes() for name in names))


def _rows(folder: Path) -> str:
    return _digest(*(path.read_bytes() for path in sorted((folder / "out").glob("*.jsonl")) if path.stem != "timings"))


def _cells(folder: Path) -> str:
    return _digest(*(path.read_bytes() for path in sorted((folder / "out").glob("cells/*/checkpoint.safetensors"))))


TUNE = ("tune", "small.toml", "--trials", "6", "--out", "out")
AUDIT = (
    *("audit", "small.toml", "--defenses", "clipping,sparsefed", "--attacks", "sign_flip"),
    *("--trials", "2", "--seeds", "1", "--out", "out"),
)
REPRODUCE = ("reproduce", "attack-accuracy", "--scale", "smoke", "--out", "out", "--jobs", "2")
JOBS = (
    Job("run", ("run", "mine.toml", "--out", "out"), ("resume", "out"), _run, 5.0),
    Job("tune", TUNE, TUNE, _files("strongest.toml"), 5.0),
    Job("sweep", ("sweep",), ("sweep",), _cells, 6.0),
    Job("audit", AUDIT, AUDIT, _files("audit.jsonl"), 15.0),
    Job("reproduce", REPRODUCE, REPRODUCE, _rows, 15.0),
)


def _folder(parent: Path, name: str) -> Path:
    folder = parent / name
    folder.mkdir()
    (folder / "mine.toml").write_text(CONFIG.replace("rounds = 12", "rounds = 300"))
    (folder / "small.toml").write_text(CONFIG.replace("rounds = 12", "rounds = 20"))
    return folder


class Forked:
    """A command in a forked process, with its own session, working folder and log."""

    def __init__(self, command: tuple[str, ...], folder: Path) -> None:
        """Fork and run the command there."""
        self._code: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            _child(command, folder)

    def poll(self) -> int | None:
        """Return the exit code, or None while it runs."""
        if self._code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self._code = os.waitstatus_to_exitcode(status) if pid else None
        return self._code

    def wait(self, timeout: float) -> int | None:
        """Return the exit code, or None if it still runs after that many seconds."""
        end = time.monotonic() + timeout
        while self.poll() is None and time.monotonic() < end:
            time.sleep(0.005)
        return self.poll()


def _child(command: tuple[str, ...], folder: Path) -> NoReturn:
    """Become the command: never return to the soak."""
    code = 1
    try:
        os.setsid()
        os.chdir(folder)
        log = os.open("log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(log, 1)
        os.dup2(log, 2)
        if command[0] == "sweep":
            sweep("small.toml", {"defense.k": [20, 50], "seed": [0, 1]}, folder="out", jobs=2)
            code = 0
        else:
            sys.argv = ["sparsefed", *command]
            cli.main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _finish(job: Job, folder: Path) -> None:
    command = job.again if (folder / "out/manifest.json").exists() else job.begin
    code = Forked(command, folder).wait(timeout=600)
    if code != 0:
        raise SystemExit(f"{job.name} ended with exit code {code}:\n{(folder / 'log').read_text()[-2000:]}")


def orphans(session: int) -> list[int]:
    """Return the processes of a session, waiting for those that are about to end."""
    end = time.monotonic() + ORPHAN_SECONDS
    while left := [int(path.name) for path in Path("/proc").glob("[0-9]*") if _session(path) == session]:
        if time.monotonic() > end:
            return left
        time.sleep(0.1)
    return []


def _session(process: Path) -> int:
    try:
        state, *rest = (process / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return -1
    return -1 if state == "Z" else int(rest[2])


def held_locks(folder: Path) -> list[Path]:
    """Return the locks below a folder that stay held; threads of a killed process may need a moment to end."""
    end = time.monotonic() + ORPHAN_SECONDS
    while held := [path for path in folder.rglob(".lock") if _is_held(path)]:
        if time.monotonic() > end:
            return held
        time.sleep(0.1)
    return []


def _is_held(lock: Path) -> bool:
    with lock.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def kill_once(job: Job, folder: Path, draw: random.Random) -> bool:
    """Start or continue a job and kill it at a random moment; return whether it was still running then."""
    known = (folder / "out/manifest.json").exists()
    process = Forked(job.again if known else job.begin, folder)
    begun, before = time.monotonic(), _newest(folder)
    if draw.random() < 0.8:  # most kills come after the imports, when it writes
        while _newest(folder) == before and process.poll() is None and time.monotonic() - begun < 60:
            time.sleep(0.03)
        delay = draw.uniform(0, job.seconds / 3)
    else:
        delay = draw.uniform(0, 4)
    if process.wait(timeout=delay) is not None:
        return False
    os.kill(process.pid, signal.SIGKILL)
    process.wait(timeout=60)
    if left := orphans(process.pid):
        raise SystemExit(f"{job.name} left processes behind: {left}")
    return True


def _newest(folder: Path) -> float:
    times = []
    for path in folder.glob("out/**/*"):
        with suppress(FileNotFoundError):  # gone in between
            times.append(path.stat().st_mtime)
    return max(times, default=0.0)


def soak(kills: int, seed: int, jobs: tuple[Job, ...] = JOBS, each: int = 40) -> tuple[Counter[str], list[str]]:
    """Kill jobs in turn until there are enough kills; return the kills of each job, and what went wrong."""
    draw, done, wrong = random.Random(seed), Counter[str](), []
    with tempfile.TemporaryDirectory(prefix="sparsefed-soak-") as place:
        truth: dict[str, str] = {}
        for number in range(10**6):
            job = jobs[number % len(jobs)]
            if done.total() >= kills:
                break
            if job.name not in truth:
                whole = _folder(Path(place), f"whole-{job.name}")
                _finish(job, whole)
                truth[job.name] = job.result(whole)
            folder = _folder(Path(place), f"{job.name}-{number}")
            for _ in range(min(each, kills - done.total())):
                if not kill_once(job, folder, draw):
                    break
                done[job.name] += 1
                wrong += [f"{job.name}: a lock is held: {path}" for path in held_locks(folder)]
            _finish(job, folder)
            if job.result(folder) != truth[job.name]:
                wrong.append(f"{job.name}: the result differs after kills (folder {number})")
            print(f"{done.total()} kills: {dict(done)}; wrong: {wrong or 'nothing'}", flush=True)
    return done, wrong


def main() -> int:
    """Run the soak; return 1 if anything went wrong."""
    parser = argparse.ArgumentParser(prog="python -m fuzz.soak", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", nargs="*", choices=[job.name for job in JOBS], help="which commands; by default all")
    given = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"  # threads of several processes get into each other's way
    for name in PRELOADED:
        importlib.import_module(name)
    warm_up(rows.rehearse)
    jobs = tuple(job for job in JOBS if not given.jobs or job.name in given.jobs)
    done, wrong = soak(given.kills, given.seed, jobs)
    print(f"{done.total()} kills ({', '.join(f'{name} {count}' for name, count in done.items())}); {len(wrong)} wrong")
    print("\n".join(wrong))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
