"""Provenance of a run: when, with what, on which machine, by which command."""

from __future__ import annotations

import functools
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from sparsefed.core.dtypes import has_bfloat16
from sparsefed.core.types import RunRecord

_VERSIONED = ("sparsefed", "torch", "numpy", "numba", "safetensors")


def manifest(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts known about a run before it begins."""
    asks = config.get("train", {}).get("dtype") == "bfloat16"  # finding out can take seconds
    return {
        "created": now(),
        "status": "created",
        "round": 0,
        "rounds": config.get("rounds"),
        "seed": config.get("seed"),
        "command": shlex.join(["sparsefed", *sys.argv[1:]]),
        "versions": dict(versions()),
        "commit": commit(),
        "machine": {
            "system": f"{platform.system()} {platform.release()}",
            "processor": platform.processor() or platform.machine(),
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
            **({"bfloat16": "yes" if has_bfloat16() else "no, float32 in its place"} if asks else {}),
        },
    }


def dtype_of(record: RunRecord) -> str:
    """Return the floating-point type in which a run was computed, which may not be the one its config asks for."""
    train, machine = record.config.get("train", {}), record.manifest.get("machine", {})
    lacking = train.get("device", "cpu") == "cpu" and str(machine.get("bfloat16")).startswith("no,")
    return "float32" if lacking else str(train.get("dtype", "float32"))


def now() -> str:
    """Return the current UTC time, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


@functools.cache
def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that can change a result."""
    return {"python": platform.python_version(), **{name: metadata.version(name) for name in _VERSIONED}}


@functools.cache
def commit() -> str | None:
    """Return the commit of the source tree this runs from, with a + if files were changed; None outside of one.

    A process runs the files that it has loaded, so git is called once.
    """
    git = ["git", "-C", str(Path(__file__).parent.parent)]
    try:
        # An installed copy may be inside an unrelated repository.
        subprocess.run([*git, "ls-files", "--error-unmatch", __file__], capture_output=True, timeout=5, check=True)
        head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, timeout=5, check=True)
        dirty = subprocess.run([*git, "status", "--porcelain", "."], capture_output=True, text=True, timeout=5)
    except (OSError, subprocess.SubprocessError):
        return None
    return head.stdout.strip() + ("+" if dirty.stdout.strip() else "")
