"""Processes that stay alive and answer a line at a time, so that what they do can be interleaved with other work.

Knows neither what is asked nor by whom; needs the standard library alone, so that a peer's environment can import it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]

Answers = Mapping[str, Callable[[], Any]]


def serve(ready: Any, answers: Answers) -> None:
    """Say `ready`, then answer each line of standard input by a line of JSON, until there is none."""
    out = sys.stdout
    sys.stdout = sys.stderr  # whatever else is printed must not be taken for an answer
    _say(out, ready)
    for line in sys.stdin:
        _say(out, answers[line.strip()]())


def _say(out: Any, value: Any) -> None:
    out.write(json.dumps(value) + "\n")
    out.flush()


class WorkerError(Exception):
    """A worker that ended before it answered."""


class Worker:
    """The other end: a running process that can be asked."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.ready = self._answer()

    def ask(self, question: str) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(question + "\n")
        self._process.stdin.flush()
        return self._answer()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Stop this process and all that it has started while another side is timed: some poll with nothing to do."""
        processes = family(self._process.pid)
        _signal(processes, signal.SIGSTOP)
        try:
            yield
        finally:
            _signal(processes, signal.SIGCONT)

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            command = " ".join(self._process.args[:3])  # type: ignore[index, arg-type]
            raise WorkerError(f"`{command}` ended with code {self._process.wait()} before it answered; see above")
        return json.loads(line)


def family(pid: int) -> list[int]:
    """Return a process and all those that it or one of them has started (Linux)."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended meanwhile
            children.setdefault(int(entry.read_text().rpartition(")")[2].split()[1]), []).append(int(entry.parent.name))
    found = [pid]
    for one in found:  # which grows meanwhile
        found += children.get(one, [])
    return found


def _signal(processes: Sequence[int], number: signal.Signals) -> None:
    for pid in processes:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


@contextmanager
def worker(
    python: str | Path,
    module: str,
    arguments: Sequence[str],
    environment: Mapping[str, str] | None = None,
    folder: Path = ROOT,
) -> Iterator[Worker]:
    """`python -m module arguments`, from the project's folder or another, ended when the block is left."""
    process = subprocess.Popen(
        [str(python), "-m", module, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=folder,
        env={**os.environ, **(environment or {})},
    )
    try:
        yield Worker(process)
    finally:
        _end(process)


def _end(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None and process.stdout is not None
    try:
        process.communicate(timeout=10)  # closes its input: it has no more to answer
    except (subprocess.TimeoutExpired, BrokenPipeError):
        process.kill()
        process.communicate()
