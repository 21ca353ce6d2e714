"""Run folders: what a run leaves behind, and how it goes on.

    config.toml             what was asked for, every default written out
    manifest.json           when, where, with which versions, and how far it got
    metrics.jsonl           a line a round
    checkpoint.safetensors  the whole server state: parameters and the defense's memory

A checkpoint replaces the one before in a single step, after the metrics up to it have reached the disk. So a process
that is killed at any moment leaves a folder from which `resume` continues, bit for bit the run it would have been.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import platform
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from sparsefed import toml
from sparsefed.errors import RunError
from sparsefed.simulate import RoundReport, ServerState
from sparsefed.types import RunRecord

CONFIG, MANIFEST, METRICS, CHECKPOINT = "config.toml", "manifest.json", "metrics.jsonl", "checkpoint.safetensors"
_VERSIONED = ("sparsefed", "torch", "numpy", "numba", "safetensors")


# --- making and reading ----------------------------------------------------------------------------------------------


def create(folder: Path, config: Mapping[str, Any], overwrite: bool = False) -> None:
    """A new run folder with its config and manifest; refuses to write over a run unless told to."""
    if (folder / MANIFEST).exists() and not overwrite:
        raise RunError(
            f"{folder} already holds a run; continue it with `sparsefed resume {folder}`, choose another folder with "
            "--out, or start it anew with --overwrite"
        )
    with _disk(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for name in (CHECKPOINT, METRICS, MANIFEST):
            (folder / name).unlink(missing_ok=True)
        write_atomically(folder / CONFIG, toml.dumps(config).encode())
        write_atomically(folder / MANIFEST, _json(_manifest(config)))


def load_run(folder: Path) -> RunRecord:
    """A run folder read back, finished or not."""
    config, manifest = load_config(folder), _load_manifest(folder)
    return RunRecord(str(config.get("name") or folder.name), config, manifest, tuple(_rows(folder)))


def find(paths: Sequence[Path]) -> list[Path]:
    """The run folders among these paths and directly below them, in the order their runs were made."""
    found = []
    for path in paths:
        below = sorted(path.glob("*/" + MANIFEST), key=lambda file: (_load_manifest(file.parent)["created"], file))
        found += [path] if (path / MANIFEST).is_file() else [file.parent for file in below]
    if not found:
        raise RunError(f"no run in {', '.join(map(str, paths))}; give folders that `sparsefed run` or `demo` made")
    return found


def can_continue(folder: Path, config: Mapping[str, Any]) -> bool:
    """Whether the folder holds an unfinished run of exactly this config."""
    if not (folder / MANIFEST).is_file():
        return False
    return load_config(folder) == config and _load_manifest(folder).get("status") != "finished"


def load_config(folder: Path) -> dict[str, Any]:
    """The config a run was started with."""
    path = folder / CONFIG
    if not path.is_file():
        raise RunError(f"{folder} is not a run folder (it has no {CONFIG}); give a folder that `sparsefed run` made")
    try:
        return tomllib.loads(path.read_text())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise RunError(f"{path} is damaged ({error}); start the run anew from its original config") from error


def load_state(folder: Path) -> ServerState | None:
    """The state at the last checkpoint; None where the run had not reached its first."""
    path = folder / CHECKPOINT
    if not path.exists():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
        defense = {name.removeprefix("defense."): t for name, t in tensors.items() if name != "theta"}
        return ServerState(int(header["round"]), tensors["theta"], defense)
    except (SafetensorError, KeyError, ValueError) as error:
        advice = "delete it and resume: the run then starts from round 1"
        raise RunError(f"{path} is damaged ({error}); {advice}") from error


def _load_manifest(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    try:
        return dict(json.loads(path.read_text()))
    except (OSError, ValueError) as error:
        raise RunError(f"{path} cannot be read ({error}); start the run anew from {folder / CONFIG}") from error


def _rows(folder: Path) -> Iterator[dict[str, Any]]:
    """The lines of metrics.jsonl; a last line that a killed process left half written is not one."""
    path = folder / METRICS
    if not path.exists():
        return
    with path.open("rb") as file:
        for line in file:
            if not line.endswith(b"\n"):
                return
            try:
                yield json.loads(line)
            except ValueError:
                return


# --- running ---------------------------------------------------------------------------------------------------------


def execute(
    folder: Path,
    reports: Callable[[ServerState | None], Iterator[RoundReport]],
    checkpoint_every: int,
    watch: Callable[[RoundReport], None] = lambda report: None,  # noqa: ARG005
) -> str:
    """Drive a run from where its folder stands to its end: 'finished', or 'interrupted' by Ctrl-C. `reports` makes
    the rounds that follow a state."""
    with _locked(folder):
        state = load_state(folder)
        first = state.round if state else 0
        _drop_rows_after(folder, first)
        _note(folder, status="running", round=first)
        last: ServerState | None = None
        try:
            with _disk(folder), (folder / METRICS).open("ab") as metrics:
                try:
                    for report in reports(state):
                        metrics.write(_json({**report.metrics, "seconds": round(report.seconds, 4)}))
                        metrics.flush()
                        last = report.state
                        if last.round % checkpoint_every == 0:
                            _checkpoint(folder, metrics.fileno(), last)
                        watch(report)
                finally:
                    if last is not None and last.round % checkpoint_every:
                        _checkpoint(folder, metrics.fileno(), last)
        except KeyboardInterrupt:
            _note(folder, status="interrupted", round=last.round if last else first)
            return "interrupted"
        _note(folder, status="finished", round=last.round if last else first)
        return "finished"


def _checkpoint(folder: Path, metrics: int, state: ServerState) -> None:
    os.fsync(metrics)
    tensors = {"theta": state.theta, **{f"defense.{name}": t for name, t in state.defense.items()}}
    content = save({name: t.contiguous() for name, t in tensors.items()}, {"round": str(state.round)})
    write_atomically(folder / CHECKPOINT, content)


def _drop_rows_after(folder: Path, round: int) -> None:
    """Forget rounds that were reported but not saved: they are run again."""
    rows = [row for row in _rows(folder) if row.get("round", 0) <= round]
    with _disk(folder):
        write_atomically(folder / METRICS, b"".join(_json(row) for row in rows))


def _note(folder: Path, **facts: Any) -> None:
    with _disk(folder):
        write_atomically(folder / MANIFEST, _json({**_load_manifest(folder), **facts}))


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One process a run; the lock goes with the process that holds it."""
    load_config(folder)
    with _disk(folder), (folder / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunError(f"another process is working on {folder}; wait for it, or end it first") from None
        yield


# --- the disk --------------------------------------------------------------------------------------------------------


def write_atomically(path: Path, content: bytes) -> None:
    """All of it or nothing: a reader sees the old file or the new one."""
    scratch = path.with_name(path.name + ".partial")
    with scratch.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    scratch.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


@contextmanager
def _disk(folder: Path) -> Iterator[None]:
    """A full or read-only disk in one sentence."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        then = "and try again"
        if (folder / CHECKPOINT).exists():
            then = f"then `sparsefed resume {folder}`: nothing up to its last checkpoint is lost"
        raise RunError(f"cannot write to {folder} ({error}); free some space or mend the disk, {then}") from error


def _json(value: Mapping[str, Any]) -> bytes:
    return (json.dumps({key: _finite(item) for key, item in value.items()}, allow_nan=False) + "\n").encode()


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


# --- where it came from ----------------------------------------------------------------------------------------------


def _manifest(config: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "status": "created",
        "round": 0,
        "rounds": config.get("rounds"),
        "seed": config.get("seed"),
        "command": " ".join(["sparsefed", *sys.argv[1:]]),
        "versions": {"python": platform.python_version(), **{name: metadata.version(name) for name in _VERSIONED}},
        "commit": _commit(),
        "machine": {
            "system": f"{platform.system()} {platform.release()}",
            "processor": platform.processor() or platform.machine(),
            "cores": os.cpu_count(),
        },
    }


def _commit() -> str | None:
    """The commit of the source tree this runs from, if it is one; with a + where files were changed since."""
    here = Path(__file__).parent
    git = ["git", "-C", str(here)]
    try:
        head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, timeout=5, check=True)
        dirty = subprocess.run([*git, "status", "--porcelain", "."], capture_output=True, text=True, timeout=5)
    except (OSError, subprocess.SubprocessError):
        return None
    return head.stdout.strip() + ("+" if dirty.stdout.strip() else "")
