"""Running another program for a source: quietly, without prompts, and reporting its own error message."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from sparsefed.data import limits
from sparsefed.data.record import SourceError

PATIENCE = 900.0  # seconds for one command


def run(command: Sequence[str], folder: Path, settings: Mapping[str, str], marks: Sequence[str]) -> None:
    """Run a command in a folder, with more settings in its environment; raise SourceError if it fails.

    `marks` are the prefixes of the lines that report an error, most informative first.
    """
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env={**os.environ, "LC_ALL": "C", **settings},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=PATIENCE,
            preexec_fn=_limit(),
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SourceError(f"{command[0]} did not finish: {error}") from error
    if done.returncode:
        raise SourceError(reason(command[0], done.stdout, marks))


def _limit() -> Callable[[], None] | None:
    """Return what lets no file that a command writes grow beyond what a package may have, where the system can."""
    if os.name != "posix":
        return None
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    most = limits.LARGEST if hard == resource.RLIM_INFINITY else min(hard, limits.LARGEST)
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (most, hard))


def reason(tool: str, output: str, marks: Sequence[str]) -> str:
    """Return why a command failed, in its own words: the first line marked as an error, or else its last line.

    >>> reason("apt-get", "Reading...\\nE: Failed to fetch x  No route to host\\nE: Some files failed.\\n", ["E: "])
    'apt-get: Failed to fetch x  No route to host'
    """
    lines = [line for line in output.splitlines() if line.strip()] or ["it failed without a word"]
    marked = [line.removeprefix(mark) for mark in marks for line in lines if line.startswith(mark)]
    return f"{tool}: {(marked or lines[-1:])[0].strip()}"
