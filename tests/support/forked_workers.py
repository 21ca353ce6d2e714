"""Workers of a sweep that are forked from the command that starts them, where a test is not about their start.

A fresh worker loads torch for seconds of processor time. A fork has it loaded, and is a process like any other: it has
its own memory, is killed and dies with its parent in the same way, and runs the same module with the same arguments,
environment and pipes. `tests/processes/test_runner.py` and `tests/commands/test_sweep.py` start fresh ones.
"""

from __future__ import annotations

import os
import runpy
import signal
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import IO, Any

from sparsefed.sweeps import pool, worker

MOST = 4096  # descriptors that a fork closes


class ForkedProcess:
    """What `sparsefed.sweeps.pool` uses of `subprocess.Popen`, for `python -P -m MODULE ARGUMENTS`."""

    def __init__(
        self, command: Sequence[str], stdin: int, stdout: int, stderr: IO[bytes], env: Mapping[str, str]
    ) -> None:
        assert list(command[:4]) == [sys.executable, "-P", "-m", worker.__name__]
        assert stdin == stdout == subprocess.PIPE
        its_input, our_output = os.pipe()
        our_input, its_output = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 advises against forks with threads
            self.pid = os.fork()
        if self.pid == 0:
            _become(command[3], command[4:], (its_input, its_output, stderr.fileno()), env)
        os.close(its_input)
        os.close(its_output)
        self.stdin: IO[bytes] = os.fdopen(our_output, "wb")
        self.stdout: IO[bytes] = os.fdopen(our_input, "rb")
        self.returncode: int | None = None

    def poll(self, options: int = os.WNOHANG) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, options)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        end = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll(0 if end is None else os.WNOHANG)) is None:
            if end is not None and time.monotonic() > end:
                raise subprocess.TimeoutExpired(worker.__name__, timeout or 0.0)
            time.sleep(0.002)
        return code

    def terminate(self) -> None:
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        self._send(signal.SIGKILL)

    def _send(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)


def _become(module: str, arguments: Sequence[str], streams: tuple[int, int, int], env: Mapping[str, str]) -> None:
    """Run a module as if it had been started with these standard streams, and nothing else open; never return."""
    code: Any = 1
    try:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        for target, source in enumerate(streams):
            os.dup2(source, target)
        os.closerange(3, MOST)
        sys.stdin, sys.stdout, sys.stderr = (open(i, mode, closefd=False) for i, mode in enumerate("rww"))  # noqa: SIM115
        os.environ.update(env)
        sys.path[:] = [path for path in sys.path if path and path != os.getcwd()]  # noqa: PTH109
        sys.modules.pop(module, None)
        sys.argv = [module, *arguments]
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


FORKING = SimpleNamespace(Popen=ForkedProcess, PIPE=subprocess.PIPE, TimeoutExpired=subprocess.TimeoutExpired)


def fork_workers() -> None:
    """Let the pools of this process fork their workers from now on; a test sets `pool.subprocess` for itself alone."""
    pool.subprocess = FORKING  # type: ignore[assignment, attr-defined]
