"""Commands as real processes: started the ordinary way, on a terminal, or as children of a `Nursery`.

A start of Python with torch costs seconds, so most commands are children of a `Nursery`: one process that has imported
everything and forks, for each command, a process that runs the same entry point with its own arguments, folder, output
and exit code; the workers of its sweeps are forked from it in turn (`forked_workers`). Before it forks, numba's
compiler has compiled a function that is nobody's, and the script that draws the charts of a page has been bundled, in a
process of its own: V8 has threads, which a fork does not copy.
"""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "sparsefed.cli"]
ENVIRONMENT = {
    **{key: value for key, value in os.environ.items() if not key.startswith(("COLUMNS", "LINES", "PYTHON", "COV"))},
    "OMP_NUM_THREADS": "1",
}

CONFIG = """
seed = 3
rounds = 12
evaluate_every = 4
checkpoint_every = 3

[data]
name = "digits"
devices = 300

[model]
name = "softmax"

[train]
cohort = 20

[threat]
share = 0.1

[attack]
name = "pgd"
auxiliary = 50

[defense]
name = "sparsefed"
k = 100
"""


@dataclass(frozen=True)
class Done:
    """How a command ended; a negative code is the signal that ended it."""

    code: int
    out: str
    err: str
    cpu: float = field(default=0.0, compare=False)  # the seconds that it and its children computed, where that is known

    def refused(self) -> str:
        """The one sentence of a command that must be mended first."""
        assert self.code == 2, self
        assert "Traceback" not in self.err
        *progress, sentence = self.err.splitlines()
        assert sentence.startswith("error: ")
        assert not [line for line in progress if "error" in line]
        return sentence.removeprefix("error: ").strip()

    def fine(self) -> str:
        """The results of a command that went well; its progress and notices are in `err`."""
        assert self.code == 0, self
        assert not re.search("error|warning|traceback", self.err, re.IGNORECASE), self.err
        return self.out


_NURSERY = """
import json, os, resource, runpy, signal, sys, time, traceback
import altair, numba, numpy, vl_convert
import optuna, sqlalchemy, alembic.command
from sparsefed import cli, config, data, reports, runs
from sparsefed.cli import catalogue
from sparsefed.reports import progress_view, to_html, to_terminal
from sparsefed.cli.app import console, errors
from sparsefed.commands import certify, choose_k, tune
from tests.support.forked_workers import fork_workers

fork_workers()
answers = os.dup(1)

@numba.njit(nogil=True)
def increase(values):
    for i in range(len(values)):
        values[i] += 1

def bundle():
    ours, its = os.pipe()
    if os.fork() == 0:
        with os.fdopen(its, "w") as pipe:
            pipe.write(to_html.library())
        os._exit(0)
    os.close(its)
    with os.fdopen(ours) as pipe:
        script = pipe.read()
    assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
    bundled, vl_convert.javascript_bundle = vl_convert.javascript_bundle, lambda *_, **__: script
    assert to_html.library() == script
    vl_convert.javascript_bundle = bundled

increase(numpy.zeros(1, numpy.float32))
bundle()

def child(order):
    os.close(answers)
    os.setsid()
    os.chdir(order["cwd"])
    os.environ.update(order["env"])
    for each in (console, errors):  # made when they were imported, as wide as the server's terminal
        each.width = int(os.environ["COLUMNS"])
    for fd, path in ((0, os.devnull), (1, order["out"]), (2, order["err"])):
        os.dup2(os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC), fd)
    if order["largest"]:
        resource.setrlimit(resource.RLIMIT_FSIZE, (order["largest"], order["largest"]))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup it is ignored, and the command would respect that
    sys.argv = [order["module"] or "sparsefed", *order["args"]]
    try:
        if order["script"]:
            sys.path.insert(0, os.path.dirname(order["script"]))
            runpy.run_path(order["script"], run_name="__main__")
        elif order["module"]:
            runpy.run_module(order["module"], run_name="__main__", alter_sys=True)
        else:
            cli.main()
    except SystemExit as end:
        return end.code or 0
    except BaseException:
        traceback.print_exc()
        return 1
    return 0

def fork(order):
    pid = os.fork()
    if pid == 0:
        code = child(order)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return pid

def wait(pid, seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        done, status, usage = os.wait4(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime
        time.sleep(0.002)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return None

for line in sys.stdin:
    order = json.loads(line)
    answer = wait(order["wait"], order["seconds"]) if "wait" in order else fork(order)
    os.write(answers, (json.dumps(answer) + chr(10)).encode())
"""


class Server:
    """A process that has imported everything and forks others on request; one is enough for any number of nurseries."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def ask(self, order: Mapping[str, Any]) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())


class Nursery:
    """Starts commands quickly, in a folder; see the module's docstring."""

    def __init__(self, server: Server, folder: Path, **environment: str) -> None:
        self.server, self._folder, self._environment, self._count = server, folder, environment, 0

    def start(
        self,
        *args: str | Path,
        cwd: Path | None = None,
        largest: int = 0,
        module: str = "",
        script: str | Path = "",
    ) -> Command:
        """A running `sparsefed ARGS`, `python -m MODULE ARGS` or `python SCRIPT`.

        No file that it writes exceeds `largest` bytes.
        """
        self._count += 1
        out, err = (self._folder / f"{self._count}.{kind}" for kind in ("out", "err"))
        out.touch()
        err.touch()
        order = {"args": [str(arg) for arg in args], "cwd": str(cwd or self._folder), "largest": largest}
        order |= {"module": module, "script": str(script)}
        order |= {"out": str(out), "err": str(err), "env": self._environment}
        return Command(self.server, self.server.ask(order), out, err)

    def run(self, *args: str | Path, seconds: float = 60, **how: Any) -> Done:
        return self.start(*args, **how).wait(seconds)

    def script(self, script: str | Path) -> str:
        """What a Python script prints: a file's path, or its text."""
        if isinstance(script, str):
            (self._folder / "script.py").write_text(script, encoding="utf-8")
        done = self.run(script=self._folder / "script.py" if isinstance(script, str) else script, seconds=300)
        assert done.code == 0, done.err
        return done.out


@dataclass(frozen=True)
class Command:
    """A running command."""

    server: Server
    pid: int
    out: Path
    err: Path

    def signal(self, number: int) -> None:
        with suppress(ProcessLookupError):  # it may just have ended; it is not reaped before `wait`
            os.kill(self.pid, number)

    def wait(self, seconds: float = 60) -> Done:
        ended = self.server.ask({"wait": self.pid, "seconds": seconds})
        assert ended is not None, f"still running after {seconds} s"
        code, cpu = ended
        return Done(code, self.out.read_text(), self.err.read_text(), cpu)


@contextmanager
def server() -> Iterator[Server]:
    with subprocess.Popen(
        [sys.executable, "-c", _NURSERY],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**ENVIRONMENT, "COLUMNS": "100"},
    ) as process:
        yield Server(process)
        assert process.stdin is not None
        process.stdin.close()


def installed(*args: str | Path, cwd: Path, env: Mapping[str, str] | None = None) -> Done:
    """The command, started the ordinary way."""
    done = subprocess.run(
        [*COMMAND, *map(str, args)], cwd=cwd, env={**ENVIRONMENT, **(env or {})}, capture_output=True, text=True
    )
    return Done(done.returncode, done.stdout, done.stderr)


def on_a_terminal(args: Sequence[str | Path], cwd: Path, columns: int) -> tuple[int, str]:
    """Exit code and screen text of the command on a terminal of that width, colours and cursor moves taken out."""
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    environment = {**ENVIRONMENT, "TERM": "xterm-256color"}
    process = subprocess.Popen([*COMMAND, *map(str, args)], cwd=cwd, env=environment, stdin=its, stdout=its, stderr=its)
    os.close(its)
    seen = b""
    with suppress(OSError):  # the end of a terminal is an error
        while piece := os.read(ours, 65536):
            seen += piece
    os.close(ours)
    return process.wait(60), re.sub(rb"\x1b\[[0-9;?]*[a-zA-Z]", b"", seen).decode()


def without_seconds(folder: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in row.items() if key not in ("seconds", "crc32")} for row in rows]
